"""What a message says: the cause, and what helps. And what is certain of a partial recovery."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.metrics import match_components
from sparsedl.stages import SearchEnd

RNG = np.random.default_rng(0)
X, CODES, COMPONENTS = make_sparse_dictionary(200, 10, sparsity=0.5, random_state=0)
WIDE = make_sparse_dictionary(200, 10, n_features=13, sparsity=0.6, random_state=0)[0]


def whole_numbers(*shape):
    return RNG.integers(-3, 4, shape) * (RNG.random(shape) < 0.5)


CASES = {
    "transposed": (X.T, {}, r"rows are samples: X has 10 of them and 200 features.*or X.T"),
    "few samples": (X[:15], {}, "10 components need 20 samples at the very least: give more"),
    "repeated": (np.tile(X[:14], (10, 1)), {}, "only 14 of 140 rows are different"),
    "repeated multiples": (np.tile(X[:14], (5, 1)) * RNG.standard_normal((70, 1)), {}, "only 14 of 70 rows are diff"),
    "zero rows": (np.vstack([X[:15], np.zeros((50, 10))]), {}, "all but 15 of the 65 rows are zero"),
    "few values": (whole_numbers(100, 8) @ RNG.standard_normal((8, 8)), {}, "take few values, such as small whole"),
    "noise fills the rank": (WIDE + 1e-3 * RNG.standard_normal(WIDE.shape), {}, "fills the rank, give n_components=10"),
    "n_components too small": (X, {"n_components": 6}, "behind n_components=6 the singular values of X go on.*raise"),
    "one of ten": (X, {"n_components": 1}, "X has rank 10.*nothing shows that it is noise; raise n_components"),
    "a constant feature": (
        np.column_stack([X, np.full(200, 3.0)]),
        {"fit_intercept": False},
        "feature 10 of X is the same in all rows.*fit_intercept=True",
    ),
    "dense": (RNG.standard_normal((200, 5)) @ RNG.standard_normal((5, 8)), {}, "dense.*raise max_rounds or n_starts"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_cause_has_a_message_of_its_own(case):
    observations, parameters, message = CASES[case]
    with pytest.warns(ConvergenceWarning, match=message):
        sdr = SparseDictionaryRecovery(random_state=0, max_rounds=3, **parameters).fit(observations)
    assert not sdr.recovered_.all()
    assert sdr.status_ != "complete"


def test_how_the_search_ended_is_told_beside_the_words():
    few, _, _ = make_sparse_dictionary(40, 30, sparsity=0.5, random_state=0)
    with pytest.warns(ConvergenceWarning):
        assert SparseDictionaryRecovery(random_state=0, max_rounds=1).fit(few).search_end_ is SearchEnd.CUT
    many, _, _ = make_sparse_dictionary(200, 10, sparsity=0.2, random_state=0)
    assert SparseDictionaryRecovery(random_state=0).fit(many).search_end_ is SearchEnd.COMPLETE


def test_the_advice_to_give_n_components_helps():
    noisy = CASES["noise fills the rank"][0]
    assert SparseDictionaryRecovery(10, random_state=0).fit(noisy).status_ == "complete"


def test_alike_rows_are_refused():
    for fit_intercept in (False, True, "auto"):
        with pytest.raises(ValueError, match="all rows of X are alike"):
            SparseDictionaryRecovery(fit_intercept=fit_intercept).fit(np.tile(X[0], (20, 1)))


@pytest.mark.parametrize("is_sparse", [True, False])
def test_one_component_is_exact_and_not_called_complete(is_sparse):
    codes = RNG.standard_normal((50, 1)) * ((RNG.random((50, 1)) < 0.5) if is_sparse else 1)
    component = RNG.standard_normal((1, 6))
    with pytest.warns(ConvergenceWarning, match="X has rank one"):
        sdr = SparseDictionaryRecovery(random_state=0, max_rounds=1, fit_intercept=False).fit(codes @ component)
    assert sdr.recovered_.all()
    assert sdr.status_ == "one component: nothing to tell apart"
    assert match_components(sdr.components_, component).errors.max() < 1e-12


@pytest.mark.parametrize("offset", [0.0, 2.0])
@pytest.mark.parametrize("n_dense", [0, 1, 2, 3])
def test_certain_components_are_and_codes_of_recovered_ones_too(n_dense, offset):
    errors_of_others = []
    for seed in range(3):
        _, codes, components = make_sparse_dictionary(120, 7, n_features=8, sparsity=0.6, random_state=seed)
        codes[:, :n_dense] = np.random.default_rng(seed).laplace(size=(120, n_dense))
        sdr = SparseDictionaryRecovery(random_state=0, max_rounds=3, patience=2, fit_intercept=bool(offset))
        if n_dense:
            with pytest.warns(ConvergenceWarning, match="see certain_components_"):
                sdr.fit(codes @ components + offset)
        else:
            sdr.fit(codes @ components)
        assert sdr.recovered_.sum() == 7 - n_dense
        assert sdr.certain_components_.sum() == {0: 7, 1: 1}.get(n_dense, 0)
        found = sdr.codes_[:, sdr.recovered_]
        cosines = np.abs((found / np.linalg.norm(found, axis=0)).T @ (codes / np.linalg.norm(codes, axis=0)))
        assert cosines.max(axis=1).min() > 1 - 1e-10
        errors = match_components(components, sdr.components_[sdr.certain_components_]).errors
        assert errors.max(initial=0.0) < 1e-10
        errors_of_others += match_components(components, sdr.components_[~sdr.certain_components_]).errors.tolist()
    assert n_dense == 0 or max(errors_of_others) > 0.1

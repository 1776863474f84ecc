"""The noise that the zeros show, where nothing else tells it."""

import numpy as np
import pytest

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.metrics import match_components

CHANGES = {
    "single precision held in double": lambda X: X.astype(np.float32).astype(np.float64),
    "six digits": np.vectorize(lambda value: float(f"{value:.6g}")),
    "noise": lambda X: X + 1e-10 * np.random.default_rng(0).standard_normal(X.shape),
}


@pytest.mark.parametrize("name", CHANGES)
def test_square_observations_with_noise_that_nobody_told(name):
    X, _, components = make_sparse_dictionary(300, 10, random_state=0)
    sdr = SparseDictionaryRecovery(random_state=0).fit(CHANGES[name](X))
    assert sdr.recovered_.all()
    assert match_components(sdr.components_, components).errors.max() < 1e-4


def test_many_observations_are_searched_in_part_and_proven_on_all():
    X, codes, components = make_sparse_dictionary(12000, 20, random_state=0)
    sdr = SparseDictionaryRecovery(random_state=0).fit(X)
    assert sdr.recovered_.all()
    match = match_components(sdr.components_, components)
    assert match.errors.max() < 1e-10
    np.testing.assert_allclose(sdr.sparsity_[match.permutation], np.mean(codes == 0, axis=0), atol=1e-12)


def test_repeated_rows_count_once():
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((14, 10))
    X = dense[rng.integers(14, size=400)]
    with pytest.warns(UserWarning, match="recovered 0 of 10"):
        sdr = SparseDictionaryRecovery(patience=2, random_state=0).fit(X)
    assert not sdr.recovered_.any()


def test_codes_of_few_values_prove_nothing_that_is_wrong():
    for seed in range(3):
        _, codes, components = make_sparse_dictionary(120, 8, sparsity=0.5, random_state=seed)
        codes = np.sign(codes)
        with pytest.warns(UserWarning, match="take few values"):
            sdr = SparseDictionaryRecovery(patience=2, random_state=seed).fit(codes @ components)
        assert not sdr.recovered_.any()

import pickle
import warnings

import numpy as np
import pandas
import polars
import pytest
import torch
from joblib import parallel_config
from sklearn.base import clone
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.metrics import match_components
from sparsedl.optimizers import (
    DiminishingSubgradient,
    FixedPoint,
    MatchingStretchProject,
    ProjectedGradient,
    ReweightedLeastSquares,
    RiemannianAdam,
    RiemannianSGD,
)
from sparsedl.rounding import KernelRounding, LinearProgramRounding, ReweightedRounding
from sparsedl.surrogates import L1, Huber, LogCosh, LogSum, NegativeL4


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([SparseDictionaryRecovery(max_rounds=2, n_starts=4, optimizer=RiemannianAdam(max_iter=10))])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("n_samples", "n_components", "sparsity"),
    [(300, 10, 0.6), (200, 20, 0.5), (400, 20, 0.3), (120, 20, 0.9), (300, 12, 0.95)],
)
def test_recovers_dictionary_and_codes_exactly(n_samples, n_components, sparsity, seed):
    X, codes, components = make_sparse_dictionary(n_samples, n_components, sparsity=sparsity, random_state=seed)
    sdr = SparseDictionaryRecovery(random_state=seed).fit(X)
    match = match_components(sdr.components_, components)
    assert match.errors.max() < 1e-10
    np.testing.assert_allclose(sdr.codes_[:, match.permutation] * match.signs, codes, atol=1e-9)
    assert sdr.recovered_.all()
    assert sdr.status_ == "complete"
    np.testing.assert_allclose(np.sort(sdr.sparsity_), np.sort(np.mean(codes == 0, axis=0)))


@pytest.mark.parametrize("surrogate", [L1(), LogSum(epsilon=1.0), LogCosh(), Huber()], ids=repr)
@pytest.mark.parametrize("optimizer", [RiemannianAdam(), ProjectedGradient()], ids=repr)
@pytest.mark.parametrize("rounding", [ReweightedRounding(), KernelRounding(), LinearProgramRounding()], ids=repr)
def test_every_combination_recovers_an_easy_problem(surrogate, optimizer, rounding):
    X, _, components = make_sparse_dictionary(150, 6, sparsity=0.5, random_state=0)
    sdr = SparseDictionaryRecovery(
        surrogate=surrogate, optimizer=optimizer, rounding=rounding, n_starts=24, random_state=0
    ).fit(X)
    assert match_components(sdr.components_, components).errors.max() < 1e-9


@pytest.mark.parametrize(
    ("optimizer", "surrogate"),
    [
        (DiminishingSubgradient(), L1()),
        (FixedPoint(), LogSum()),
        (FixedPoint(), LogCosh()),
        (MatchingStretchProject(), NegativeL4()),
        (ReweightedLeastSquares(), LogSum()),
        (RiemannianAdam(), NegativeL4()),
        (RiemannianSGD(), L1()),
    ],
    ids=repr,
)
def test_every_optimizer_recovers_an_easy_problem(optimizer, surrogate):
    X, _, components = make_sparse_dictionary(400, 6, sparsity=0.8, condition_number=3, random_state=0)
    sdr = SparseDictionaryRecovery(surrogate=surrogate, optimizer=optimizer, random_state=0).fit(X)
    assert match_components(sdr.components_, components).errors.max() < 1e-9


def test_fewer_components_than_features():
    X, _, components = make_sparse_dictionary(300, 8, n_features=30, sparsity=0.6, random_state=0)
    sdr = SparseDictionaryRecovery(random_state=0).fit(X)
    assert sdr.components_.shape == (8, 30)
    assert match_components(sdr.components_, components).errors.max() < 1e-9


def test_noise_is_taken_from_beyond_the_components():
    X, _, components = make_sparse_dictionary(
        500, 8, n_features=30, sparsity=0.6, noise_level=1e-4, condition_number=3, random_state=0
    )
    sdr = SparseDictionaryRecovery(n_components=8, random_state=0).fit(X)
    assert sdr.recovered_.all()
    assert match_components(sdr.components_, components).errors.max() < 1e-3


def test_transform_and_back():
    X, _, _ = make_sparse_dictionary(200, 6, sparsity=0.7, random_state=0)
    sdr = SparseDictionaryRecovery(random_state=0).fit(X)
    np.testing.assert_array_equal(sdr.transform(X), sdr.codes_)
    np.testing.assert_allclose(sdr.inverse_transform(sdr.codes_), X, atol=1e-10)
    np.testing.assert_allclose(sdr.components_ @ sdr.directions_, np.eye(6), atol=1e-10)
    np.testing.assert_allclose(np.linalg.norm(sdr.components_, axis=1), 1)


def test_float32_in_float32_out():
    X, _, components = make_sparse_dictionary(200, 6, sparsity=0.7, random_state=0)
    sdr = SparseDictionaryRecovery(random_state=0).fit(X.astype(np.float32))
    assert sdr.components_.dtype == sdr.codes_.dtype == sdr.directions_.dtype == np.float32
    assert match_components(sdr.components_, components).errors.max() < 1e-5


def test_tensors_and_frames_are_welcome():
    X, _, _ = make_sparse_dictionary(200, 6, sparsity=0.7, random_state=0)
    expected = SparseDictionaryRecovery(random_state=0).fit_transform(X)
    np.testing.assert_allclose(SparseDictionaryRecovery(random_state=0).fit_transform(torch.tensor(X)), expected)
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    sdr = SparseDictionaryRecovery(random_state=0).set_output(transform="pandas")
    np.testing.assert_allclose(sdr.fit_transform(frame), expected)
    assert list(sdr.feature_names_in_) == list("abcdef")
    assert list(sdr.get_feature_names_out()) == [f"sparsedictionaryrecovery{i}" for i in range(6)]


def test_clone_pickle_and_pipeline():
    X, _, _ = make_sparse_dictionary(200, 6, sparsity=0.7, random_state=0)
    sdr = SparseDictionaryRecovery(surrogate=LogCosh(mu=0.2), random_state=0)
    sdr.set_params(surrogate__mu=0.05)
    assert clone(sdr).surrogate.mu == 0.05
    fitted = pickle.loads(pickle.dumps(sdr.fit(X)))
    np.testing.assert_array_equal(fitted.transform(X), sdr.codes_)
    piped = make_pipeline(FunctionTransformer(), clone(sdr)).fit(X)
    np.testing.assert_array_equal(piped.transform(X), sdr.codes_)


def test_mixing_means_what_it_means_in_fast_ica():
    X, _, _ = make_sparse_dictionary(300, 4, sparsity=0.7, random_state=0)
    assert not hasattr(SparseDictionaryRecovery(), "mixing_")
    sdr = SparseDictionaryRecovery(random_state=0).fit(X)
    ica = FastICA(whiten="unit-variance", random_state=0).fit(X)
    assert sdr.mixing_.shape == ica.mixing_.shape
    for model in (sdr, ica):
        offset = model.intercept_ if model is sdr else model.mean_
        np.testing.assert_allclose(model.transform(X) @ model.mixing_.T + offset, X, atol=1e-10)
    with pytest.raises(AttributeError):
        sdr.mixing_ = ica.mixing_


def test_fit_writes_no_parameter_and_shares_no_strategy():
    X, _, _ = make_sparse_dictionary(200, 4, sparsity=0.7, random_state=0)
    surrogate = L1()
    sdr = SparseDictionaryRecovery(surrogate=surrogate, random_state=0)
    before = sdr.get_params(deep=False)
    sdr.fit(X)
    assert sdr.get_params(deep=False) == before
    assert sdr.surrogate_ is not surrogate


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that a problem of a test has many of each kind."""
    for module in ("descents", "symmetric_fixed_point"):
        monkeypatch.setattr(f"sparsedl.{module}.FEWEST", 4)
        monkeypatch.setattr(f"sparsedl.{module}.ENTRIES", 1)
    for name, value in (("FEWEST_POLISHED", 4), ("POLISHED", 1), ("REFITTED", 1)):
        monkeypatch.setattr(f"sparsedl.search.{name}", value)


@pytest.mark.parametrize("n_jobs", [2, 3])
@pytest.mark.parametrize(("n_samples", "sparsity"), [(200, 0.5), (60, 0.6)])
@pytest.mark.usefixtures("small_blocks")
def test_same_seed_same_result_whatever_the_workers(n_samples, sparsity, n_jobs):
    X, _, _ = make_sparse_dictionary(n_samples, 12, sparsity=sparsity, random_state=0)
    serial = SparseDictionaryRecovery(n_starts=160, random_state=0).fit(X)
    parallel = SparseDictionaryRecovery(n_starts=160, n_jobs=n_jobs, random_state=0).fit(X)
    assert parallel.n_starts_ == serial.n_starts_
    for name in ("components_", "codes_", "candidates_"):
        np.testing.assert_array_equal(getattr(parallel, name), getattr(serial, name))


def test_processes_give_the_result_of_threads():
    X, _, _ = make_sparse_dictionary(60, 12, sparsity=0.6, random_state=0)
    sdr = SparseDictionaryRecovery(n_jobs=2, random_state=0)
    threads = sdr.fit(X).components_
    with parallel_config("loky"):
        np.testing.assert_array_equal(sdr.fit(X).components_, threads)


def test_dense_data_end_in_a_warning_that_says_what_to_do():
    X = np.random.default_rng(0).standard_normal((100, 5))
    sdr = SparseDictionaryRecovery(max_rounds=2, random_state=0)
    with pytest.warns(ConvergenceWarning, match="recovered 0 of 5 components.*set noise_level, or give more"):
        sdr.fit(X)
    assert not sdr.recovered_.any()
    assert not sdr.sparsity_.any()
    np.testing.assert_allclose(sdr.inverse_transform(sdr.transform(X)), X, atol=1e-10)


def test_a_partial_recovery_says_which_components_are_proven():
    X, codes, _ = make_sparse_dictionary(200, 30, sparsity=0.5, random_state=0)
    sdr = SparseDictionaryRecovery(surrogate=L1(), deflation=None, n_starts=16, max_rounds=1, random_state=0)
    with pytest.warns(ConvergenceWarning, match="raise max_rounds or n_starts"):
        sdr.fit(X)
    n_proven = sdr.recovered_.sum()
    assert 0 < n_proven < 30
    match = match_components(codes.T, sdr.codes_.T[sdr.recovered_])
    assert match.errors.max() < 1e-9
    assert len(np.unique(match.permutation)) == n_proven


def test_an_interrupt_keeps_what_was_found():
    X, _, _ = make_sparse_dictionary(200, 30, sparsity=0.5, random_state=0)

    class Interrupted(RiemannianAdam):
        calls = 0

        def minimize(self, observations, starts, surrogate):
            type(self).calls += 1
            if type(self).calls > 1:
                raise KeyboardInterrupt
            return super().minimize(observations, starts, surrogate)

    with pytest.warns(ConvergenceWarning, match="interrupted"):
        sdr = SparseDictionaryRecovery(optimizer=Interrupted(), random_state=0).fit(X)
    assert 0 < sdr.recovered_.sum() < 30


def test_progress_bar(capsys):
    X, _, _ = make_sparse_dictionary(100, 4, sparsity=0.7, random_state=0)
    SparseDictionaryRecovery(verbose=True, random_state=0).fit(X)
    captured = capsys.readouterr()
    assert "4/4" in captured.err
    assert captured.out == ""


GOOD = np.random.default_rng(0).standard_normal((20, 4))


@pytest.mark.parametrize(
    ("parameters", "X", "error", "message"),
    [
        ({}, np.full((20, 4), np.nan), ValueError, "NaN"),
        ({}, np.full((20, 4), np.inf), ValueError, "infinity"),
        ({}, np.zeros((20, 4)), ValueError, "X is all zeros"),
        ({}, GOOD[0], ValueError, "Expected 2D array"),
        ({}, GOOD[:0], ValueError, "0 sample"),
        ({}, GOOD[:1], ValueError, "minimum of 2 is required"),
        ({}, GOOD.astype(complex), ValueError, "Complex data not supported"),
        ({"n_components": 5}, GOOD, ValueError, "n_components=5 is more than the rank of X, which is 4"),
        ({"n_components": 0}, GOOD, ValueError, "n_components must be a positive integer"),
        ({"n_components": 2.0}, GOOD, ValueError, "n_components must be a positive integer"),
        ({"n_starts": -1}, GOOD, ValueError, "n_starts must be a positive integer"),
        ({"max_rounds": 0}, GOOD, ValueError, "max_rounds must be a positive integer"),
        ({"deflation": 2.0}, GOOD, ValueError, "deflation must be a tuple"),
        ({"deflation": (0.0,)}, GOOD, ValueError, "deflation must be a positive finite number"),
        ({"noise_level": -1.0}, GOOD, ValueError, "noise_level must be a non-negative number"),
        ({"noise_level": [0.1, 0.1]}, GOOD, ValueError, "noise_level must be one number or 20"),
        ({"device": "abacus"}, GOOD, ValueError, "device must name a torch device, got 'abacus'"),
        ({"device": "meta"}, GOOD, ValueError, "device must be 'cpu' or 'cuda', got 'meta'"),
        ({"optimizer": MatchingStretchProject()}, GOOD, TypeError, r"MatchingStretchProject .* NegativeL4\(\)"),
        ({"surrogate": "l1"}, GOOD, TypeError, "surrogate must be an instance of Surrogate or None, got 'l1'"),
        ({"optimizer": L1()}, GOOD, TypeError, "optimizer must be an instance of Optimizer or None"),
        ({"rounding": L1()}, GOOD, TypeError, "rounding must be an instance of Rounding or None"),
        ({"surrogate": LogCosh(mu=0)}, GOOD, ValueError, "LogCosh: mu must be a positive finite number"),
    ],
)
def test_bad_input_is_named(parameters, X, error, message):
    with pytest.raises(error, match=message):
        SparseDictionaryRecovery(**parameters).fit(X)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_cuda_device_is_said():
    with pytest.raises(ValueError, match="device='cuda', but torch sees no CUDA device on this machine"):
        SparseDictionaryRecovery(device="cuda").fit(GOOD)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_agree():
    X, _, _ = make_sparse_dictionary(200, 12, sparsity=0.5, random_state=0)
    one, two = (SparseDictionaryRecovery(device=device, random_state=0).fit(X) for device in ("cpu", "cuda"))
    assert match_components(one.components_, two.components_).errors.max() < 1e-9


def test_score_is_the_sparsity_of_unseen_observations():
    X, codes, _ = make_sparse_dictionary(400, 8, sparsity=0.6, random_state=0)
    sdr = SparseDictionaryRecovery(random_state=0).fit(X[:300])
    assert sdr.score(X[300:]) == pytest.approx(np.mean(codes[300:] == 0), abs=1e-9)
    assert sdr.score(np.random.default_rng(0).standard_normal((50, 8))) < 0.01


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_grid_search_over_a_nested_parameter():
    X, _, _ = make_sparse_dictionary(240, 10, sparsity=0.6, random_state=0)
    search = GridSearchCV(
        SparseDictionaryRecovery(surrogate=LogCosh(), rounding=KernelRounding(n_draws=4), max_rounds=2, random_state=0),
        {"surrogate__mu": [0.1, 30.0]},
        cv=3,
    ).fit(X)
    assert search.best_params_ == {"surrogate__mu": 0.1}
    assert search.best_score_ > 0.5


def test_representation_in_notebooks():
    html = SparseDictionaryRecovery(surrogate=LogCosh(mu=0.2))._repr_html_()
    assert "LogCosh" in html
    assert "SparseDictionaryRecovery" in html


def test_polars_in_polars_out():
    X, _, _ = make_sparse_dictionary(200, 6, sparsity=0.7, random_state=0)
    sdr = SparseDictionaryRecovery(random_state=0).set_output(transform="polars")
    codes = sdr.fit_transform(polars.DataFrame(X, schema=list("abcdef")))
    assert isinstance(codes, polars.DataFrame)
    np.testing.assert_allclose(codes.to_numpy(), sdr.codes_)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_noise_degrades_and_does_not_collapse():
    errors = []
    for snr in (1000, 100, 30):
        arguments = {"n_samples": 600, "n_components": 8, "n_features": 24, "sparsity": 0.6, "condition_number": 2}
        clean, _, components = make_sparse_dictionary(random_state=0, **arguments)
        level = np.sqrt(np.mean(clean**2)) / snr
        noisy = make_sparse_dictionary(random_state=0, noise_level=level, **arguments)[0]
        sdr = SparseDictionaryRecovery(n_components=8, random_state=0).fit(noisy)
        errors.append(match_components(sdr.components_, components).errors.max())
    assert errors[0] < errors[1] < errors[2]
    assert errors[0] < 2e-3
    assert errors[2] < 0.2


def test_not_fitted():
    with pytest.raises(NotFittedError):
        SparseDictionaryRecovery().transform(GOOD)
    with pytest.raises(NotFittedError):
        SparseDictionaryRecovery().inverse_transform(GOOD)


def test_inverse_transform_names_the_shape_it_wants():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        sdr = SparseDictionaryRecovery(max_rounds=1, n_starts=4, random_state=0).fit(GOOD)
    with pytest.raises(ValueError, match=r"codes must have shape \(n_samples, 4\), got \(20, 3\)"):
        sdr.inverse_transform(GOOD[:, :3])

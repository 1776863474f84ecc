"""Components under noise: closer than FastICA, with errors that are true."""

import inspect
import warnings

import numpy as np
import pytest
import torch
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning

from sparsedl import SparseDictionaryRecovery
from sparsedl.contrast import are_mixtures
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.metrics import match_components
from sparsedl.monte_carlo_em import SCALES, CodeSampler
from sparsedl.noisy import estimate_under_noise


def noisy(k, per, snr, *, n_features=None, sparsity=0.7, seed=0):
    X, codes, components = make_sparse_dictionary(
        per * k, k, n_features=n_features, sparsity=sparsity, random_state=seed
    )
    noise = np.sqrt(np.mean(X**2)) * 10 ** (-snr / 20)
    return X + noise * np.random.default_rng(seed).standard_normal(X.shape), codes, components, noise


def estimate(X, k, noise=None, seed=0, start=None):
    return estimate_under_noise(X, k, noise, generator=torch.Generator().manual_seed(seed), start=start)


@pytest.mark.parametrize(("snr", "share"), [(10, 1.0), (15, 0.8), (20, 0.5), (30, 0.25)])
@pytest.mark.parametrize("n_features", [20, 40])
@pytest.mark.parametrize("is_given", [True, False])
def test_closer_than_fast_ica(snr, share, n_features, is_given):
    X, _, components, noise = noisy(20, 40, snr, n_features=n_features)
    peer = FastICA(20, whiten="unit-variance", max_iter=500, tol=1e-3, random_state=0).fit(X).mixing_.T
    found = estimate(X, 20, noise if is_given else None)
    ours, theirs = (np.median(match_components(of, components).errors) for of in (found.components, peer))
    assert ours <= share * theirs
    assert found.noise_source == ("given" if is_given else "singular values" if n_features > 20 else "codes")
    assert found.noise_level == pytest.approx(noise, rel=1e-9 if is_given else 0.03 if n_features > 20 else 0.25)


@pytest.mark.parametrize("snr", [12, 25, 45])
def test_errors_are_those_made(snr):
    ratios = []
    for seed in range(3):
        X, _, components, noise = noisy(12, 40, snr, n_features=12 + 6 * (seed % 2), seed=seed)
        found = estimate(X, 12, noise)
        match = match_components(found.components, components)
        ratios.append(match.errors / found.errors[match.permutation])
    assert np.max(ratios) < 3
    assert 0.5 < np.median(ratios) < 1.5


def test_directions_lead_to_codes_and_components_back():
    X, codes, components, noise = noisy(10, 60, 40, n_features=13)
    found = estimate(X, 10, noise)
    match = match_components(found.components, components)
    estimated = X @ found.directions
    np.testing.assert_allclose(np.mean(estimated**2, axis=0), 1, rtol=0.1)
    np.testing.assert_allclose(found.components @ found.directions, np.eye(10), atol=1e-9)
    for true, column in zip(codes.T, estimated.T[match.permutation], strict=True):
        assert abs(np.corrcoef(true, column)[0, 1]) > 0.999
    assert found.zeros == pytest.approx(np.full(10, 0.7), abs=0.1)


@pytest.mark.parametrize("power", [-300, 7, 300])
def test_units_change_nothing(power):
    X, _, _, noise = noisy(6, 30, 15, n_features=8)
    one, other = estimate(X, 6, noise), estimate(np.ldexp(X, power), 6, np.ldexp(noise, power))
    np.testing.assert_array_equal(np.ldexp(one.components, power), other.components)
    np.testing.assert_array_equal(np.ldexp(one.directions, -power), other.directions)
    np.testing.assert_array_equal(one.errors, other.errors)


def test_the_generator_decides():
    X, _, _, noise = noisy(6, 30, 15)
    np.testing.assert_array_equal(estimate(X, 6, noise).components, estimate(X, 6, noise).components)
    assert not np.array_equal(estimate(X, 6, noise).components, estimate(X, 6, noise, seed=1).components)


@pytest.mark.parametrize("found", [[0], [1, 4, 7], list(range(10))])
def test_starts_from_directions_found_before(found):
    X, _, components, noise = noisy(10, 30, 20)
    estimated = estimate(X, 10, noise, start=np.linalg.pinv(components)[:, found])
    assert match_components(estimated.components, components).errors.max() < 0.15


def test_components_that_are_none_say_so():
    X, _, components, _ = noisy(10, 60, 20, n_features=15)
    found = estimate(X, 12)
    match = match_components(found.components, components)
    extra = np.setdiff1d(np.arange(12), match.permutation)
    assert match.errors.max() < 0.15
    assert (found.errors[extra] == 1).all()
    assert (found.errors[match.permutation] < 0.2).all()


def test_mixtures_of_two_columns_are_seen():
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((12, 500)) * (rng.random((12, 500)) < [[0.3]] * 10 + [[0.6]] * 2) / 0.3**0.5
    noise, zeros = 1e-4 * np.eye(12), np.mean(codes == 0, axis=1)
    assert not are_mixtures(codes, noise, zeros).any()  # two have fewer zeros, and are no mixtures
    codes[:2] = np.array([[0.8, 0.6], [-0.6, 0.8]]) @ codes[:2]
    assert are_mixtures(codes, noise, np.mean(codes == 0, axis=1)).tolist() == [True] * 2 + [False] * 10


@pytest.mark.parametrize("kind", ["positive", "ones"])
def test_codes_with_a_mean(kind):
    rng = np.random.default_rng(1)
    _, _, components = make_sparse_dictionary(10, 10, random_state=1)
    values = rng.exponential(size=(1000, 10)) if kind == "positive" else np.ones((1000, 10))
    X = (values * (rng.random((1000, 10)) < 0.2)) @ components
    noise = 0.1 * np.sqrt(np.mean(X**2))
    found = estimate(X + noise * rng.standard_normal(X.shape), 10, noise)
    match = match_components(found.components, components)
    assert match.errors.max() < 0.06
    assert (match.errors < 3 * found.errors[match.permutation]).all()


def test_gaussian_codes_have_no_components():
    found = estimate(np.random.default_rng(0).standard_normal((500, 8)), 8)
    assert (found.errors == 1).all()


def test_codes_without_zeros_are_left_to_the_contrast():
    rng = np.random.default_rng(0)
    _, _, components = make_sparse_dictionary(10, 10, random_state=0)
    X = rng.laplace(size=(2000, 10)) @ components
    X += 0.1 * np.sqrt(np.mean(X**2)) * rng.standard_normal(X.shape)
    peer = FastICA(10, whiten="unit-variance", max_iter=500, random_state=0).fit(X).mixing_.T
    found = estimate(X, 10)
    match = match_components(found.components, components)
    assert np.median(match.errors) <= 1.05 * np.median(match_components(peer, components).errors)
    assert (match.errors < 3 * found.errors[match.permutation]).all()


def test_many_rows_begin_with_some():
    X, _, components, noise = noisy(4, 2500, 15)
    found = estimate(X, 4, noise)
    assert match_components(found.components, components).errors.max() < 0.03


def test_codes_are_drawn_from_their_posterior():
    """One component, where the posterior is known: the share of the spike and the moments of the codes."""
    generator, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    n, noise, component = 40_000, 0.5, np.array([[2.0, 0.0]])
    weights = np.zeros((1, len(SCALES)))
    weights[0, [SCALES.index(2.0), SCALES.index(0.0)]] = 0.5
    codes = rng.standard_normal((n, 1)) * np.sqrt(2.0) * (rng.random((n, 1)) < 0.5)
    X = codes @ component + noise * rng.standard_normal((n, 2))
    sampler = CodeSampler(X, np.zeros((1, n)), generator)
    shares = sampler.sweep(component, noise, weights)
    np.testing.assert_allclose(shares, weights, atol=0.01)
    assert np.mean(sampler.codes == 0) == pytest.approx(0.5, abs=0.01)
    assert np.mean(sampler.codes**2) == pytest.approx(1.0, abs=0.03)
    assert np.mean(sampler.residuals(component) ** 2) == pytest.approx(4 * noise**2, rel=0.03)


@pytest.mark.parametrize(
    ("X", "k", "message"),
    [
        (np.ones((5, 3)), 1, "n_components=1 must be at least 2"),
        (np.ones((5, 3)), 4, "at most 3"),
        (np.ones((5, 3)), 2, "more than the rank"),
        (np.zeros((5, 3)), 2, "more than the rank"),
    ],
)
def test_refuses(X, k, message):
    with pytest.raises(ValueError, match=message):
        estimate(X, k)


def test_every_draw_takes_the_generator():
    assert inspect.signature(estimate_under_noise).parameters["generator"].default is inspect.Parameter.empty


def test_components_whose_squares_are_rounding_are_not_asked_of_the_likelihood():
    X, _, _ = make_sparse_dictionary(150, 5, n_features=10, sparsity=0.3, random_state=0)
    with pytest.warns(ConvergenceWarning):  # rounding makes the rank 10
        sdr = SparseDictionaryRecovery(patience=2, random_state=0).fit(np.round(X, 6))
    assert sdr.components_.shape == (10, 10)
    assert not sdr.recovered_.any()


@pytest.mark.parametrize("seed", range(2))
def test_what_zeros_prove_is_not_lost_to_a_likelihood_that_is_slow(seed):
    X, _, components, noise = noisy(20, 15, 48, sparsity=0.34, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        sdr = SparseDictionaryRecovery(20, noise_level=noise, fit_intercept=False, patience=2, random_state=0).fit(X)
    assert sdr.recovered_.sum() >= 16
    assert np.median(match_components(sdr.components_, components).errors) < 0.03


def test_certain_components_of_an_ill_conditioned_dictionary_are_off_by_what_is_said():
    """The likelihood ends far from its maximum, and says a tenth of its error; the zeros contradict it."""
    n_certain = 0
    for seed, noise in [(seed, noise) for seed in (4, 8, 14) for noise in (2e-3, 3e-3)]:
        rng = np.random.default_rng(seed)
        codes = rng.standard_normal((500, 20)) * (rng.random((500, 20)) > 0.6)
        components = rng.standard_normal((20, 20))
        components /= np.linalg.norm(components, axis=1, keepdims=True)
        X = codes @ components + noise * np.random.default_rng(100 + seed).standard_normal((500, 20))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            sdr = SparseDictionaryRecovery(random_state=0, noise_level=noise).fit(X)
        match = match_components(sdr.components_, components)
        is_certain = sdr.certain_components_[match.permutation]
        errors = sdr.component_errors_[match.permutation]
        assert (match.errors[is_certain] < 3 * errors[is_certain]).all()
        n_certain += is_certain.all()
    assert n_certain >= 5

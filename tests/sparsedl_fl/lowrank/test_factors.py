from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import LayerGradient
from sparsedl_fl.lowrank import spectrum
from sparsedl_fl.lowrank.factorization import factorize
from sparsedl_fl.lowrank.factors import cut
from sparsedl_fl.lowrank.measured import precision_of
from sparsedl_fl.simulation import client_gradient, dp_sgd_gradient, fully_connected


def layer_gradient(D, X, noise=0.0, seed=0):
    """Return a layer whose gradient is ``D X^T`` plus noise; the weights do not matter here."""
    rng = np.random.default_rng(seed)
    G = D @ X.T
    G = G + noise * rng.standard_normal(G.shape)
    g = D.sum(axis=1) + noise * rng.standard_normal(len(D))
    return LayerGradient(rng.standard_normal(G.shape), rng.standard_normal(len(D)), G, g)


def factors_of(b, m=40, n=60, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, b)) * (rng.uniform(size=(m, b)) > 0.5), rng.standard_normal((n, b))


def test_factors_reproduce_the_gradient():
    given = layer_gradient(*factors_of(7))
    factors = factorize(given)
    assert factors.batch_size == 7
    product = factors.left * factors.singular_values @ factors.right
    np.testing.assert_allclose(product, given.weight_grad, atol=1e-12)
    np.testing.assert_allclose(factors.left.T @ factors.left, np.eye(7), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch_size", [1, 5, 32])
def test_batch_size_of_a_real_gradient(batch_size, dtype):
    batch = torch.rand(batch_size, 100, generator=torch.Generator().manual_seed(0), dtype=dtype)
    model = fully_connected(100, width=80, random_state=0).to(dtype)
    gradient = client_gradient(model, batch, torch.arange(batch_size) % 10)
    factors = factorize(LayerGradient.from_model(model, gradient))
    assert factors.batch_size == batch_size
    assert factors.signal_to_noise > 1e4


def test_duplicates_count_once():
    D, X = factors_of(4)
    X[:, 3] = X[:, 0]
    assert factorize(layer_gradient(D, X)).batch_size == 3


def test_noise_level_is_that_of_the_gradient():
    noisy = layer_gradient(*factors_of(5, m=60, n=200), noise=1e-3)
    factors = factorize(noisy, batch_size=5)
    assert np.sqrt(np.mean(factors.noise_level**2)) == pytest.approx(1e-3, rel=0.1)


@pytest.mark.parametrize("excess", [1.0, 3.0, 100.0])
def test_a_bias_gradient_that_is_noisier_than_the_weights_is_seen(excess):
    noisy = layer_gradient(*factors_of(5, m=200, n=400), noise=1e-6)
    more = 1e-6 * np.sqrt(excess**2 - 1) * np.random.default_rng(1).standard_normal(200)
    noisy = replace(noisy, bias_grad=noisy.bias_grad + more)
    assert factorize(noisy).bias_excess == pytest.approx(excess, rel=0.2)


def test_true_zeros_are_zeros_and_nothing_else_under_noise():
    D, X = factors_of(5, m=60, n=200)
    factors = factorize(layer_gradient(D, X, noise=1e-6), batch_size=5)
    Q = np.linalg.inv(X.T @ factors.right.T / factors.singular_values)
    np.testing.assert_array_equal(factors.zeros(Q / np.linalg.norm(Q, axis=0)), D == 0)


def test_an_uncertain_batch_size_is_said():
    with pytest.warns(UserWarning, match="the batch size is uncertain.*pass batch_size"):
        factorize(layer_gradient(*factors_of(5), noise=0.5))


def test_dp_noise_needs_the_batch_size():
    model = fully_connected(100, width=80, random_state=0)
    batch = torch.rand(6, 100, generator=torch.Generator().manual_seed(0))
    noisy = dp_sgd_gradient(model, batch, torch.arange(6), clipping=1.0, noise_std=1e-4, random_state=0)
    assert factorize(LayerGradient.from_model(model, noisy), batch_size=6).batch_size == 6


@pytest.mark.parametrize(
    ("batch_size", "message"),
    [
        (40, "as large as the layer"),
        (0, "batch_size must be a positive integer"),
        (2.0, "batch_size must be a positive integer"),
        (True, "batch_size must be a positive integer"),
    ],
)
def test_bad_batch_size_is_named(batch_size, message):
    with pytest.raises(ValueError, match=message):
        factorize(layer_gradient(*factors_of(5)), batch_size=batch_size)


def test_a_bias_gradient_of_another_batch_is_refused():
    given = layer_gradient(*factors_of(5))
    other = np.random.default_rng(1).standard_normal(40)
    with pytest.raises(ValueError, match="bias_grad does not lie in the column space of weight_grad"):
        factorize(LayerGradient(given.weight, given.bias, given.weight_grad, other))


def test_a_batch_size_beyond_the_rank_is_corrected():
    with pytest.warns(UserWarning, match="batch_size=8, but only 5 inputs show above the noise"):
        assert factorize(layer_gradient(*factors_of(5)), batch_size=8).batch_size == 5


@pytest.mark.parametrize("shape", [(400, 900), (900, 400)])
@pytest.mark.parametrize("batch_size", [None, 20])
def test_a_sketch_is_as_good_as_the_whole(shape, batch_size, monkeypatch):
    given = layer_gradient(*factors_of(20, *shape), noise=1e-6)
    sketched = factorize(given, batch_size)
    wide = partial(spectrum.leading_left, sketch_width=10_000, oversampling=10_000)
    monkeypatch.setattr("sparsedl_fl.lowrank.factorization.leading_left", wide)
    whole = factorize(given, batch_size)
    assert sketched.batch_size == whole.batch_size == 20
    np.testing.assert_allclose(sketched.singular_values, whole.singular_values, rtol=1e-10)
    product, exact = (f.left * f.singular_values @ f.right for f in (sketched, whole))
    np.testing.assert_allclose(product, exact, atol=1e-9)
    np.testing.assert_allclose(sketched.noise_level, whole.noise_level, rtol=1e-4)


def test_a_sketch_that_cannot_see_the_end_is_widened():
    assert factorize(layer_gradient(*factors_of(170, 400, 900), noise=1e-6)).batch_size == 170


def test_one_hot_columns_of_a_single_sample_do_not_end_the_batch():
    # Multiples of each other, to the last bit: what follows them in the spectrum is exactly zero.
    D, X = factors_of(6, m=50, n=20)
    X[10:] = 0
    X[10:14, 2] = 1.0
    G = (D @ X.T).astype(np.float32)
    given = LayerGradient(np.ones(G.shape), np.ones(50), G, D.sum(axis=1).astype(np.float32))
    assert factorize(given).batch_size == 6


def test_transposed_factors_are_those_of_the_transposed_gradient():
    factors = factorize(layer_gradient(*factors_of(5), noise=1e-3), batch_size=5)
    product = factors.transposed.left * factors.singular_values @ factors.transposed.right
    np.testing.assert_allclose(product.T, factors.left * factors.singular_values @ factors.right)
    assert factors.transposed.noise_level.shape == (60,)


def test_a_known_noise_level_is_taken():
    factors = factorize(layer_gradient(*factors_of(5), noise=1e-3), batch_size=5, noise_level=2e-3)
    np.testing.assert_array_equal(factors.noise_level, np.full(40, 2e-3))
    with pytest.raises(ValueError, match="noise_level must be a non-negative number or None, got -1"):
        factorize(layer_gradient(*factors_of(5)), noise_level=-1)


class TestCalibration:
    @pytest.fixture
    def problem(self):
        """Noise that is ten times larger along the inputs than beyond them."""
        D, X = factors_of(5, m=60, n=200)
        E = 1e-6 * np.random.default_rng(1).standard_normal((60, 200))
        E += 9 * E @ np.linalg.pinv(X.T) @ X.T
        factors = factorize(LayerGradient(np.ones(E.shape), np.ones(60), D @ X.T + E, D.sum(axis=1)), batch_size=5)
        Q = np.linalg.inv(X.T @ factors.right.T / factors.singular_values)
        return D == 0, factors, Q / np.linalg.norm(Q, axis=0)

    def test_the_zeros_found_show_the_noise(self, problem):
        zeros, factors, Q = problem
        calibrated = factors.calibrated(Q)
        assert 5 < np.mean(calibrated.noise_level / factors.noise_level) < 20
        np.testing.assert_array_equal(calibrated.zeros(Q), zeros)
        assert np.sum(factors.zeros(Q)) < np.sum(zeros)

    def test_it_never_lowers_and_needs_a_clear_gap(self, problem):
        _, factors, Q = problem
        dense = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]
        for directions in (dense, Q[:, :0]):
            np.testing.assert_array_equal(factors.calibrated(directions).noise_level, factors.noise_level)


def test_likely_zeros_cut_closer_under_noise_alone():
    D, X = factors_of(5, m=60, n=200)
    for noise, differ in ((1e-7, False), (0.1, True)):
        factors = factorize(layer_gradient(D, X, noise=noise), batch_size=5)
        Q = np.linalg.inv(X.T @ factors.right.T / factors.singular_values)
        Q /= np.linalg.norm(Q, axis=0)
        assert (factors.likely_zeros(Q).sum() < factors.zeros(Q).sum()) == differ
        assert np.mean(factors.likely_zeros(Q) == (D == 0)) > 0.9


@pytest.mark.parametrize("scale", ["none", "tensor", "rows"])
def test_numbers_that_were_single_once_are_no_more_precise(scale):
    rng = np.random.default_rng(0)
    factor = {"none": 1.0, "tensor": 1 / 3, "rows": rng.standard_normal((20, 1))}[scale]
    single = rng.standard_normal((20, 30)).astype(np.float32) * np.float64(1)
    assert precision_of(single * factor) == np.finfo(np.float32).eps
    assert precision_of((single + 1e-3 * rng.standard_normal((20, 30))) * factor) == np.finfo(float).eps


def test_a_gradient_with_hardly_a_row_has_a_precision():
    few = np.zeros((5, 40))
    few[:2] = np.random.default_rng(0).standard_normal((2, 40))
    assert precision_of(few) == np.finfo(float).eps
    few[0] = np.arange(40) / 3
    few[1] = 0
    assert precision_of(few) == np.finfo(np.float32).eps


@pytest.mark.parametrize("b", [8, 32])
def test_one_hot_rows_behind_evaluated_batch_norm_are_counted(b):
    """Columns of one-hot rows are multiples of each other, and what is left of these is the rounding of doubles."""
    rng = np.random.default_rng(b)
    rows = [np.eye(k)[rng.integers(k, size=b)] for k in (7, 5, 16, 2, 6, 9, 40)]
    inputs = torch.tensor(np.hstack(rows), dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(inputs.shape[1], 200), nn.BatchNorm1d(200), nn.ReLU(), nn.Linear(200, 2))
        model.train()(torch.randn(64, inputs.shape[1]))
    gradients = client_gradient(model.eval(), inputs, torch.tensor(rng.integers(2, size=b)))
    assert factorize(LayerGradient.from_model(model, gradients, 0)).batch_size == np.linalg.matrix_rank(inputs.numpy())


def test_right_vectors_are_orthonormal_over_eight_decades():
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 20)))[0] for n in (100, 64))
    G = (left * 0.4 ** np.arange(20)) @ right.T
    U, S, _ = np.linalg.svd(G)
    factors = cut(G, U[:, :21], S[:21], 20)
    np.testing.assert_allclose(factors.right @ factors.right.T, np.eye(20), atol=1e-14)
    np.testing.assert_allclose((factors.left * factors.singular_values) @ factors.right, G, atol=1e-15)

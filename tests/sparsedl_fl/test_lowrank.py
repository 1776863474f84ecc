import numpy as np
import pytest
import torch

from sparsedl_fl import LayerGradient
from sparsedl_fl.lowrank import factorize
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


def test_batch_size_beyond_the_rank_is_refused():
    with pytest.raises(ValueError, match="batch_size=8 is more than the rank of weight_grad"):
        factorize(layer_gradient(*factors_of(5)), batch_size=8)

import numpy as np
import pytest

from sparsedl_fl import LayerGradient
from sparsedl_fl.activations import ReLU
from sparsedl_fl.certify.maximum_likelihood import active_units, maximum_likelihood

NOISE = 1e-2


@pytest.fixture
def problem():
    """A noisy gradient of a known batch."""
    rng = np.random.default_rng(0)
    W, X = rng.standard_normal((80, 40)) / np.sqrt(40), rng.standard_normal((6, 40))
    active = W @ X.T > 0
    D = rng.standard_normal((80, 6)) * active
    G = D @ X + NOISE * rng.standard_normal((80, 40))
    g = D.sum(axis=1) + NOISE * rng.standard_normal(80)
    return X, D, active, LayerGradient(W, np.zeros(80), G, g)


def objective(given, gradients, inputs):
    misfit = np.sum((given.weight_grad - gradients @ inputs) ** 2)
    return misfit + np.sum((given.bias_grad - gradients.sum(axis=1)) ** 2)


def test_the_pattern_is_known_from_both_sides(problem):
    X, D, active, given = problem
    rough = X + 0.05 * np.random.default_rng(1).standard_normal(X.shape)
    noisy = D + NOISE * np.random.default_rng(2).standard_normal(D.shape)
    found = active_units(noisy, np.full(6, NOISE), given.preactivations(rough), ReLU())
    assert np.mean(found == active) > 0.98
    # A gradient that is plainly there is never set to zero.
    assert found[np.abs(noisy) > 10 * NOISE].all()


def test_it_is_likelier_than_the_truth_and_nearer_than_the_start(problem):
    X, D, _, given = problem
    rough = X + 0.05 * np.random.default_rng(1).standard_normal(X.shape)
    gradients, inputs, preactivations = maximum_likelihood(given, rough, np.full(80, NOISE), ReLU())
    assert objective(given, gradients, inputs) < objective(given, D, X)
    assert np.linalg.norm(inputs - X) < 0.5 * np.linalg.norm(rough - X)
    np.testing.assert_allclose(preactivations, given.weight @ inputs.T, atol=1e-12)


def test_the_truth_without_noise_stays(problem):
    X, D, _, given = problem
    clean = LayerGradient(given.weight, given.bias, D @ X, D.sum(axis=1))
    gradients, inputs, _ = maximum_likelihood(clean, X, np.full(80, 1e-9), ReLU())
    np.testing.assert_allclose(inputs, X, atol=1e-9)
    np.testing.assert_allclose(gradients, D, atol=1e-9)

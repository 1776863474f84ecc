import numpy as np
import pytest

from sparsedl.preconditioning import whiten


def test_whitens_and_returns():
    X = np.random.default_rng(0).standard_normal((50, 6)) @ np.diag([1, 2, 3, 4, 5, 100.0])
    whitening = whiten(X)
    np.testing.assert_allclose(whitening.whitened.T @ whitening.whitened, 50 * np.eye(6), atol=1e-9)
    np.testing.assert_allclose(whitening.whitened @ whitening.mixing, X, atol=1e-10)
    np.testing.assert_allclose(X @ whitening.unmixing, whitening.whitened, atol=1e-10)


def test_noise_level_beyond_the_components():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 3)) @ rng.standard_normal((3, 60)) + 0.01 * rng.standard_normal((400, 60))
    noise = whiten(X, 3).noise_level
    assert np.sqrt(np.mean(noise**2)) == pytest.approx(0.01, rel=0.05)


def test_given_noise_level_wins_but_not_below_the_rounding():
    X = np.random.default_rng(0).standard_normal((50, 6))
    np.testing.assert_allclose(whiten(X, noise_level=0.1).noise_level, 0.1)
    np.testing.assert_allclose(whiten(X, noise_level=np.arange(50.0) + 1).noise_level, np.arange(50.0) + 1)
    assert (whiten(X, noise_level=0.0).noise_level > 0).all()


def test_rank_of_float32_data():
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((80, 5)) @ rng.standard_normal((5, 20))).astype(np.float32)
    assert whiten(X).whitened.shape == (80, 5)

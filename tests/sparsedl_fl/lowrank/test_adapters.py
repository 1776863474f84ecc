"""The gradient of a layer from those of an adapter's two factors."""

import numpy as np
import pytest

from sparsedl_fl.lowrank.adapters import NotDetermined, gradient_of_product

M, N, SCALE = 80, 40, 2.0


def client(b, r, seed=0, dtype=np.float32):
    """Return inputs, columns, and both factors with their gradients, (r, n) and (m, r) each."""
    rng = np.random.default_rng(seed)
    inputs, columns = rng.standard_normal((b, N)), np.maximum(rng.standard_normal((M, b)), 0)
    first, second = rng.uniform(-1, 1, (r, N)), 0.01 * rng.standard_normal((M, r))
    G = columns @ inputs
    of_first, of_second = (SCALE * part for part in (second.T @ G, G @ first.T))
    rounded = (part.astype(dtype).astype(np.float64) for part in (of_first, of_second))
    return inputs, columns, (*rounded, first, second, SCALE)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("b", "r"), [(1, 4), (4, 8), (8, 9), (20, 32)])
def test_both_factors_show_the_whole_gradient(b, r, seed):
    inputs, columns, given = client(b, r, seed)
    found = gradient_of_product(*given)
    assert found.rank == b
    G = columns @ inputs
    assert np.linalg.norm(found.gradient - G) < 1e-3 * np.linalg.norm(G)
    assert np.linalg.svd(found.gradient, compute_uv=False)[b] > 0  # noise, for those who look for it there


@pytest.mark.parametrize("seed", range(5))
def test_errors_are_about_as_large_as_the_noise_that_is_drawn(seed):
    inputs, columns, given = client(6, 16, seed)
    found = gradient_of_product(*given)
    U, S, V = np.linalg.svd(found.gradient, full_matrices=False)
    cleaned = (U[:, :6] * S[:6]) @ V[:6]
    drawn, true = np.std(found.gradient - cleaned), np.std(cleaned - columns @ inputs)
    assert true < 3 * drawn
    assert drawn < 100 * true


def test_a_power_of_two_changes_nothing():
    _, _, (of_first, of_second, *others) = client(4, 8)
    found, scaled = (
        gradient_of_product(factor * of_first, factor * of_second, *others).gradient for factor in (1.0, 2.0**-40)
    )
    np.testing.assert_array_equal(found * 2.0**-40, scaled)


def test_as_many_inputs_as_the_rank_need_a_bias_or_their_number():
    inputs, columns, given = client(8, 8)
    with pytest.raises(NotDetermined, match="8 inputs"):
        gradient_of_product(*given)
    for known in ({"bias_grad": columns.sum(axis=1)}, {"batch_size": 8}):
        found = gradient_of_product(*given, **known)
        assert np.linalg.norm(found.gradient - columns @ inputs) < 1e-2 * np.linalg.norm(columns @ inputs)


def test_more_inputs_than_the_rank_are_not_determined():
    _, columns, given = client(9, 8)
    for known in ({}, {"bias_grad": columns.sum(axis=1)}, {"batch_size": 9}):
        with pytest.raises(NotDetermined, match="rank 8"):
            gradient_of_product(*given, **known)


def test_a_second_factor_of_zeros_shows_the_products_with_the_first_alone():
    _, _, (_, of_second, first, second, scale) = client(4, 8)
    with pytest.raises(NotDetermined, match="second factor is zero"):
        gradient_of_product(np.zeros_like(first), of_second, first, 0 * second, scale)


def test_a_second_factor_of_too_low_a_rank_loses_inputs():
    inputs, columns, (_, of_second, first, second, scale) = client(6, 12)
    poor = second[:, :2] @ np.random.default_rng(1).standard_normal((2, 12))
    with pytest.raises(NotDetermined):
        gradient_of_product(scale * poor.T @ columns @ inputs, of_second, first, poor, scale)


def test_factors_of_other_weights_are_told():
    _, _, (of_first, of_second, first, second, scale) = client(4, 8)
    with pytest.raises(NotDetermined, match="do not belong together"):
        gradient_of_product(of_first, of_second, first, second[::-1], scale)

"""Where the batch ends in the singular values, by a sketch and without one."""

import numpy as np
import pytest

from sparsedl_fl.lowrank.spectrum import leading_left, rank_above_rounding, rank_above_white_noise


def gradient(rank, shape=(60, 90), noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    product = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    return product + noise * rng.standard_normal(shape)


@pytest.mark.parametrize("rank", [1, 7, 40])
@pytest.mark.parametrize("shape", [(60, 90), (90, 60)])
def test_the_rank_is_where_the_gap_is(rank, shape):
    G = gradient(rank, shape, 1e-9)
    left, values, found = leading_left(G, None, 60)
    assert found == rank
    exact = np.linalg.svd(G)
    np.testing.assert_allclose(values[:rank], exact[1][:rank], rtol=1e-10)
    projector = left[:, :rank] @ left[:, :rank].T
    np.testing.assert_allclose(projector, exact[0][:, :rank] @ exact[0][:, :rank].T, atol=1e-7)


def test_a_wide_gradient_is_sketched_with_the_same_result():
    G = gradient(12, (500, 600), 1e-8)
    left, values, found = leading_left(G, None, 500)
    assert found == 12
    assert left.shape[1] < 300
    np.testing.assert_allclose(values[:12], np.linalg.svd(G, compute_uv=False)[:12], rtol=1e-9)


def test_a_size_that_is_given_is_taken():
    assert leading_left(gradient(9, noise=1e-3), 5, 60)[2] == 5


@pytest.mark.parametrize("rank", [2, 10])
def test_rounding_of_known_size_is_told_from_inputs(rank):
    G = gradient(rank)
    step = 1e-2 * np.abs(G).max()
    rounded = step * np.rint(G / step)
    assert rank_above_rounding(rounded, np.full(60, step / 12**0.5)) == rank


@pytest.mark.parametrize("seed", range(3))
def test_inputs_far_smaller_than_the_others_are_counted_as_long_as_they_are_no_noise(seed):
    rng = np.random.default_rng(seed)
    sizes = np.array([1.0, 0.5, 0.1, 3e-6, 1e-6])
    G = (rng.standard_normal((60, 5)) * sizes) @ rng.standard_normal((5, 90)) + 1e-9 * rng.standard_normal((60, 90))
    S = np.linalg.svd(G, compute_uv=False)
    assert leading_left(G, None, 60)[2] == 3
    assert rank_above_white_noise(S, 3, G) == 5


def test_where_noise_never_begins_the_rank_stays():
    S = 0.01 ** np.arange(7.0)
    assert rank_above_white_noise(S, 1, np.diag(S)) == 1


@pytest.mark.parametrize("rank", [3, 97, 110, 140, 240])
def test_a_sketch_is_as_wide_as_the_batch_needs(rank):
    G = gradient(rank, (700, 900), 1e-8)
    left, values, found = leading_left(G, None, 700)
    assert found == rank
    assert left.shape[1] == rank + 32
    np.testing.assert_allclose(values[:rank], np.linalg.svd(G, compute_uv=False)[:rank], rtol=1e-9)


def test_a_sketch_reaches_beyond_a_second_gap():
    """Inputs whose gradients are far smaller than those before them: the sketch ends where noise begins."""
    rng = np.random.default_rng(0)
    sizes = np.concatenate([np.ones(6), np.full(20, 1e-4)])
    G = (rng.standard_normal((500, 26)) * sizes) @ rng.standard_normal((26, 600)) + 1e-9 * rng.standard_normal(
        (500, 600)
    )
    left, values, found = leading_left(G, None, 500)
    assert left.shape[1] == 26 + 32
    assert rank_above_white_noise(values, found, G) == 26


@pytest.mark.parametrize("seed", range(3))
def test_where_the_spectrum_falls_evenly_to_rounding_all_above_it_count(seed):
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((n, 20)))[0] for n in (100, 64))
    G = ((left * 0.43 ** np.arange(20)) @ right.T).astype(np.float32).astype(float)
    S = np.linalg.svd(G, compute_uv=False)
    assert leading_left(G, None, 64)[2] == 20
    assert rank_above_white_noise(S, 1, G) == 20
    assert rank_above_white_noise(S, 17, G) == 17


def test_noise_above_rounding_is_no_sample():
    G = gradient(1, (60, 60), 1e-3)
    assert rank_above_white_noise(np.linalg.svd(G, compute_uv=False), 1, G) == 1

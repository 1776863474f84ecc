"""Completion of gradients of which some entries are exact."""

import numpy as np
import pytest

from sparsedl_fl.lowrank.completion import complete
from sparsedl_fl.lowrank.filter_traces import exact_entries


def low_rank(shape=(120, 300), rank=12, seed=0):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    return matrix.astype(np.float32).astype(np.float64)


def filtered(matrix, zeroed=0.0, clipped=1.0):
    """Zero the smallest entries, and clip the largest."""
    moduli = np.abs(matrix)
    low, high = np.quantile(moduli, [zeroed, clipped])
    return np.clip(np.where(moduli > low if zeroed else True, matrix, 0.0), -high, high)


@pytest.mark.parametrize(
    "rank", [2, pytest.param(5, marks=pytest.mark.slow), 12, pytest.param(21, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("zeroed", "clipped"), [(0.1, 1.0), (0.5, 1.0), (0.0, 0.9), (0.5, 0.95)])
def test_rank_and_matrix_come_back(rank, zeroed, clipped):
    matrix = low_rank(rank=rank)
    seen = filtered(matrix, zeroed, clipped)
    found = complete(seen, exact_entries(seen))
    assert found.rank == rank
    closed = np.ix_(~found.open_rows, ~found.open_columns)
    error = np.linalg.norm((found.left @ found.right - matrix)[closed]) / np.linalg.norm(matrix[closed])
    assert error < 1e-6
    assert error < 10 * found.error


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_a_random_mask(share):
    matrix, rng = low_rank(), np.random.default_rng(1)
    seen = np.where(rng.random(matrix.shape) < share, 0.0, matrix)
    found = complete(seen, exact_entries(seen))
    assert found.rank == 12
    np.testing.assert_allclose(found.left @ found.right, matrix, atol=1e-4)


def test_rows_and_columns_with_few_entries_stay_open():
    matrix, rng = low_rank(), np.random.default_rng(2)
    known = rng.random(matrix.shape) < 0.5
    known[3, 5:], known[7:, 9] = False, False
    found = complete(np.where(known, matrix, 0.0), known)
    assert np.flatnonzero(found.open_rows).tolist() == [3]
    assert np.flatnonzero(found.open_columns).tolist() == [9]


def test_zeros_of_the_matrix_itself_are_known():
    rng = np.random.default_rng(5)
    left, right = rng.standard_normal((120, 6)), rng.standard_normal((6, 300))
    left[:30, 1:], right[0, :80], right[:, 120] = 0.0, 0.0, 0.0  # inactive units, features of few inputs, and of none
    matrix = left @ right
    seen = filtered(matrix, clipped=0.98)
    found = complete(seen, exact_entries(seen))
    np.testing.assert_allclose(found.left @ found.right, matrix, atol=1e-4)
    assert not found.open_columns.any()


@pytest.mark.parametrize("rank", [5, 40])
def test_a_matrix_of_low_rank_with_zeros_was_not_filtered(rank):
    rng = np.random.default_rng(3)
    left, right = np.maximum(rng.standard_normal((120, rank)), 0), np.maximum(rng.standard_normal((rank, 300)), 0)
    left[left < 1.5], right[right < 1.5] = 0.0, 0.0
    matrix = left @ right
    assert np.mean(matrix == 0) > 0.1
    entries = exact_entries(matrix)
    assert entries is None or complete(matrix, entries) is None


def test_noise_of_full_rank_is_not_completed():
    noise = np.random.default_rng(4).standard_normal((60, 90))
    seen = filtered(noise, zeroed=0.3)
    assert complete(seen, exact_entries(seen)) is None


def test_units_change_nothing():
    seen = filtered(low_rank(), 0.3, 0.95)
    one, other = (complete(part, exact_entries(part)) for part in (seen, 2.0**-30 * seen))
    assert one.rank == other.rank
    np.testing.assert_allclose(2.0**30 * other.left @ other.right, one.left @ one.right, rtol=1e-6, atol=1e-9)

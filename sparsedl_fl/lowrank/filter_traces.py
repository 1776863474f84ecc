"""Which entries of a gradient a filter left as they were, and whether one was at work at all."""

from __future__ import annotations

import numpy as np

__all__ = ["exact_entries", "numerical_rank"]

SCATTERED, CLIPPED = 0.01, 8
"""Least share of zeros outside rows and columns of zeros, and least number of entries of the largest size, that a
filter may have left."""

LOW_RANK, BLOCK = 1e-5, 512
"""Singular value over the largest, up to which it is rounding; and rows and columns that are looked at. A matrix with
zeros that has a low rank as it is was not filtered."""


def exact_entries(matrix: np.ndarray) -> np.ndarray | None:
    """Return which entries a filter left as they were, of shape (m, n), or None where no filter shows.

    Zeros and entries of the largest size may be a filter's, unless the matrix has a low rank with them: inactive units
    and features that are zero leave zeros too.
    """
    moduli = np.abs(matrix)
    rows, columns = matrix.any(axis=1), matrix.any(axis=0)
    alive = moduli[rows][:, columns]
    largest = (1 - 1e-6) * alive.max()
    has_clipped = np.sum(alive >= largest) >= CLIPPED
    has_zeros = np.mean(alive == 0) > SCATTERED and not _is_low_rank(matrix[rows][:, columns])
    if not (has_zeros or has_clipped):
        return None
    return (moduli > 0) & ((moduli < largest) | (not has_clipped))


def _is_low_rank(matrix: np.ndarray) -> bool:
    """Return whether half of the singular values of a block are rounding."""
    return 2 * numerical_rank(matrix) <= min(BLOCK, *matrix.shape)


def numerical_rank(matrix: np.ndarray) -> int:
    """Return the number of singular values of a block above rounding."""
    rng = np.random.default_rng(0)
    rows, columns = (np.sort(rng.permutation(size)[:BLOCK]) for size in matrix.shape)
    S = np.linalg.svd(matrix[np.ix_(rows, columns)], compute_uv=False)
    return int(np.sum(LOW_RANK * S[0] < S))

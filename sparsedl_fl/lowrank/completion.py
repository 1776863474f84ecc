"""Completion of a gradient of which a filter left some entries exact: low-rank fitting on these.

Filters zero small entries and clip large ones; what they leave is exact, and the gradient has the rank of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import svd

__all__ = ["Completion", "complete"]

RANKS = (8, 16, 32, 64, 96)
"""Ranks that are tried where the batch size is not known; the true one shows within the first that fits."""

SPARE = 4
"""Known entries of a row or column beyond the rank, below which it stays open."""

MOST_FREEDOM = 0.6
"""Share of free numbers among known entries, above which a rank is not tried."""

HELD_OUT = 0.02
"""Share of the known entries that the fit does not see."""

FITS = 1e-4
"""Error of these, relative to all, up to which a rank fits: the rounding of single precision is 1e-7."""

CLEAR_GAP = 30.0
"""Ratio of singular values beyond which the later ones are not of the batch."""

N_SWEEPS, STALLED = 200, 0.97
"""Sweeps of alternating least squares, and the ratio of two residuals ten sweeps apart from which on it has stalled."""


@dataclass(frozen=True)
class Completion:
    """A completed matrix.

    Attributes
    ----------
    left, right : ndarray of shape (m, b) and (b, n)
        Its factors; zero in rows and columns that stay open.
    open_rows, open_columns : ndarray of bool
        With too few known entries.
    error : float
        Root mean square error of entries that were held out, relative to the known ones.
    """

    left: np.ndarray
    right: np.ndarray
    open_rows: np.ndarray
    open_columns: np.ndarray
    error: float


def complete(matrix: np.ndarray, known: np.ndarray, rank: int | None = None) -> Completion | None:
    """Fit a low rank to the known entries of a matrix, with the rank from entries held out; None where nothing fits.

    Parameters
    ----------
    matrix : ndarray of shape (m, n)
        Any numbers where not known.
    known : ndarray of shape (m, n) of bool
        Entries that are exact.
    rank : int or None, default=None
        The rank, where it is known.
    """
    rng = np.random.default_rng(0)
    seen = known & (rng.random(known.shape) >= HELD_OUT)
    for tried in RANKS if rank is None else (rank,):
        rows, columns = _enough(seen, tried)
        n_free = tried * (rows.sum() + columns.sum() - tried)
        part = np.ix_(rows, columns)
        if min(rows.sum(), columns.sum()) <= tried or n_free > MOST_FREEDOM * seen[part].sum():
            return None
        left, right = _fitted(matrix[part], seen[part], tried)
        if _error(matrix[part], known[part] & ~seen[part], left, right) > FITS:
            continue
        if rank is None:
            found = _rank_of(left, right)
            if found < tried:
                left, right = _fitted(matrix[part], seen[part], found, (left, right))
        error = _error(matrix[part], known[part] & ~seen[part], left, right)
        left, right = _polished(matrix[part], known[part], left, right)
        whole_left, whole_right = np.zeros((len(matrix), left.shape[1])), np.zeros((right.shape[1], matrix.shape[1]))
        whole_left[rows], whole_right[:, columns] = left, right.T
        return Completion(whole_left, whole_right, ~rows, ~columns, error)
    return None


def _enough(known: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns with enough known entries among each other."""
    rows, columns = (np.ones(size, dtype=bool) for size in known.shape)
    while True:
        part = known & rows[:, None] & columns
        kept = part.sum(axis=1) >= rank + SPARE, part.sum(axis=0) >= rank + SPARE
        if (kept[0] == rows).all() and (kept[1] == columns).all():
            return rows, columns
        rows, columns = kept


def _fitted(
    matrix: np.ndarray, known: np.ndarray, rank: int, start: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return factors of shape (m, r) and (n, r) by alternating least squares, with a ridge that vanishes."""
    filled = np.where(known, matrix, 0.0)
    if start is not None:
        filled = start[0] @ start[1].T
    U, S, V = svd(filled, full_matrices=False, check_finite=False)
    left, right = U[:, :rank] * np.sqrt(S[:rank]), V[:rank].T * np.sqrt(S[:rank])
    weights, values = known.astype(float), np.where(known, matrix, 0.0)
    ridge, past = 1e-6, [np.inf]
    for sweep in range(N_SWEEPS):
        left = _solved(weights, values, right, ridge)
        right = _solved(weights.T, values.T, left, ridge)
        residual = np.linalg.norm(weights * (left @ right.T) - values) / np.linalg.norm(values)
        past.append(residual)
        ridge = max(0.5 * ridge, 1e-14)
        if residual < 1e-9 or (sweep > 20 and residual > STALLED * past[-11]):
            break
    return left, right


def _polished(matrix, known, left, right, n=3):
    weights, values = known.astype(float), np.where(known, matrix, 0.0)
    for _ in range(n):
        left = _solved(weights, values, right, 1e-15)
        right = _solved(weights.T, values.T, left, 1e-15)
    return left, right


def _solved(weights: np.ndarray, values: np.ndarray, factor: np.ndarray, ridge: float) -> np.ndarray:
    """Return the rows of the other factor, each by least squares on its known entries."""
    n, r = factor.shape
    i, j = np.triu_indices(r)
    products = weights @ (factor[:, i] * factor[:, j])
    grams = np.empty((len(weights), r, r))
    grams[:, i, j] = products
    grams[:, j, i] = products
    traces = np.trace(grams, axis1=1, axis2=2) / r
    grams[:, range(r), range(r)] += ridge * np.maximum(traces, 1e-9 * traces.max())[:, None]
    return np.linalg.solve(grams, (values @ factor)[..., None])[..., 0]


def _error(matrix: np.ndarray, entries: np.ndarray, left: np.ndarray, right: np.ndarray) -> float:
    row, column = np.nonzero(entries)
    truth = matrix[row, column]
    return float(np.linalg.norm(np.sum(left[row] * right[column], axis=1) - truth) / np.linalg.norm(truth))


def _rank_of(left: np.ndarray, right: np.ndarray) -> int:
    """Return the rank of a product at its largest gap, or the number of columns where there is no large one."""
    S = np.linalg.svd(np.linalg.qr(left, mode="r") @ np.linalg.qr(right, mode="r").T, compute_uv=False)
    ratios = S[:-1] / np.maximum(S[1:], 1e-9 * S[0])
    return int(np.argmax(ratios)) + 1 if len(ratios) and ratios.max() > CLEAR_GAP else len(S)

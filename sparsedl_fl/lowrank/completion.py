"""Completion of a gradient of which a filter left some entries exact: low-rank fitting on these.

Filters zero small entries and clip large ones; what they leave is exact, and the gradient has the rank of the batch.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from scipy.linalg import svd

from sparsedl_fl.lowrank.filter_traces import numerical_rank
from sparsedl_fl.lowrank.weighted_grams import weighted_grams

__all__ = ["Completion", "complete"]

N_GAPS, GAP = 3, 1.5
"""Gaps of the singular values at which ranks are tried first, and their least ratio."""

SPARE = 4
"""Known entries of a row or column beyond the rank, below which it stays open. (With four the worst column of 24
batches of CIFAR-10 was off by 2e-7, half of the entries zeroed and up to a tenth clipped; not varied.)"""

MOST_FREEDOM = 0.6
"""Share of free numbers among known entries, above which a rank is not tried."""

HELD_OUT = 0.02
"""Share of the known entries that the fit does not see."""

FITS, GENERALISES, ROUNDING = 1e-4, 10.0, 1e-6
"""Error of what the fit sees, relative to it, up to which a rank explains it (single precision rounds to 1e-7); and of
what was held out, over that and at least, up to which the rank is no larger than the true one. (35 digits fitted
with rank 35 and 40: 7e-8 and 6e-8 of what is seen, 9e-8 and 1.5e-2 of what was held out. The factor is not varied.)"""

ZERO = 1e-6
"""Size of a fitted entry over the others up to which it is zero."""

CLEAR_GAP = 30.0
"""Ratio of singular values beyond which the later ones are not of the batch."""

N_SWEEPS, N_POLISHED, STALLED = 200, 5, 0.97
"""Sweeps of alternating least squares from the singular vectors and from a fit, and the ratio of two residuals ten
sweeps apart from which on it has stalled."""

LEAST_RIDGE = 1e-14
"""Of the normal equations of a row, relative to their mean eigenvalue."""


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

    @property
    def rank(self) -> int:
        """The number of inputs."""
        return self.left.shape[1]


def complete(matrix: np.ndarray, known: np.ndarray, first: int | None = None) -> Completion | None:
    """Fit a low rank to the known entries of a matrix, with the rank from entries held out.

    Where what is fitted to a zero that was not known is zero, it is of the matrix and not of a filter; where that holds
    for all, those in open rows and columns are, too.

    Parameters
    ----------
    matrix : ndarray of shape (m, n)
        Any numbers where not known; zero where a filter may have zeroed them.
    known : ndarray of shape (m, n) of bool
        Entries that are exact.
    first : int or None, default=None
        A rank to try first, that of another layer.

    Returns
    -------
    Completion or None
        None where no rank below the matrix' own fits.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> matrix = rng.standard_normal((60, 5)) @ rng.standard_normal((5, 80))
    >>> filtered = np.where(np.abs(matrix) > 0.5, matrix, 0.0)
    >>> found = complete(filtered, filtered != 0)
    >>> found.rank, bool(np.allclose(found.left @ found.right, matrix))
    (5, True)
    """
    found = _completed(matrix, known, first)
    if found is None or found.rank >= numerical_rank(matrix):
        return None
    zeros = (matrix == 0) & ~known & ~found.open_rows[:, None] & ~found.open_columns
    if not zeros.any():
        return found
    sizes = np.abs(found.left @ found.right)
    is_zero = zeros & (sizes <= ZERO * np.sqrt(np.mean(sizes[known] ** 2)))
    exact = known | (matrix == 0 if is_zero.sum() == zeros.sum() else is_zero)
    return _Fit(matrix, exact).of(found.rank) or found


def _completed(matrix: np.ndarray, known: np.ndarray, first: int | None) -> Completion | None:
    """Return the fit at the first of some likely ranks that fits, else at the one that bisection finds."""
    fit = _Fit(matrix, known)
    likely = ([] if first is None else [first]) + _at_gaps(matrix, known)
    found = next(filter(None, map(fit.of, likely)), None)
    low, high, most = 0, 1, fit.highest_rank
    # Too low a rank leaves unexplained what the fit sees, too high a one what was held out.
    while found is None and most:
        high = min(high, most)
        found = fit.of(high)
        if fit.explains or found is not None:
            break
        if high >= most:
            return None
        low, high = high, 2 * high
    while found is None and high - low > 1:
        middle = (low + high) // 2
        found = fit.of(middle)
        low, high = (low, middle) if fit.explains else (middle, high)
    return found


def _at_gaps(matrix: np.ndarray, known: np.ndarray) -> list[int]:
    """Return ranks at the largest gaps of a matrix with zeros for what is not known."""
    S = np.linalg.svd(np.where(known, matrix, 0.0), compute_uv=False)
    S = S[: max(2, len(S) // 2)]
    gaps = S[:-1] / np.maximum(S[1:], np.finfo(float).tiny)
    return [int(k) + 1 for k in np.argsort(-gaps)[:N_GAPS] if gaps[k] > GAP]


class _Fit:
    """Fits of several ranks to the entries of a matrix but those held out."""

    def __init__(self, matrix: np.ndarray, known: np.ndarray) -> None:
        self.matrix, self.known, self.explains = matrix, known, False
        self.seen = known & (np.random.default_rng(0).random(known.shape) >= HELD_OUT)

    def freedom(self, rank: int) -> float:
        """Return the share of free numbers among known entries."""
        rows, columns = _enough(self.seen, rank)
        if min(rows.sum(), columns.sum()) <= rank + SPARE:
            return np.inf
        return rank * (rows.sum() + columns.sum() - rank) / self.seen[np.ix_(rows, columns)].sum()

    @property
    def highest_rank(self) -> int:
        """Return the highest rank with few enough free numbers, or zero."""
        ranks = range(1, min(self.known.shape) + 1)
        return bisect_right(ranks, MOST_FREEDOM, key=self.freedom)

    def of(self, rank: int) -> Completion | None:
        """Return the completion, or None where the entries that were held out do not fit."""
        self.explains = False
        if self.freedom(rank) > MOST_FREEDOM:
            return None
        rows, columns = _enough(self.seen, rank)
        part = np.ix_(rows, columns)
        matrix, known, seen = self.matrix[part], self.known[part], self.seen[part]
        left, right = _fitted(matrix, seen, rank)
        explained, held_out = (_error(matrix, part, left, right) for part in (seen, known & ~seen))
        self.explains = explained <= FITS
        if not self.explains or held_out > max(GENERALISES * explained, ROUNDING):
            return None
        reduced = _rank_of(left, right)
        if reduced < rank:
            left, right = _fitted(matrix, seen, reduced, (left, right))
        error = _error(matrix, known & ~seen, left, right)
        left, right = _fitted(matrix, known, left.shape[1], (left, right))
        whole_left, whole_right = np.zeros((len(rows), left.shape[1])), np.zeros((left.shape[1], len(columns)))
        whole_left[rows], whole_right[:, columns] = left, right.T
        return Completion(whole_left, whole_right, ~rows, ~columns, error)


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
    filled = np.where(known, matrix, 0.0) if start is None else start[0] @ start[1].T
    U, S, V = svd(filled, full_matrices=False, check_finite=False)
    left, right = U[:, :rank] * np.sqrt(S[:rank]), V[:rank].T * np.sqrt(S[:rank])
    weights, values = known.astype(float), np.where(known, matrix, 0.0)
    ridge, past = (1e-6, [np.inf]) if start is None else (LEAST_RIDGE, [np.inf])
    for sweep in range(N_SWEEPS if start is None else N_POLISHED):
        left = _solved(weights, values, right, ridge)
        right = _solved(weights.T, values.T, left, ridge)
        residual = float(np.linalg.norm(weights * (left @ right.T) - values) / np.linalg.norm(values))
        past.append(residual)
        ridge = max(0.5 * ridge, LEAST_RIDGE)
        if residual < 1e-9 or (sweep > 20 and residual > STALLED * past[-11]):
            break
    return left, right


def _solved(weights: np.ndarray, values: np.ndarray, factor: np.ndarray, ridge: float) -> np.ndarray:
    """Return the rows of the other factor, each by least squares on its known entries."""
    grams, r = weighted_grams(weights, factor), factor.shape[1]
    traces = np.trace(grams, axis1=1, axis2=2) / r
    grams[:, range(r), range(r)] += ridge * np.maximum(traces, 1e-9 * traces.max())[:, None]
    return np.linalg.solve(grams, (values @ factor)[..., None])[..., 0]


def _error(matrix: np.ndarray, entries: np.ndarray, left: np.ndarray, right: np.ndarray) -> float:
    row, column = np.nonzero(entries)
    truth = matrix[row, column]
    if not truth.any():  # nothing that could confirm a fit
        return np.inf
    return float(np.linalg.norm(np.sum(left[row] * right[column], axis=1) - truth) / np.linalg.norm(truth))


def _rank_of(left: np.ndarray, right: np.ndarray) -> int:
    """Return the rank of a product at its largest gap, or the number of columns where there is no large one."""
    S = np.linalg.svd(_triangle(left) @ _triangle(right).T, compute_uv=False)
    ratios = S[:-1] / np.maximum(S[1:], 1e-9 * S[0])
    return int(np.argmax(ratios)) + 1 if len(ratios) and ratios.max() > CLEAR_GAP else len(S)


def _triangle(matrix: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.qr(matrix, mode="r"))

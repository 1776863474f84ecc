"""Low-rank fits of a gradient that was seen through the first step of an adaptive optimiser.

The gradient has the rank of the batch, and is the one of that rank of which the steps are likeliest: a fit with a known
deviation for each entry.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.lowrank.saturated_steps import AT_FIRST, PRECISE, Steps
from sparsedl_fl.lowrank.weighted_grams import weighted_grams
from sparsedl_fl.solvers import conjugate_gradient

__all__ = ["SaturatedFit", "fit_saturated", "fit_smallest"]

LEVELS = (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6)
"""Deviations of the model, over the typical entry, that are added to those of entries and lowered step by step: known
to eight digits, small entries would hold the fit where it begins."""

CLOSE = 0.01
"""Level below which the fit is near enough to linearise entries at it."""

N_STEPS, N_SWEEPS, N_TRIES, N_PRODUCTS = 6, 12, 4, 80
"""Gauss-Newton steps a level, sweeps of alternating least squares a level at the start, dampings tried a step, and
products of a conjugate gradient."""

FARTHEST = 1000.0
"""Deviation of any entry from zero, over the typical one seen, that the fit assumes beforehand: a row of which few
entries are seen would run away. Not varied."""

N_DRAWS = 8
"""Fits to drawn steps that show the noise of a fit."""

UNDERSTATED = 1.5
"""Factor on that noise. (True over drawn noise, root mean square: 0.8 to 1.4 on five fits of 7 to 16 records of MNIST
and CIFAR-10 of which a third to nine tenths of the entries showed; up to 2.6 on small ones of which a third did.)"""

OFF, EXPLAINED = 5.0, 0.03
"""Deviations from which on an entry contradicts a fit, and the share of such entries up to which the rank explains the
steps. (MNIST, 8 records at 200 units, rates 1e-4 to 1e-2: at most 0.009 with the rank of the batch, where one fit of
four had not come to its end; with one less it is passed before the last level: 0.1 to 0.9 there.)"""

MOST_FREEDOM = 0.4
"""Share of free numbers among the entries seen, above which a rank is not tried."""

ENOUGH, STALLED = 1e-6, 1e-3
"""Relative squared residual of a conjugate gradient, and relative decrease of a step that ends a level."""


@dataclass(frozen=True)
class SaturatedFit:
    """A fit of low rank.

    Attributes
    ----------
    left, right : ndarray of shape (m, b) and (n, b)
        Its factors.
    row_noise, column_noise : ndarray of shape (m,) and (n,)
        Noise on each entry of a row or column that would move it within the column or row space as much as rounding
        does.
    contradicting : float
        Share of the entries that are further from the fit than `OFF` deviations: about none where the rank explains
        them.
    """

    left: np.ndarray
    right: np.ndarray
    row_noise: np.ndarray
    column_noise: np.ndarray
    contradicting: float

    @property
    def gradient(self) -> np.ndarray:
        """The fit, of shape (m, n)."""
        return self.left @ self.right.T


def fit_saturated(steps: Steps, rank: int) -> SaturatedFit:
    """Fit a gradient of given rank to the first step of an adaptive optimiser.

    Alternating least squares on the entries seen gives a start; damped Gauss-Newton steps with the second factor
    eliminated (variable projection) follow, without forming their matrix.

    Parameters
    ----------
    steps : Steps
        Of a matrix without rows and columns of zeros.
    rank : int
        Number of inputs.

    References
    ----------
    Golub and Pereyra, SIAM J. Numer. Anal. 1973, for variable projection; Okatani and Deguchi, IJCV 2007, for it on
    matrices with missing entries.
    """
    entries, deviations = steps.start()
    typical = np.sqrt(np.mean(entries[np.isfinite(deviations)] ** 2))
    U, S, V = np.linalg.svd(entries, full_matrices=False)
    left, right = U[:, :rank] * np.sqrt(S[:rank]), V[:rank].T * np.sqrt(S[:rank])
    for level in LEVELS[:4]:
        weights = _weights(deviations, typical, level)
        for _ in range(N_SWEEPS):
            left = _solved(weights.T, entries.T, right)
            right = _solved(weights, entries, left)
    for level in LEVELS[2:]:
        damping = 1e-3
        for _ in range(N_STEPS):
            entries, deviations = steps.around(left @ right.T, AT_FIRST if level >= CLOSE else PRECISE)
            weights = _weights(deviations, typical, level)
            held = weights + FARTHEST**-2
            part = _LeastSquares(weights * entries / held, held)
            left, right, damping, decrease = part.improved(left, damping)
            if decrease < STALLED:
                break
        contradicting = _contradicting(steps, left, right, level * typical)
        if contradicting > EXPLAINED:
            return SaturatedFit(left, right, np.full(len(left), np.inf), np.full(len(right), np.inf), contradicting)
    return _with_noise(steps, left, right, typical, level)


def fit_smallest(steps: Steps, likely: int | None = None) -> SaturatedFit | None:
    """Fit the lowest rank that explains the steps, found by doubling and bisection.

    Parameters
    ----------
    steps : Steps
        As of `fit_saturated`.
    likely : int or None, default=None
        A rank to try first.

    Returns
    -------
    SaturatedFit or None
        None where no rank explains the entries that are seen with so few free numbers that these confirm it.
    """
    n_seen, (m, n) = int(steps.seen.sum()), steps.values.shape
    most = bisect_right(range(1, min(m, n)), MOST_FREEDOM * n_seen, key=lambda rank: rank * (m + n - rank))
    fits: dict[int, SaturatedFit] = {}

    def explains(rank: int) -> bool:
        fits[rank] = fit_saturated(steps, rank)
        return fits[rank].contradicting <= EXPLAINED

    low, high = 0, 1
    if likely is not None and likely <= most and explains(likely):
        low, high = (likely - 1, likely) if likely == 1 or not explains(likely - 1) else (0, likely - 1)
    else:
        while not (high <= most and explains(high)):
            if high >= most:
                return None
            low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if explains(middle) else (middle, high)
    return fits[high]


def _weights(deviations: np.ndarray, typical: float, level: float) -> np.ndarray:
    return typical**2 / (deviations**2 + (level * typical) ** 2)


def _grams(weights: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return ``A^T W_j A``, a little above singular, for each column of weights (m, n) and ``A`` of shape (m, b)."""
    grams, b = weighted_grams(weights.T, factor), factor.shape[1]
    traces = np.trace(grams, axis1=1, axis2=2)
    grams[:, range(b), range(b)] += 1e-12 * np.maximum(traces, 1e-12 * traces.max())[:, None]
    return grams


def _solved(weights: np.ndarray, entries: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return the other factor, of shape (n, b), by least squares for each column."""
    return np.linalg.solve(_grams(weights, factor), ((weights * entries).T @ factor)[..., None])[..., 0]


class _LeastSquares:
    """``sum w (g - A B^T)^2`` with ``B`` eliminated."""

    def __init__(self, entries: np.ndarray, weights: np.ndarray) -> None:
        self.entries, self.weights = entries, weights

    def _residual(self, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, float]:
        off = self.entries - left @ right.T
        weighted = self.weights * off
        return weighted, float(np.sum(weighted * off))

    def improved(self, left: np.ndarray, damping: float) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Return factors after a step, the next damping, and the relative decrease; as they were where none helps."""
        left = np.linalg.qr(left)[0]
        right = _solved(self.weights, self.entries, left)
        weighted, cost = self._residual(left, right)
        for _ in range(N_TRIES):
            moved = left + self._step(left, right, weighted @ right, damping)
            other = _solved(self.weights, self.entries, moved)
            new = self._residual(moved, other)[1]
            if new < cost:
                return moved, other, max(damping / 10, 1e-9), 1 - new / cost
            damping *= 10
        return left, right, damping, 0.0

    def _step(self, left: np.ndarray, right: np.ndarray, goal: np.ndarray, damping: float) -> np.ndarray:
        """Return the damped Gauss-Newton step of the left factor."""
        W, A, B = (as_tensor(part) for part in (self.weights, left, right))
        of_columns = torch.linalg.inv(as_tensor(_grams(self.weights, left)))
        blocks = as_tensor(_grams(self.weights.T, right))
        inverses = torch.linalg.inv(blocks)

        def times(change: torch.Tensor) -> torch.Tensor:
            moved = W * (change @ B.T)
            answer = torch.einsum("nkl,nl->nk", of_columns, moved.T @ A)
            kept = moved - W * (A @ answer.T)
            return kept @ B + damping * torch.einsum("mkl,ml->mk", blocks, change)

        def precondition(change: torch.Tensor) -> torch.Tensor:
            return torch.einsum("mkl,ml->mk", inverses, change)

        found, _ = conjugate_gradient(
            times, precondition, as_tensor(goal), n_products=N_PRODUCTS, enough=ENOUGH, each=False
        )
        return found.numpy()


def _contradicting(steps: Steps, left: np.ndarray, right: np.ndarray, floor: float) -> float:
    """Return the share of entries that contradict a fit, with a deviation of at least a floor."""
    gradient = left @ right.T
    entries, deviations = steps.around(gradient)
    return float(np.mean(np.abs(entries - gradient) > OFF * np.hypot(deviations, floor)))


def _with_noise(steps: Steps, left: np.ndarray, right: np.ndarray, typical: float, level: float) -> SaturatedFit:
    """Return the fit with the noise of its rows and columns, by fits to steps that are drawn around it.

    The scale of a row is not counted: units of other scales have the same inputs and the same zeros.
    """
    gradient, b = left @ right.T, left.shape[1]
    _, deviations = steps.around(gradient)
    weights = _weights(deviations, typical, level)
    U, _, V = np.linalg.svd(gradient, full_matrices=False)
    U, V = U[:, :b], V[:b].T
    within = gradient @ V if b > 1 else np.zeros((len(left), 1))  # one column has no direction, and its scale counts
    within /= np.maximum(np.linalg.norm(within, axis=1, keepdims=True), np.finfo(float).tiny)
    start, rng = np.linalg.qr(left)[0], np.random.default_rng(0)
    rows, columns = np.zeros(len(left)), np.zeros(len(right))
    for _ in range(N_DRAWS):
        drawn = gradient + np.hypot(deviations, level * typical) * rng.standard_normal(gradient.shape)
        moved, other, _, _ = _LeastSquares(drawn, weights).improved(start, 1e-9)
        change = moved @ other.T - gradient
        of_rows, of_columns = change @ V, U.T @ change
        of_rows -= np.sum(of_rows * within, axis=1, keepdims=True) * within
        of_columns -= (of_columns @ V) @ V.T
        rows += np.sum(of_rows**2, axis=1) / (N_DRAWS * max(b - 1, 1))
        columns += np.sum(of_columns**2, axis=0) / (N_DRAWS * b)
    off = _contradicting(steps, left, right, level * typical)
    return SaturatedFit(left, right, UNDERSTATED * np.sqrt(rows), UNDERSTATED * np.sqrt(columns), off)

"""Estimates of those columns of a completed matrix of which a filter left too little."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsedl_fl.lowrank.completion import Completion

__all__ = ["Estimates", "estimated_columns"]

THRESHOLD, BEYOND, SINGLE = 0.01, 1 / 3, 1e-7
"""Least known size over the median of a filter with a threshold; by how much a clipped entry exceeds the largest one,
and its deviation; and the rounding of single precision."""


@dataclass(frozen=True)
class Estimates:
    """Open columns of a matrix, as Gaussians in the coordinates of its left factor.

    Attributes
    ----------
    columns : ndarray of shape (k,) of int
        Which they are.
    means, covariances : ndarray of shape (b, k) and (k, b, b)
        Of their coordinates.
    right : ndarray of shape (b, n)
        The right factor with these means.
    """

    columns: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    right: np.ndarray

    def errors(self, inputs: np.ndarray) -> np.ndarray:
        """Return the root-mean-square error that these leave in inputs of shape (b, n), over all features."""
        closed = np.ones(self.right.shape[1], dtype=bool)
        closed[self.columns] = False
        coordinates = np.linalg.lstsq(self.right[:, closed].T, inputs[:, closed].T, rcond=None)[0]
        variances = np.einsum("is,kij,js->s", coordinates, self.covariances, coordinates, optimize=True)
        return np.sqrt(variances / inputs.shape[1])


def estimated_columns(fit: Completion, matrix: np.ndarray, known: np.ndarray) -> Estimates:
    """Estimate open columns from what is known of them: exact entries, and bounds of those zeroed and clipped.

    An entry that a threshold zeroed is at most as large as the smallest one left, and one that was clipped is about a
    third larger than the largest. What these say is off in one direction, not at random: all of a column count as one
    number a coordinate. The other columns give the prior.
    """
    rows, columns = ~fit.open_rows, np.flatnonzero(fit.open_columns)
    left, values = fit.left[rows], matrix[rows][:, columns]
    is_exact, is_zero = known[rows][:, columns], values == 0
    moduli = np.abs(matrix[known])
    least, largest = moduli.min(), np.abs(matrix).max()
    has_threshold = least > THRESHOLD * np.median(moduli)
    exact = SINGLE * np.sqrt(np.mean(moduli**2))
    bound = least / np.sqrt(3) if has_threshold else np.inf
    deviations = np.where(is_exact, exact, np.where(is_zero, bound, BEYOND * largest))
    targets = np.where(is_exact | is_zero, values, (1 + BEYOND) * values)
    closed = fit.right[:, ~fit.open_columns]
    precision = np.linalg.inv(closed @ closed.T / closed.shape[1])
    n_bounded = np.maximum(np.sum(~is_exact, axis=0) / fit.rank, 1.0)
    weights = 1 / (deviations**2 * np.where(is_exact, 1.0, n_bounded))
    grams = np.einsum("ij,ik,il->jkl", weights, left, left, optimize=True) + precision
    covariances = np.linalg.inv(grams)
    means = np.einsum("jkl,lj->kj", covariances, left.T @ (weights * targets))
    right = fit.right.copy()
    right[:, columns] = means
    return Estimates(columns, means, covariances, right)

"""Slopes of units near a kink, decided by the column space of the gradient."""

from __future__ import annotations

import numpy as np

from sparsedl_fl.activations import Activation

__all__ = ["sent_through"]

MOST_SLIPS = 3
"""Number of wrong slopes of a column that are corrected one after the other."""


def sent_through(phi: Activation, slopes: np.ndarray, sent_back: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return ``phi'(z) * sent_back``, with slopes of a few units a column corrected where that alone explains it.

    A unit may be active by less than the error of its activation. One wrong slope spoils all samples: the column lies
    outside the column space until this slope is right.

    Parameters
    ----------
    phi : Activation
        Slopes are corrected where it is piecewise linear.
    slopes : ndarray of shape (m, b)
        Its derivative at the pre-activations.
    sent_back : ndarray of shape (m, b)
        Gradient at the activations.
    left : ndarray of shape (m, b)
        Orthonormal basis of the column space.
    """
    if not phi.is_piecewise_linear:
        return slopes * sent_back
    gradients, columns = slopes * sent_back, np.arange(sent_back.shape[1])
    both = (1.0 + phi.slope_below) * sent_back
    overlaps = left @ left.T
    for _ in range(MOST_SLIPS):
        outside, changes = gradients - left @ (left.T @ gradients), both - 2 * gradients
        squares = np.sum(outside**2, axis=0)
        gains = 2 * changes * outside + changes**2 * (1 - np.diag(overlaps))[:, None]
        best = np.argmin(gains, axis=0)
        is_slip = squares + gains[best, columns] < 0.1 * squares
        gradients[best[is_slip], columns[is_slip]] += changes[best[is_slip], columns[is_slip]]
        if not is_slip.any():
            break
    shares = squares / np.maximum(np.sum(gradients**2, axis=0), np.finfo(float).tiny)
    for column in np.flatnonzero(shares > 100 * np.median(shares)):
        change = changes[:, column]
        pairs = gains[:, [column]] + gains[:, column] - 2 * np.outer(change, change) * overlaps
        np.fill_diagonal(pairs, np.inf)
        two = np.unravel_index(np.argmin(pairs), pairs.shape)
        if squares[column] + pairs[two] < 1e-4 * squares[column]:
            gradients[list(two), column] += change[list(two)]
    return gradients

"""Gram matrices of many weighted least-squares problems with one factor."""

from __future__ import annotations

import numpy as np

__all__ = ["weighted_grams"]


def weighted_grams(weights: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return ``A^T W_i A`` for each row of weights, of shape (k, r, r).

    Parameters
    ----------
    weights : ndarray of shape (k, n)
        One problem a row.
    factor : ndarray of shape (n, r)
        ``A``.
    """
    r = factor.shape[1]
    i, j = np.triu_indices(r)
    products = weights @ (factor[:, i] * factor[:, j])
    grams = np.empty((len(weights), r, r))
    grams[:, i, j] = products
    grams[:, j, i] = products
    return grams

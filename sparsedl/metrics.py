"""How close an estimated dictionary is to the true one, up to what cannot be known: order, sign and scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from sparsedl.arrays import Matrix, as_numpy

__all__ = ["ComponentMatch", "match_components"]


@dataclass(frozen=True)
class ComponentMatch:
    """The best one-to-one match of estimated components with true ones.

    Attributes
    ----------
    permutation : ndarray of shape (n_true,)
        ``estimated[permutation[i]]`` is matched with ``true[i]``.
    signs : ndarray of shape (n_true,)
        Sign that turns the estimated component towards the true one.
    scales : ndarray of shape (n_true,)
        ``signs * |true| / |estimated|``: what the matched component is multiplied by.
    errors : ndarray of shape (n_true,)
        Sine of the angle between the two, from 0 (recovered exactly) to 1 (orthogonal).
    """

    permutation: np.ndarray
    signs: np.ndarray
    scales: np.ndarray
    errors: np.ndarray


def match_components(estimated: Matrix, true: Matrix) -> ComponentMatch:
    """Match components up to signed permutation and scale, by the largest sum of absolute cosines.

    Parameters
    ----------
    estimated : array-like of shape (n_estimated, n_features)
        Estimated components, one a row; at least as many as ``true``.
    true : array-like of shape (n_true, n_features)
        True components, one a row.

    Returns
    -------
    ComponentMatch

    Examples
    --------
    >>> match_components([[0.0, -2.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]).permutation.tolist()
    [1, 0]
    """
    estimated = np.asarray(as_numpy(estimated), dtype=np.float64)
    true = np.asarray(as_numpy(true), dtype=np.float64)
    if estimated.ndim != 2 or true.ndim != 2 or estimated.shape[1] != true.shape[1] or len(estimated) < len(true):
        raise ValueError(
            "estimated and true must be matrices with the same number of columns and estimated at least as many "
            f"rows, got shapes {estimated.shape} and {true.shape}"
        )
    lengths, true_lengths = np.linalg.norm(estimated, axis=1), np.linalg.norm(true, axis=1)
    if not (lengths.all() and true_lengths.all()):
        raise ValueError("estimated and true must not contain a component that is all zeros")
    unit, true_unit = estimated / lengths[:, None], true / true_lengths[:, None]
    cosines = true_unit @ unit.T
    permutation = linear_sum_assignment(-np.abs(cosines))[1]
    matched = cosines[np.arange(len(true)), permutation]
    signs = np.where(matched < 0, -1.0, 1.0)
    # The sine from the difference, not from the cosine: exact down to the rounding error.
    chord = np.linalg.norm(true_unit - signs[:, None] * unit[permutation], axis=1)
    errors = chord * np.sqrt(np.maximum(1 - chord**2 / 4, 0))
    return ComponentMatch(permutation, signs, signs * true_lengths / lengths[permutation], errors)

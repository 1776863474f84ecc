"""How many different records several audits recovered, compared within their expected errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

__all__ = ["Found", "different"]

DEVIATIONS = 5.0
"""Expected errors by which two copies of one record may differ, together: as many as a sweep allows a certified one."""

ROUNDING = 1e-6
"""Difference of two copies that is rounding, relative to their size."""


@dataclass(frozen=True, eq=False)
class Found:
    """Records of one audit.

    Attributes
    ----------
    values : ndarray of shape (n_records, n)
        The recovered numbers.
    errors : ndarray of shape (n_records,)
        Their expected root-mean-square errors.
    """

    values: np.ndarray
    errors: np.ndarray


def different(rounds: Sequence[Found]) -> tuple[int, int]:
    """Return the least and the largest number of different records that several audits recovered.

    Records of one audit are different ones. Of two audits, a pair that differs by no more than its errors is one record
    where each has no other partner; a pair that has counts as one in the least number, and as two in the largest.

    Parameters
    ----------
    rounds : sequence of Found
        One an audit, of numbers that mean the same: inputs of the model, or features of one layer at the same weights.

    Examples
    --------
    >>> twice = Found(np.eye(3)[:2], np.full(2, 1e-6)), Found(np.eye(3)[1:], np.full(2, 1e-6))
    >>> different(twice)
    (3, 3)
    """
    if not rounds:
        return 0, 0
    least, clear = rounds[0], rounds[0]
    for found in rounds[1:]:
        least = _with(least, found, _paired)
        clear = _with(clear, found, _clearly_paired)
    return len(least.errors), len(clear.errors)


def _with(known: Found, found: Found, pairs: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Found:
    """Return the records that are known together with the new ones among others."""
    old, new = pairs(_are_near(known, found), known, found)
    values, errors = known.values.copy(), known.errors.copy()
    better = found.errors[new] < errors[old]
    values[old[better]], errors[old[better]] = found.values[new[better]], found.errors[new[better]]
    others = np.setdiff1d(np.arange(len(found.errors)), new)
    return Found(np.vstack([values, found.values[others]]), np.concatenate([errors, found.errors[others]]))


def _distances(known: Found, found: Found) -> np.ndarray:
    return cdist(known.values, found.values) / np.sqrt(max(known.values.shape[1], 1))


def _are_near(known: Found, found: Found) -> np.ndarray:
    sizes = [np.sqrt(np.mean(one.values**2, axis=1)) for one in (known, found)]
    room = DEVIATIONS * np.hypot(known.errors[:, None], found.errors) + ROUNDING * np.maximum(
        sizes[0][:, None], sizes[1]
    )
    return _distances(known, found) <= room


def _paired(near: np.ndarray, known: Found, found: Found) -> tuple[np.ndarray, np.ndarray]:
    """Return as many pairs as there can be, of the nearest."""
    costs = np.where(near, 0.0, 1.0)
    distances = _distances(known, found)
    scale = distances.max(initial=0.0) * 2 * max(min(near.shape), 1) or 1.0
    old, new = linear_sum_assignment(costs + distances / scale)
    kept = near[old, new]
    return old[kept], new[kept]


def _clearly_paired(near: np.ndarray, known: Found, found: Found) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of which neither has another partner."""
    alone = near & (near.sum(axis=1, keepdims=True) == 1) & (near.sum(axis=0) == 1)
    old, new = np.nonzero(alone)
    return old, new

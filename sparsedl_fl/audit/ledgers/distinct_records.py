"""Which records of several audits are the same, compared within their expected errors, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

__all__ = ["Found", "different", "numbered"]

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
    least, most = (
        max((int(found.max(initial=-1)) + 1 for found in numbered(rounds, is_sure)), default=0)
        for is_sure in (False, True)
    )
    return least, most


def numbered(rounds: Sequence[Found], is_sure: bool = True) -> list[np.ndarray]:
    """Return a number for each record of each audit, the same for one that several audits recovered.

    Parameters
    ----------
    rounds : sequence of Found
        As of `different`.
    is_sure : bool, default=True
        Whether a pair of which one may have another partner counts as two records, and not as one.

    Examples
    --------
    >>> twice = Found(np.eye(3)[:2], np.full(2, 1e-6)), Found(np.eye(3)[1:], np.full(2, 1e-6))
    >>> [found.tolist() for found in numbered(twice)]
    [[0, 1], [1, 2]]
    """
    pairs, known, numbers = _clearly_paired if is_sure else _paired, None, []
    for found in rounds:
        here = np.arange(len(found.errors))
        if known is not None:
            old, new = pairs(_are_near(known, found), known, found)
            others = np.setdiff1d(here, new)
            here[new], here[others] = old, len(known.errors) + np.arange(len(others))
        known = found if known is None else _with(known, found, here)
        numbers.append(here)
    return numbers


def _with(known: Found, found: Found, numbers: np.ndarray) -> Found:
    """Return the records that are known together with those of an audit, by their numbers, each as exact as it is."""
    n_known, n = len(known.errors), max(len(known.errors), int(numbers.max(initial=-1)) + 1)
    values, errors = np.zeros((n, known.values.shape[1])), np.full(n, np.inf)
    values[:n_known], errors[:n_known] = known.values, known.errors
    better = found.errors < errors[numbers]
    values[numbers[better]], errors[numbers[better]] = found.values[better], found.errors[better]
    return Found(values, errors)


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

"""What weight each record has in an update: in a sum of several clients, which records belong together.

A client's loss is the mean over its records, and a server that averages clients by their numbers of records gives each
client a weight of its own. Secure aggregation hides which client sent what, and not these weights: an audit that knows
the whole batch runs every record alone, and compares its gradient with the one in the update.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["DEVIATIONS", "ROUNDING", "WeightGroup", "weight_groups"]

DEVIATIONS = 5.0
"""Errors by which two weights differ at least that are not one. (18 batches of one to five clients, seven activations,
0 to 300 steps of training, float32, half precision and noise: true over said error above 2 once, 5.7, and no client's
records were split. Without what an input's own error makes of a weight 4 of 30 were.)"""

ROUNDING = 1e-6
"""Relative difference of two weights that is rounding of a client in single precision."""


@dataclass(frozen=True)
class WeightGroup:
    """Records that have the same weight.

    Attributes
    ----------
    weight : float
        Share of the loss that each of them has: ``1 / b`` for the mean over b records of one client.
    error : float
        What it may be off by, relative: the largest of its records.
    records : tuple of int
        Their indices among the inputs of the layer that was replayed.
    """

    weight: float
    error: float
    records: tuple[int, ...]


def weight_groups(weights: np.ndarray, errors: np.ndarray) -> tuple[WeightGroup, ...]:
    """Return records by their weight, the smallest weight first; empty where weights say nothing.

    Two records belong to different groups where no chain of weights, each within its error of the next, joins them.

    Parameters
    ----------
    weights, errors : ndarray of shape (b,)
        As of `sparsedl_fl.propagate.replay.Replay`.

    Examples
    --------
    >>> groups = weight_groups(np.array([0.1, 0.3, 0.1, 0.3000001]), np.full(4, 1e-6))
    >>> [(round(group.weight, 3), group.records) for group in groups]
    [(0.1, (0, 2)), (0.3, (1, 3))]
    """
    if not len(weights) or not (np.isfinite(errors).all() and (weights > 0).all()):
        return ()
    order = np.argsort(weights)
    ratios, off = weights[order[1:]] / weights[order[:-1]] - 1, errors[order]
    is_gap = ratios > DEVIATIONS * np.hypot(off[1:], off[:-1]) + ROUNDING
    return tuple(
        WeightGroup(float(np.median(weights[part])), float(errors[part].max()), tuple(map(int, np.sort(part))))
        for part in np.split(order, np.flatnonzero(is_gap) + 1)
    )

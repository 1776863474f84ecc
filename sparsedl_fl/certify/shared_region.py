"""Where the inputs of columns with shared zeros can be: what all others leave open is bounded by the inactive units.

Inputs of a group lie in the affine space that its columns leave, and each has the group's inactive units. Records with
the same active units are close, so this region is small: each of them is its centre, to within half its extent.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.optimize import linprog

from sparsedl_fl.activations import FlatPart
from sparsedl_fl.certify.hypothesis import Hypothesis
from sparsedl_fl.certify.shared_zeros import SharedZeros
from sparsedl_fl.layers.blocks import row_norms

__all__ = ["centred"]


def centred(
    hypothesis: Hypothesis, groups: tuple[SharedZeros, ...], certified: np.ndarray
) -> tuple[Hypothesis, tuple[SharedZeros, ...]]:
    """Make the first input of each group the centre of the region in which the group's inputs lie, if it is bounded.

    Parameters
    ----------
    hypothesis : Hypothesis
        Its columns of a group span what the group spans.
    groups : tuple of SharedZeros
    certified : ndarray of shape (b,) of bool
        Columns that their zeros certify: where the pattern of these inputs is not that of the gradient, weights are off
        or units undecided, and the region is larger by as much.
    """
    problem = hypothesis.problem
    phi, is_update = problem.activation, problem.layer_gradient.is_update
    if not isinstance(phi, FlatPart) or not math.isinf(phi.upper) or is_update or not certified.any():
        return hypothesis, groups
    lengths, basis, found = row_norms(problem.layer_gradient.weight), hypothesis.basis.copy(), []
    is_beside = (hypothesis.is_active == hypothesis.likely_zeros) & certified
    beyond = np.abs(hypothesis.preactivations[0] - phi.lower) / np.maximum(lengths, np.finfo(float).tiny)[:, None]
    slack = np.max(beyond, where=is_beside, initial=0.0) * lengths
    for group in groups:
        mixing, radius = _box(hypothesis, group, phi.lower + slack)
        if mixing is not None:
            columns = hypothesis.basis[:, group.members] @ np.linalg.inv(mixing)
            basis[:, group.members] = columns / np.linalg.norm(columns, axis=0)
        found.append(replace(group, radius=radius))
    return replace(hypothesis, basis=basis), tuple(found)


def _box(hypothesis: Hypothesis, group: SharedZeros, highest: np.ndarray) -> tuple[np.ndarray | None, float]:
    """Return the rows that mix the group's inputs to the centre and a corner each of a box around its region.

    Of shape (k, k), for rows ``p`` that are not scaled, and half the box's diagonal, as a root mean square over the
    features; None and infinity where the region is not bounded.
    """
    problem, unbounded = hypothesis.problem, (None, np.inf)
    P, scale = hypothesis.inverse[group.members], hypothesis.scale[group.members]
    size = np.linalg.norm(scale)
    if not size > np.finfo(float).tiny:
        return unbounded
    # Points of the affine space: weights with ``a scale = 1``.
    middle = scale / size**2
    free = np.linalg.qr(scale[:, None], mode="complete")[0][:, 1:]
    factors, (matrix, bias) = problem.factors, problem.forward.passes[0]
    along = free.T @ (P * factors.singular_values) @ factors.right
    axes, mixing = np.linalg.qr(along.T)
    if np.abs(np.diag(mixing)).min() <= np.finfo(float).eps * np.abs(mixing).max():
        return unbounded
    steps = free @ np.linalg.inv(mixing)
    z, changes = matrix @ (middle @ P) + bias, matrix @ (steps.T @ P).T
    slopes, k = row_norms(changes), changes.shape[1]
    rows = group.rows & (slopes > 0)
    planes, away = changes[rows] / slopes[rows, None], (highest - z)[rows] / slopes[rows]
    unit = np.median(np.abs(away)) if rows.any() else 0.0  # the solver's tolerances are absolute
    if not unit > 0:
        return unbounded
    ends = np.empty((2, k))
    for axis in range(k):
        for side, sign in enumerate((1.0, -1.0)):
            found = linprog(sign * np.eye(k)[axis], A_ub=planes, b_ub=away / unit, bounds=(None, None))
            if found.status != 0:
                return unbounded
            ends[side, axis] = unit * found.x[axis]
    centre, half = ends.mean(axis=0), np.ptp(ends, axis=0) / 2
    if not (half > 0).all():
        return unbounded
    points = np.vstack([centre, centre + np.diag(half)])
    return middle + points @ steps.T, float(np.linalg.norm(half) / np.sqrt(axes.shape[0]))

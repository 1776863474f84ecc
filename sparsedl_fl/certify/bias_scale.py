"""Whether weight and bias gradients are on one scale, which gives the inputs theirs.

``G = D X^T`` and ``g = D 1`` determine inputs with their scale. Where a client clips or scales tensors one by one, all
inputs are too large or too small by one factor, and every column is right. The pattern shows it, as far as biases
matter to it, since these do not scale; and so does the next layer's activation subspace.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar

from sparsedl.arrays import as_tensor
from sparsedl_fl.constraints import FAR
from sparsedl_fl.constraints.problem import LayerProblem

__all__ = ["doubt_in_scale"]

CHANGES = np.geomspace(1e-4, np.log(4.0), 49)
"""Logarithms of the factors that are tried, along with their inverses."""


def doubt_in_scale(
    problem: LayerProblem, preactivations: np.ndarray, has_gradient: np.ndarray, widths: np.ndarray
) -> float:
    """Return the relative error of the scale of all inputs; zero where nothing contradicts it.

    Parameters
    ----------
    problem : LayerProblem
        The layer; without a zero-slope region there is no pattern.
    preactivations : ndarray of shape (m, k)
        Of recovered inputs.
    has_gradient : ndarray of shape (m, k) of bool
        Where their columns are not zero.
    widths : ndarray of shape (m, k)
        Errors of pre-activations: a unit as near as that to its kink contradicts nothing.
    """
    if problem.layer_gradient.is_update or not np.isfinite(preactivations).all() or preactivations.shape[1] == 0:
        return 0.0
    by_pattern = _by_pattern(problem, preactivations, has_gradient, widths) if problem.activation.has_flat_part else 0.0
    if by_pattern > 0 and _is_refuted(problem, preactivations, by_pattern):
        by_pattern = 0.0
    return float(np.expm1(max(by_pattern, _by_subspaces(problem, preactivations))))


def _is_refuted(problem: LayerProblem, preactivations: np.ndarray, change: float) -> bool:
    """Return whether the activation subspaces confirm the scale and exclude another.

    Then a barely active unit was taken for inactive. (Of 60 pixels in [0, 1] after 100 steps of training one such unit
    made all 5 % uncertain, and six of them repeats.)
    """
    outside = _distance_by_scale(problem, preactivations)
    return outside is not None and outside(0.0) <= 1 and min(outside(change), outside(-change)) > FAR


def _distance_by_scale(problem: LayerProblem, preactivations: np.ndarray) -> Callable[[float], float] | None:
    """Return the median distance from the subspaces, over the noise, by the log of a factor; None without subspaces."""
    if problem.subspaces is None or not problem.subspaces.identifies:
        return None
    bias = problem.layer_gradient.bias[:, None]
    linear = preactivations - bias

    def outside(change: float) -> float:
        moved = as_tensor((np.exp(change) * linear + bias).T.copy())
        return float(problem.subspaces.at(moved).over_noise.median())

    return outside


def _by_pattern(
    problem: LayerProblem, preactivations: np.ndarray, has_gradient: np.ndarray, widths: np.ndarray
) -> float:
    """Return the logarithm of the factor that contradicts the pattern least, the smallest of several.

    It has to leave at most a third of the contradictions: with many units a wrong scale adds to them.
    """
    bias = problem.layer_gradient.bias[:, None]
    linear = preactivations - bias
    is_clear = problem.distance_to_kink([preactivations]) > widths

    def contradictions(factor: float) -> int:
        return int(np.sum((problem.is_active([factor * linear + bias]) != has_gradient) & is_clear))

    at_one = contradictions(1.0)
    if not at_one:
        return 0.0
    left = [min(contradictions(np.exp(change)), contradictions(np.exp(-change))) for change in CHANGES]
    return float(CHANGES[np.argmin(left)]) if min(left) <= 0.34 * at_one else 0.0


def _by_subspaces(
    problem: LayerProblem, preactivations: np.ndarray, *, better: float = 0.7, far: float = FAR, around: float = 0.1
) -> float:
    """Return the logarithm of the factor that takes inputs nearest to the activation subspaces.

    It has to leave at most a share ``better`` of their distance, which no factor does where noise alone causes it. (For
    tokens with small gradients a scale 2 % off had three times the distance of the true one, 2 over the noise.) Inputs
    further than ``far``, over the noise, are off at all scales near one, and wider ones are tried: at the true scale
    they had 1.4 to 2.8, and 2 % beside it 1,600 and more (one batch of CIFAR-10, (20, 200)). Neither is varied.
    """
    outside = _distance_by_scale(problem, preactivations)
    if outside is None:
        return 0.0
    at_one, bracket = outside(0.0), (-around, around)
    if at_one > far:
        changes = np.concatenate([-CHANGES[::-1], CHANGES])
        nearest = int(np.argmin([outside(change) for change in changes]))
        bracket = changes[max(nearest - 1, 0)], changes[min(nearest + 1, len(changes) - 1)]
    best = minimize_scalar(outside, bounds=bracket, method="bounded")
    return abs(float(best.x)) if best.fun <= better * at_one else 0.0

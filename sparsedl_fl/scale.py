"""Whether weight and bias gradients are on one scale, which is where the scale of an input comes from.

``G = D X^T`` and ``g = D 1`` tell inputs up to nothing; where a client clips or scales tensors one by one, all inputs
come back too large or too small by one factor, and every column is right. The pattern tells, since biases do not scale,
as far as biases matter to it; and the span of the next layer's gradient does.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from sparsedl.arrays import as_tensor
from sparsedl_fl.problem import LayerProblem

__all__ = ["doubt_in_scale"]


def doubt_in_scale(
    problem: LayerProblem,
    preactivations: np.ndarray,
    has_gradient: np.ndarray,
    widths: np.ndarray,
    *,
    better: float = 0.34,
    far: float = 5.0,
    smallest: float = 1e-4,
    largest: float = 4.0,
    n_factors: int = 49,
) -> float:
    """Return by how much all inputs may be too large or too small, as a share; zero where nothing speaks for that.

    Parameters
    ----------
    problem : LayerProblem
        The layer; without a flat part there is no pattern.
    preactivations : ndarray of shape (m, k)
        Of recovered inputs.
    has_gradient : ndarray of shape (m, k) of bool
        Where their columns are not zero.
    widths : ndarray of shape (m, k)
        By how much pre-activations may be off: a unit that is so near its kink contradicts nothing.
    better : float, default=0.34
        Share of the contradictions that another scale leaves, at most: where there are many units any other scale makes
        more of them, unless it is right. The one that leaves least counts, and the nearest of several.
    far : float, default=5
        Distance from the spans, by their noise, up to which inputs lie inside at their scale: there they had 1.4
        to 2.8, and 2 % beside it 1,600 and more (one batch of CIFAR-10, (20, 200)); not varied.
    smallest, largest : float, default=1e-4 and 4
        Least and largest factor that is tried, the least over one; and their inverses.
    n_factors : int, default=49
        How many of each, evenly by the logarithms of what they change.
    """
    if (
        not problem.activation.has_flat_part
        or problem.layer_gradient.is_update
        or not np.isfinite(preactivations).all()
        or preactivations.shape[1] == 0
    ):
        return 0.0
    bias = problem.layer_gradient.bias[:, None]
    linear = preactivations - bias
    changes = np.geomspace(smallest, np.log(largest), n_factors)
    is_clear = problem.distance_to_kink([preactivations]) > widths

    def contradictions(factor: float) -> int:
        return int(np.sum((problem.is_active([factor * linear + bias]) != has_gradient) & is_clear))

    def outside(change: float) -> float:
        moved = as_tensor((np.exp(change) * linear + bias).T.copy())
        return float(problem.behind.at(moved).over_noise.median())

    doubt = 0.0
    at_one = contradictions(1.0)
    if at_one:
        left = [min(contradictions(np.exp(change)), contradictions(np.exp(-change))) for change in changes]
        doubt = changes[np.argmin(left)] if min(left) <= better * at_one else 0.0
    if problem.behind is not None and problem.behind.identifies and outside(0.0) > far:
        around = np.concatenate([-changes[::-1], changes])
        nearest = int(np.argmin([outside(change) for change in around]))
        ends = around[max(nearest - 1, 0)], around[min(nearest + 1, len(around) - 1)]
        best = minimize_scalar(outside, bounds=ends, method="bounded")
        doubt = max(doubt, abs(best.x)) if best.fun <= better * outside(0.0) else doubt
    return float(np.expm1(doubt))

"""Whether weight and bias gradients are on one scale, which is where the scale of an input comes from.

``G = D X^T`` and ``g = D 1`` tell inputs up to nothing; where a client clips or scales tensors one by one, all inputs
come back too large or too small by one factor, and every column is right. The pattern tells, since biases do not scale.
"""

from __future__ import annotations

import numpy as np

from sparsedl_fl.problem import LayerProblem

__all__ = ["is_scale_doubtful"]


def is_scale_doubtful(
    problem: LayerProblem,
    preactivations: np.ndarray,
    has_gradient: np.ndarray,
    *,
    better: float = 0.34,
    largest: float = 4.0,
    n_factors: int = 81,
) -> bool:
    """Return whether another scale of all inputs fits the pattern far better than theirs.

    Parameters
    ----------
    problem : LayerProblem
        The layer; without a flat part there is no pattern.
    preactivations : ndarray of shape (m, k)
        Of recovered inputs.
    has_gradient : ndarray of shape (m, k) of bool
        Where their columns are not zero.
    better : float, default=0.34
        Share of the contradictions that another scale leaves, at most. A unit within rounding of its kink contradicts
        too, but where there are many units any other scale makes more of them.
    largest : float, default=4
        Largest factor that is tried, and its inverse the smallest.
    n_factors : int, default=81
        How many, evenly by their logarithms; one is among them.
    """
    if (
        not problem.activation.has_flat_part
        or problem.layer_gradient.is_update
        or not np.isfinite(preactivations).all()
    ):
        return False
    bias = problem.layer_gradient.bias[:, None]
    linear = preactivations - bias

    def contradictions(factor: float) -> int:
        return int(np.sum(problem.is_active([factor * linear + bias]) != has_gradient))

    at_one = contradictions(1.0)
    if at_one == 0:
        return False
    factors = np.geomspace(1 / largest, largest, n_factors)
    return min(contradictions(factor) for factor in factors) <= better * at_one

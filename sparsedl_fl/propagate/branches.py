"""Where on an activation its values lie: the pre-activations that a layer's known inputs had."""

from __future__ import annotations

import numpy as np

from sparsedl.arrays import as_tensor, chunks
from sparsedl_fl.activations import Activation
from sparsedl_fl.constraints import ForwardPass
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["BRANCH", "first_guess", "inactive_start", "on_graph"]

BRANCH = 1e4
"""Weight of an activation, which is known, against its pre-activation, which only selects the branch."""


def first_guess(
    phi: Activation, before: LayerGradient, factors: LowRankGradient, y: np.ndarray, errors: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return a first guess of the pre-activations with activations ``y``, and the weight of ``y`` against it.

    An activation that is not monotone has two pre-activations for some ``y``. Where enough units have only one, these
    determine the input, ``z = F p``, and so all pre-activations.
    """
    b = y.shape[1]
    is_sure = y > 0
    if not phi.is_monotone and is_sure.sum(axis=0).min() > b:
        F = ForwardPass.of(before, factors).regressors()
        above = on_graph(phi, np.abs(y), y, 1 / np.finfo(float).eps)
        found = [
            F @ np.linalg.lstsq(F[unique], z[unique], rcond=None)[0]
            for unique, z in zip(is_sure.T, above.T, strict=True)
        ]
        return np.stack(found, axis=1), BRANCH
    return inactive_start(y, errors)


def inactive_start(y: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, float]:
    """Return pre-activations of inactive units, and the weight of the activations ``y`` against them.

    A unit counts as inactive where its activation is within ten times its error of an inactive one's.
    """
    typical = np.sqrt(np.mean(y**2))
    weight = (0.01 * typical / max(errors.max(), np.finfo(float).tiny)) ** 2
    return np.full(y.shape, -0.1 * typical), max(BRANCH, weight)


def on_graph(phi: Activation, z: np.ndarray, y: np.ndarray, weight: float) -> np.ndarray:
    """Return the pre-activations with activations ``y``, the nearest to ``z`` where there are several."""
    found = np.empty_like(z)
    for part in chunks(len(z), 500 * z.shape[1]):
        found[part] = phi.nearest_on_graph(as_tensor(z[part].copy()), as_tensor(y[part].copy()), weight)[0].numpy()
    return found

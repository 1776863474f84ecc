"""Backward propagation to a layer whose inputs are linearly dependent: more than features, or some of them mixtures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sparsedl.arrays import as_tensor
from sparsedl_fl.activations import resolve
from sparsedl_fl.certify.assembly import Assembly
from sparsedl_fl.constraints import LOG_CHANCE
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.measured import precision_of
from sparsedl_fl.propagate.branches import inactive_start, on_graph
from sparsedl_fl.propagate.checks import MOST_OVER_EXPLAINED, doubt_of_slopes, reproduced, sizes_of, sum_to_bias

if TYPE_CHECKING:
    from sparsedl_fl.propagate.backward import KnownBatch

__all__ = ["back_to_dependent_inputs"]


def back_to_dependent_inputs(known: KnownBatch, sent_back: np.ndarray, before: LayerGradient) -> KnownBatch:
    """Return the batch of a layer whose inputs are linearly dependent: more than features, or some of them mixtures.

    ``G`` then shows no column space that the columns could be held against, and has to lie in theirs: what is outside,
    in ``m - b`` directions, is the noise and the errors of the columns. Certified as `propagate_back` says.
    """
    phi, y = resolve(before.activation), known.inputs.T
    if not phi.is_monotone:
        raise ValueError(f"the values of {phi.name} do not say where on it they lie")
    inactive, weight_of_y = inactive_start(y, known.errors)
    z = on_graph(phi, inactive, y, weight_of_y)
    slopes = phi.derivative(as_tensor(z)).numpy()
    gradients, doubt = slopes * sent_back, doubt_of_slopes(phi, z, y, known.errors, slopes) * sent_back
    norms, (m, b) = np.linalg.norm(gradients, axis=0), gradients.shape
    if b >= m or not norms.all() or np.linalg.matrix_rank(gradients / norms) < b:
        raise ValueError("the propagated gradients are linearly dependent: too few units are active for some inputs")
    G, duals = before.weight_grad.astype(np.float64), np.linalg.pinv(gradients / norms) / norms[:, None]
    inputs = duals @ G
    squares, moments = np.sum((G - gradients @ inputs) ** 2), np.mean(inputs**2, axis=1)
    per_entry = squares / ((m - b) * G.shape[1]) + np.sum(np.mean(doubt**2, axis=0) * moments)
    errors = np.sqrt(np.sum(duals**2, axis=1) * per_entry)
    is_reproduced, by_weights = reproduced(known, before, inputs, errors)
    errors, outside = np.hypot(errors, by_weights), np.sqrt(squares / (1 - b / m))
    explained = MOST_OVER_EXPLAINED * (precision_of(G) + np.max(known.errors / sizes_of(known.inputs)))
    log_chance = (m - b) * np.log10(max(outside / np.linalg.norm(G), np.finfo(float).eps))
    fits = (
        is_reproduced
        & (outside <= explained * np.linalg.norm(norms * np.linalg.norm(inputs, axis=1)))
        & sum_to_bias(gradients, before.bias_grad)
        & (log_chance <= LOG_CHANCE)
        & (errors <= Assembly.worthless * sizes_of(inputs))
    )
    return replace(known, inputs=inputs, gradients=gradients, errors=errors, certified=np.full(b, fits.all()))

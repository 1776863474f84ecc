"""What the steps of backward propagation share: sizes, errors of slopes, and the checks of what a step reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsedl.arrays import as_tensor
from sparsedl_fl.activations import Activation, resolve
from sparsedl_fl.layers.blocks import row_norms
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.propagate.branches import BRANCH, on_graph

if TYPE_CHECKING:
    from sparsedl_fl.propagate.backward import KnownBatch

__all__ = ["MOST_OVER_EXPLAINED", "doubt_of_slopes", "reproduced", "sizes_of", "sum_to_bias"]

REPRODUCED, REPRODUCED_IN_THE_MEAN, UNSEEN = 5.0, 2.0, 2.0
"""Largest error of the activations of an input, over the expected one, and of all in the mean (96 layers of 75 hostile
clients, honest or not, that were right, had at most 1.8 and 0.83); and expected errors of the known inputs above which
a deviation shows an error of an input."""

MOST_OVER_EXPLAINED = 10.0
"""Largest share of the gradient, or of its columns, that does not fit, over what noise and known errors explain."""

FLOOR = 1e-6
"""Error of an activation that always counts as expected, over the root mean square of an input's activations."""


def sizes_of(inputs: np.ndarray, *, least: float = 1e-4) -> np.ndarray:
    """Return the root mean square of each input, at least a share of that of the batch."""
    squares = np.mean(inputs**2, axis=1)
    return np.sqrt(np.maximum(squares, least**2 * np.mean(squares)))


def doubt_of_slopes(
    phi: Activation, z: np.ndarray, y: np.ndarray, errors: np.ndarray, slopes: np.ndarray
) -> np.ndarray:
    """Return the error of the derivatives from that of the activations, of shape (m, b)."""
    if phi.is_piecewise_linear:  # a derivative is then exact, or the columns do not fit at all
        return np.zeros_like(slopes)
    shifted = [phi.derivative(as_tensor(on_graph(phi, z, y + sign * errors, BRANCH))).numpy() for sign in (-1, 1)]
    return np.max(np.abs(np.stack(shifted) - slopes), axis=0)


def reproduced(
    known: KnownBatch, before: LayerGradient, inputs: np.ndarray, errors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which inputs lead to the known inputs of the next layer, and the errors of inputs that this shows.

    A gradient sent at another scale makes all inputs smaller or larger. Where inputs have much in common, a column that
    contains a little of another may lie in the column space; but then the input is wrong, and this shows by how much.
    """
    phi, z, y = resolve(before.activation), before.preactivations(inputs), known.inputs.T
    deviations = np.sqrt(np.mean((phi.value(as_tensor(z)).numpy() - y) ** 2, axis=0))
    squares = row_norms(before.weight)[:, None] ** 2
    gain = np.sqrt(np.mean(squares))
    shares = deviations / (known.errors + gain * errors + FLOOR * np.sqrt(np.mean(y**2, axis=0)))
    is_reproduced = (shares <= REPRODUCED) & (np.sqrt(np.mean(shares**2)) <= REPRODUCED_IN_THE_MEAN)
    slopes = np.sqrt(np.mean(squares * phi.derivative(as_tensor(z)).numpy() ** 2, axis=0))
    beyond = np.sqrt(np.maximum(deviations**2 - (UNSEEN * known.errors) ** 2, 0.0))
    return is_reproduced, beyond / np.maximum(slopes, np.finfo(float).tiny)


def sum_to_bias(gradients: np.ndarray, bias_grad: np.ndarray, *, most: float = 0.05) -> bool:
    """Return whether the columns add up to the bias gradient, which determines their scale."""
    scale = np.sqrt(np.sum(gradients**2))
    return bool(np.linalg.norm(gradients.sum(axis=1) - bias_grad) <= most * min(scale, np.linalg.norm(bias_grad)))

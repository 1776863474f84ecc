"""The bias as one more input, which is one number for the whole batch: ``[G, u g] = D [X, u]^T`` for any ``u``.

With a row of zeros, or with ``x`` and ``2 x``, the rank of ``X`` is one less than the batch size and that of ``[X, u]``
is not: then ``g`` lies outside the column space of ``G``, and this is the problem to solve. A part of ``g`` that
belongs to no input appears as a row of zeros with a dense gradient, which nothing certifies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsedl_fl.layers.blocks import row_norms
from sparsedl_fl.layers.layer_gradient import LayerGradient

__all__ = [
    "LayerGradientWithBias",
    "gradient_with_bias",
    "n_features",
    "unit_of_bias",
    "with_bias_as_input",
    "with_constant",
    "without_constant",
]


@dataclass(frozen=True, eq=False)
class LayerGradientWithBias(LayerGradient):
    """A layer whose last input is that of the bias, with weight zero, so that ``z`` is unchanged.

    Attributes
    ----------
    constant_input : float
        Value of that input.
    """

    constant_input: float = 1.0  # type: ignore[misc]  # a class constant of other layers, a field here


def unit_of_bias(given: LayerGradient) -> float:
    """Return the input of the bias: a power of two, so that nothing is rounded, about as large as the other inputs."""
    n_alive = max(1, int(given.weight_grad.any(axis=0).sum()))
    ratio = np.linalg.norm(row_norms(given.weight_grad)) / np.linalg.norm(given.bias_grad) / np.sqrt(n_alive)
    return float(2.0 ** np.round(np.log2(ratio)))


def n_features(given: LayerGradient) -> int:
    """Return how many inputs a layer has, without that of the bias."""
    return given.shape[1] - (given.constant_input is not None)


def with_bias_as_input(given: LayerGradient) -> LayerGradientWithBias:
    """Return a layer with one input more, that of the bias."""
    weight = np.hstack([given.weight, np.zeros_like(given.weight[:, :1])])
    changed = {"weight": weight, "weight_grad": gradient_with_bias(given), "constant_input": unit_of_bias(given)}
    found = object.__new__(
        LayerGradientWithBias
    )  # everything is checked and copied: the constructor would copy it again
    vars(found).update(vars(given) | changed)
    return found


def gradient_with_bias(given: LayerGradient) -> np.ndarray:
    """Return ``[G, u g]`` of shape (m, n + 1), in the precision of ``G``."""
    further = (unit_of_bias(given) * given.bias_grad[:, None]).astype(given.weight_grad.dtype)
    return np.hstack([given.weight_grad, further])


def with_constant(given: LayerGradient, inputs: np.ndarray) -> np.ndarray:
    """Return inputs of shape (b, n) with that of the bias appended, where the layer counts it as one."""
    if given.constant_input is None:
        return inputs
    return np.hstack([inputs, np.full((len(inputs), 1), given.constant_input)])


def without_constant(given: LayerGradient, inputs: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and their root-mean-square errors without that of the bias, where the layer counts it as one."""
    if given.constant_input is None:
        return inputs, errors
    return inputs[:, :-1], errors * np.sqrt(inputs.shape[1] / (inputs.shape[1] - 1))

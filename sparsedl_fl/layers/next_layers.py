"""The linear layers downstream of the attacked one, as the server knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from sparsedl_fl.activations import HEAD, KNOWN, Activation
from sparsedl_fl.layers.given_arrays import as_float_array
from sparsedl_fl.layers.network_tail import RestOfNetwork

__all__ = [
    "Head",
    "Layer",
    "LayerBehind",
    "NetworkTail",
    "check_activation_given",
    "check_downstream",
    "following_layers",
    "as_given",
]


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear layer downstream of the attacked one, ``z' = W' phi(z) + bias'``, as far as it is known.

    Attributes
    ----------
    weight_grad : ndarray of shape (k, m) or None
        Gradient of its weights.
    weight : ndarray of shape (k, m) or None, default=None
        ``W'``.
    bias : ndarray of shape (k,) or None, default=None
        ``bias'``.
    activation : str, Activation or None, default=None
        What follows it.
    """

    weight_grad: np.ndarray | None
    weight: np.ndarray | None = None
    bias: np.ndarray | None = None
    activation: str | Activation | None = None


@dataclass(frozen=True, eq=False)
class LayerBehind:
    """A downstream layer, as a caller gives it: with the gradient of the layer after it.

    Parameters
    ----------
    weight : array-like or torch.Tensor of shape (k, m)
        ``W'``.
    bias : array-like or torch.Tensor of shape (k,), or None
        ``bias'``; None for a layer without one.
    activation : str or Activation
        What follows it.
    next_weight_grad : array-like or torch.Tensor of shape (j, k)
        Gradient of the weights of the linear layer after it.
    """

    weight: Any
    bias: Any
    activation: str | Activation
    next_weight_grad: Any

    def __post_init__(self) -> None:
        check_activation_given(self.activation)
        weight, bias = _weight_and_bias("a LayerBehind", self.weight, self.bias)
        gradient = as_float_array("next_weight_grad of a LayerBehind", self.next_weight_grad)
        if gradient.shape[1:] != (len(weight),):
            raise ValueError(
                f"a LayerBehind must have weight (k, m), bias (k,) and next_weight_grad (j, k), got {weight.shape}, "
                f"{bias.shape} and {gradient.shape}"
            )
        if not np.isfinite(gradient).all():
            raise ValueError("next_weight_grad of a LayerBehind contains NaN or infinity")
        vars(self).update(weight=weight, bias=bias, next_weight_grad=gradient)


@dataclass(frozen=True, eq=False)
class Head:
    """A model's last layer and the loss.

    Parameters
    ----------
    weight : array-like or torch.Tensor of shape (k, m)
        ``W``.
    bias : array-like or torch.Tensor of shape (k,), or None
        Its bias; None for a layer without one.
    loss : RestOfNetwork
        The loss.
    """

    weight: Any
    bias: Any
    loss: RestOfNetwork

    def __post_init__(self) -> None:
        weight, bias = _weight_and_bias("a head", self.weight, self.bias)
        vars(self).update(weight=weight, bias=bias)

    def sent_back(self, activations: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the loss at the layer's inputs, of shape (n, m), in their precision."""
        W, bias = (torch.from_numpy(part).to(activations.dtype) for part in (self.weight, self.bias))
        return self.loss.gradients_for(activations @ W.T + bias, labels) @ W


@dataclass(frozen=True, eq=False)
class NetworkTail:
    """The network up to the loss, as far as it is known.

    Attributes
    ----------
    rest : RestOfNetwork or None, default=None
        From the outputs of the layer attacked to the loss.
    head : Head or None, default=None
        The model's last layer, where it follows the last of the layers known through an activation.
    """

    rest: RestOfNetwork | None = None
    head: Head | None = None

    @property
    def is_of_head(self) -> bool:
        """Whether the attacked layer is the model's last, followed by the loss alone."""
        return self.rest is not None and self.rest.is_loss_alone


def _weight_and_bias(name: str, weight: Any, bias: Any) -> tuple[np.ndarray, np.ndarray]:
    weight = as_float_array(f"weight of {name}", weight)
    bias = np.zeros(len(weight)) if bias is None else as_float_array(f"bias of {name}", bias)
    if weight.ndim != 2 or bias.shape != (len(weight),):
        raise ValueError(f"{name} must have weight (k, m) and bias (k,), got {weight.shape} and {bias.shape}")
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise ValueError(f"weight or bias of {name} contains NaN or infinity")
    return weight, bias


def check_activation_given(activation: Any) -> None:
    """Raise ``ValueError`` for anything but an activation, the name of one, or None."""
    names = [*sorted(KNOWN), HEAD.name]
    if not (activation is None or isinstance(activation, Activation) or activation in names):
        raise ValueError(f"activation must be an Activation, one of {names} or None, got {activation!r}")


def check_downstream(width: int, behind: Sequence[LayerBehind], head: Head | None = None) -> None:
    """Raise where the shapes of consecutive layers do not agree, from a layer of that width to the head."""
    for index, layer in enumerate(behind):
        if not isinstance(layer, LayerBehind):
            raise TypeError(f"behind must be a sequence of LayerBehind, got {type(layer).__name__}")
        if layer.weight.shape[1] != width:
            raise ValueError(f"behind[{index}] takes {layer.weight.shape[1]} inputs, and the layer before has {width}")
        width = len(layer.weight)
    if head is not None and head.weight.shape[1] != width:
        raise ValueError(f"head takes {head.weight.shape[1]} inputs, and the layer before has {width}")


def following_layers(
    next_weight_grad: np.ndarray | None, next_weight: np.ndarray | None, behind: Sequence[LayerBehind]
) -> tuple[Layer, ...]:
    """Return the downstream layers, the next one first; of the last one only the gradient need be known.

    Parameters
    ----------
    next_weight_grad, next_weight : ndarray of shape (k, m) or None
        Of the next layer; its weights count rather than those of the first of ``behind``.
    behind : sequence of LayerBehind
        Checked by `check_downstream`.
    """
    if next_weight is next_weight_grad is None and not behind:
        return ()
    gradients = [next_weight_grad, *(layer.next_weight_grad for layer in behind)]
    known = zip(gradients, behind, strict=False)
    layers = [*(Layer(G, layer.weight, layer.bias, layer.activation) for G, layer in known), Layer(gradients[-1])]
    if next_weight is not None:
        if behind and next_weight.shape != behind[0].weight.shape:
            raise ValueError(
                f"next_weight must have the shape of the weight of behind[0] {behind[0].weight.shape}, got "
                f"{next_weight.shape}"
            )
        layers[0] = replace(layers[0], weight=next_weight)
    return tuple(layers)


def as_given(layers: Sequence[Layer]) -> tuple[LayerBehind, ...]:
    """Return the downstream layers as a caller gives them."""
    return tuple(
        LayerBehind(layer.weight, layer.bias, layer.activation, after.weight_grad) for layer, after in pairwise(layers)
    )

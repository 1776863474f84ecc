"""What the server knows of a linear layer behind the one that is attacked."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparsedl_fl.activations import HEAD, KNOWN, Activation
from sparsedl_fl.layers.network_tail import RestOfNetwork

__all__ = ["LARGE", "Head", "LayerBehind", "Shared", "as_float_array", "check_activation_given", "check_chain"]

LARGE = ("weight", "weight_grad", "next_weight")
"""Arrays that stay in single precision where they come in it."""


@dataclass(frozen=True, eq=False)
class Shared:
    """A large array or tensor that nobody changes as long as it is in use, so that it need not be copied.

    Attributes
    ----------
    value : ndarray or torch.Tensor
        It.
    """

    value: Any


@dataclass(frozen=True, eq=False)
class LayerBehind:
    """A linear layer further behind, ``z' = W' phi(z) + bias'``, and the gradient of the one behind it.

    Parameters
    ----------
    weight : array-like or torch.Tensor of shape (k, m)
        ``W'``.
    bias : array-like or torch.Tensor of shape (k,), or None
        ``bias'``; None for a layer without one.
    activation : str or Activation
        What follows it.
    next_weight_grad : array-like or torch.Tensor of shape (j, k)
        Gradient of the weights of the linear layer behind it.
    """

    weight: Any
    bias: Any
    activation: str | Activation
    next_weight_grad: Any

    def __post_init__(self) -> None:
        check_activation_given(self.activation)
        weight, bias = _weight_and_bias("a layer behind", self.weight, self.bias)
        gradient = as_float_array("behind next_weight_grad", self.next_weight_grad)
        if gradient.shape[1:] != (len(weight),):
            raise ValueError(
                f"a layer behind must have weight (k, m), bias (k,) and next_weight_grad (j, k), got {weight.shape}, "
                f"{bias.shape} and {gradient.shape}"
            )
        for name, array in {"weight": weight, "bias": bias, "next_weight_grad": gradient}.items():
            if not np.isfinite(array).all():
                raise ValueError(f"{name} of a layer behind contains NaN or infinity")
            object.__setattr__(self, name, array)

    def scaled(self, exponent: int) -> LayerBehind:
        """Return the same with its gradient times a power of two."""
        found = copy(self)  # nothing that was checked changes
        object.__setattr__(found, "next_weight_grad", np.ldexp(self.next_weight_grad, exponent))
        return found


@dataclass(frozen=True, eq=False)
class Head:
    """A model's last layer, and the loss behind it.

    Parameters
    ----------
    weight : array-like or torch.Tensor of shape (k, m)
        ``W``.
    bias : array-like or torch.Tensor of shape (k,), or None
        Its bias; None for a layer without one.
    loss : RestOfNetwork
        What lies behind.
    """

    weight: Any
    bias: Any
    loss: RestOfNetwork

    def __post_init__(self) -> None:
        weight, bias = _weight_and_bias("a head", self.weight, self.bias)
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "bias", bias)

    def sent_back(self, activations: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the loss at the layer's inputs, of shape (n, m), in their precision."""
        W, bias = (torch.from_numpy(part).to(activations.dtype) for part in (self.weight, self.bias))
        return self.loss.gradients_for(activations @ W.T + bias, labels) @ W


def _weight_and_bias(name: str, weight: Any, bias: Any) -> tuple[np.ndarray, np.ndarray]:
    weight = as_float_array(f"weight of {name}", weight)
    bias = np.zeros(len(weight)) if bias is None else as_float_array(f"bias of {name}", bias)
    if weight.ndim != 2 or bias.shape != (len(weight),):
        raise ValueError(f"{name} must have weight (k, m) and bias (k,), got {weight.shape} and {bias.shape}")
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise ValueError(f"weight or bias of {name} contains NaN or infinity")
    return weight, bias


def check_activation_given(activation: Any) -> None:
    """Raise ``ValueError`` for what is neither an activation nor the name of one."""
    names = [*sorted(KNOWN), HEAD.name]
    if not (activation is None or isinstance(activation, Activation) or activation in names):
        raise ValueError(f"activation must be an Activation, one of {names} or None, got {activation!r}")


def check_chain(width: int, behind: Sequence[LayerBehind], head: Head | None = None) -> None:
    """Raise where layers do not follow one another, the first on a layer of that width, and the head on the last."""
    for index, layer in enumerate(behind):
        if not isinstance(layer, LayerBehind):
            raise TypeError(f"behind must be a sequence of LayerBehind, got {type(layer).__name__}")
        if layer.weight.shape[1] != width:
            raise ValueError(f"behind[{index}] takes {layer.weight.shape[1]} inputs, and the layer before has {width}")
        width = len(layer.weight)
    if head is not None and head.weight.shape[1] != width:
        raise ValueError(f"head takes {head.weight.shape[1]} inputs, and the layer before has {width}")


def as_float_array(name: str, value: Any) -> np.ndarray:
    """Return a tensor or array as NumPy's, in double precision unless its name is one of `LARGE`.

    It is copied, unless it is `Shared`.
    """
    is_copied = not isinstance(value, Shared)
    value = value if is_copied else value.value
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        # Half precision is rounding of known size; NumPy has no bfloat16.
        value = (value.float() if value.dtype in (torch.float16, torch.bfloat16) else value).numpy()
    array = np.asarray(value)
    array = array.astype(np.float32) if array.dtype == np.float16 else array
    if array.dtype not in (np.float32, np.float64):
        raise TypeError(f"{name} must be of a floating type, got {array.dtype}; turn quantised numbers back first")
    return array.astype(array.dtype if name in LARGE else np.float64, copy=is_copied)

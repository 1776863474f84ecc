"""What the server knows of a linear layer behind the one that is attacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparsedl_fl.activations import HEAD, KNOWN, Activation

__all__ = ["LayerBehind", "as_float_array", "check_activation_given", "check_chain"]

LARGE = ("weight", "weight_grad", "next_weight")
"""Arrays that stay in single precision where they come in it."""


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
        weight = as_float_array("behind weight", self.weight)
        bias = np.zeros(len(weight)) if self.bias is None else as_float_array("behind bias", self.bias)
        gradient = as_float_array("behind next_weight_grad", self.next_weight_grad)
        if weight.ndim != 2 or bias.shape != (len(weight),) or gradient.shape[1:] != (len(weight),):
            raise ValueError(
                f"a layer behind must have weight (k, m), bias (k,) and next_weight_grad (j, k), got {weight.shape}, "
                f"{bias.shape} and {gradient.shape}"
            )
        for name, array in {"weight": weight, "bias": bias, "next_weight_grad": gradient}.items():
            if not np.isfinite(array).all():
                raise ValueError(f"{name} of a layer behind contains NaN or infinity")
            object.__setattr__(self, name, array)


def check_activation_given(activation: Any) -> None:
    """Raise ``ValueError`` for what is neither an activation nor the name of one."""
    names = [*sorted(KNOWN), HEAD.name]
    if not (activation is None or isinstance(activation, Activation) or activation in names):
        raise ValueError(f"activation must be an Activation, one of {names} or None, got {activation!r}")


def check_chain(width: int, behind: Sequence[LayerBehind]) -> None:
    """Raise where layers do not follow one another, the first on a layer of that width."""
    for index, layer in enumerate(behind):
        if not isinstance(layer, LayerBehind):
            raise TypeError(f"behind must be a sequence of LayerBehind, got {type(layer).__name__}")
        if layer.weight.shape[1] != width:
            raise ValueError(f"behind[{index}] takes {layer.weight.shape[1]} inputs, and the layer before has {width}")
        width = len(layer.weight)


def as_float_array(name: str, value: Any) -> np.ndarray:
    """Return a tensor or array as NumPy's, copied, in double precision unless its name is one of `LARGE`."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        # Half precision is rounding of known size; NumPy has no bfloat16.
        value = (value.float() if value.dtype in (torch.float16, torch.bfloat16) else value).numpy()
    array = np.asarray(value)
    array = array.astype(np.float32) if array.dtype == np.float16 else array
    if array.dtype not in (np.float32, np.float64):
        raise TypeError(f"{name} must be of a floating type, got {array.dtype}; turn quantised numbers back first")
    return array.astype(array.dtype if name in LARGE else np.float64)

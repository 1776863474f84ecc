"""Arrays and tensors as a caller gives them, checked and converted to NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["LARGE", "Shared", "as_float_array", "checked_arrays"]

LARGE = ("weight", "weight_grad", "next_weight", "next_weight_grad")
"""Arrays that stay in single precision where they are given in it."""


@dataclass(frozen=True, eq=False)
class Shared:
    """A large array or tensor that is not changed while it is in use, so that it need not be copied.

    Attributes
    ----------
    value : ndarray or torch.Tensor
        The array.
    """

    value: Any


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
        raise TypeError(f"{name} must be of a floating type, got {array.dtype}; dequantise first")
    return array.astype(array.dtype if name in LARGE else np.float64, copy=is_copied)


def checked_arrays(given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return arrays by name without those that are None, after checking shapes and numbers."""
    for name in ("bias", "bias_grad"):
        if given[name] is None:
            raise ValueError(
                f"{name} is missing: the scale of each input comes from the bias gradient (Thm 3.5); what leaks but "
                "for a factor was not looked for"
            )
    _check_devices(given)
    arrays = {name: as_float_array(name, value) for name, value in given.items() if value is not None}
    weight = arrays["weight"]
    if weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(f"weight must have shape (outputs, inputs), both positive, got {weight.shape}")
    m, n = weight.shape
    for name, shape in {"bias": (m,), "weight_grad": (m, n), "bias_grad": (m,)}.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} must have shape {shape} to go with weight {(m, n)}, got {arrays[name].shape}")
    for name in ("next_weight_grad", "next_weight"):
        if name in arrays and (arrays[name].ndim != 2 or arrays[name].shape[1] != m):
            raise ValueError(f"{name} must have shape (outputs, {m}), got {arrays[name].shape}")
    following, next_weight = arrays.get("next_weight_grad"), arrays.get("next_weight")
    if next_weight is not None and following is not None and next_weight.shape != following.shape:
        raise ValueError(
            f"next_weight must have the shape of next_weight_grad {following.shape}, got {next_weight.shape}"
        )
    for name, array in arrays.items():
        if name != "next_weight_grad" and not np.isfinite(array).all():
            raise ValueError(f"{name} contains NaN or infinity")
    if not arrays["weight_grad"].any():
        raise ValueError("weight_grad is all zeros: the batch was empty, has no loss, or the layer is dead")
    return arrays


def _check_devices(given: Mapping[str, Any]) -> None:
    devices = {name: str(value.device) for name, value in given.items() if isinstance(value, torch.Tensor)}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"all tensors must be on one device, got {listed}")
    if "meta" in devices.values():
        raise ValueError("the tensors are on the device 'meta' and hold no data; move the model to a real device")

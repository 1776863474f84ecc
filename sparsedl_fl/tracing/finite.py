"""Tensors with NaN or infinity, which count as missing in a gradient and are an error in a model; extreme scales."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from sparsedl_fl.tracing.naming import plain_name

__all__ = ["check_finite", "in_range", "without_non_finite"]

FURTHEST = 300
"""Exponent of the largest entry beyond which squares of small entries underflow, or large ones overflow."""


def check_finite(model: nn.Module) -> None:
    """Raise ``ValueError`` that names the first of a model's tensors with NaN or infinity."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and not tensor.is_meta and not _is_finite(tensor):
            raise ValueError(
                f"the model's {plain_name(name)!r} contains NaN or infinity: pass the weights at which the gradient "
                "was taken, from before training diverged"
            )


def without_non_finite(gradients: Mapping[str, torch.Tensor | None], stacklevel: int) -> dict[str, torch.Tensor | None]:
    """Return gradients by name, with None for those with NaN or infinity: they count as missing.

    Raises
    ------
    ValueError
        If none is left.

    Warns
    -----
    UserWarning
        If there are any, with their names.
    """
    spoilt = [name for name, tensor in gradients.items() if tensor is not None and not _is_finite(tensor)]
    if not spoilt:
        return dict(gradients)
    kept = {name: None if name in spoilt else tensor for name, tensor in gradients.items()}
    if all(tensor is None for tensor in kept.values()):
        raise ValueError("every gradient contains NaN or infinity: the client's training diverged, or half precision "
                         "overflowed; there is nothing to audit")  # fmt: skip
    warnings.warn(
        f"the gradient has NaN or infinity in {', '.join(map(repr, spoilt))}: these count as missing, and the "
        "other tensors are used",
        UserWarning,
        stacklevel=stacklevel,
    )
    return kept


def in_range(gradients: Mapping[str, torch.Tensor | None]) -> tuple[dict[str, torch.Tensor | None], float]:
    """Return gradients times a power of two that keeps their squares within double precision, and that factor."""
    extremes = [
        torch.aminmax(tensor.detach()) for tensor in gradients.values() if tensor is not None and tensor.numel()
    ]
    largest = max((abs(float(extreme)) for pair in extremes for extreme in pair), default=0.0)
    power = int(np.frexp(largest)[1])
    if abs(power) < FURTHEST or largest == 0:
        return dict(gradients), 1.0
    factor = float(np.ldexp(1.0, min(-power, 1022)))
    return {name: None if t is None else t.detach().double() * factor for name, t in gradients.items()}, factor


def _is_finite(tensor: torch.Tensor) -> bool:
    # The sum of magnitudes would overflow; the extremes do not, need no copy, and pass NaN on.
    return tensor.numel() == 0 or all(bool(extreme.isfinite()) for extreme in torch.aminmax(tensor.detach()))

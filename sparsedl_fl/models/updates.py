"""What the states of a model before and after local training say of one linear layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from sparsedl_fl.models.layers import get_tensor, pick_layer
from sparsedl_fl.models.naming import plain_names

__all__ = ["tensors_of_update"]


def tensors_of_update(
    before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor], learning_rate: float, layer: int | str
) -> dict[str, torch.Tensor | None]:
    """Return weights and summed gradients of one layer, by the names of the fields of a `LayerGradient`.

    Parameters
    ----------
    before, after, learning_rate, layer
        As in `sparsedl_fl.LayerGradient.from_update`.
    """
    if not (np.isfinite(learning_rate) and learning_rate > 0):
        raise ValueError(f"learning_rate must be a positive number, got {learning_rate!r}")
    before, after = plain_names("before", before), plain_names("after", after)
    weights = [key for key, value in before.items() if key.endswith("weight") and value.ndim == 2]
    names = [key.removesuffix("weight") for key in weights]
    prefix = pick_layer("layer", layer if isinstance(layer, int) else f"{layer}.", names)

    def gradient(key: str) -> torch.Tensor:
        start, end = get_tensor("before", before, key), get_tensor("after", after, key)
        if start.shape != end.shape:
            raise ValueError(
                f"{key!r} has shape {tuple(start.shape)} before and {tuple(end.shape)} after: not the same model"
            )
        return (start.detach().double() - end.detach().double()) / learning_rate

    bias = before.get(f"{prefix}bias")
    next_key = _next_weight(before, prefix)
    return {
        "weight": before[f"{prefix}weight"],
        "bias": bias,
        "weight_grad": gradient(f"{prefix}weight"),
        "bias_grad": gradient(f"{prefix}bias") if bias is not None else None,
        "next_weight_grad": gradient(next_key) if next_key is not None else None,
        "next_weight": before[next_key] if next_key is not None else None,
    }


def _next_weight(state: Mapping[str, torch.Tensor], prefix: str) -> str | None:
    """Return the key that follows a layer's tensors, if it is the weight of a linear layer with as many inputs."""
    weight = f"{prefix}weight"
    keys = [key for key in state if key != f"{prefix}bias"]
    following = keys[keys.index(weight) + 1 :][:1]
    is_linear = following and following[0].endswith("weight") and state[following[0]].ndim == 2
    return following[0] if is_linear and state[following[0]].shape[1] == len(state[weight]) else None

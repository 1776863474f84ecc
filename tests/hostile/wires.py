"""What happens to an update on its way to the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sparsedl_fl.layers.updates import gradients_of_update
from sparsedl_fl.simulation import WIRES as FORMATS
from tests.hostile.clients import LEARNING_RATE

__all__ = ["WIRES", "Wire"]

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Wire:
    """One kind of wire.

    Attributes
    ----------
    change : callable
        ``change(gradients, parameters, rng)`` returns what arrives.
    rounded : torch.dtype or None
        The format in which the server sent out its weights, where not float32.
    """

    change: Callable[[Tensors, Tensors, np.random.Generator], Tensors]
    rounded: torch.dtype | None = None

    def prepare(self, model: nn.Module) -> None:
        """Bring the model to the weights that were sent out."""
        if self.rounded is not None:
            with torch.no_grad():
                for tensor in model.parameters():
                    tensor.copy_(tensor.to(self.rounded))


def _as_sent(gradients: Tensors, parameters: Tensors, rng: np.random.Generator) -> Tensors:
    return gradients


def _weights(dtype: torch.dtype) -> Wire:
    """Send the weights after one step in a format, which the server takes the difference of."""

    def change(gradients: Tensors, parameters: Tensors, rng: np.random.Generator) -> Tensors:
        before = {name: parameters[name] for name in gradients}
        after = {name: (before[name] - LEARNING_RATE * tensor).to(dtype) for name, tensor in gradients.items()}
        return gradients_of_update(before, after, LEARNING_RATE)

    return Wire(change, dtype)


def _format(name: str) -> Wire:
    return Wire(lambda gradients, parameters, rng: {key: FORMATS[name](tensor) for key, tensor in gradients.items()})


def _noise(sigma: float) -> Wire:
    """Clip the whole update to norm 1 and add Gaussian noise to each entry, as local DP mods do."""

    def change(gradients: Tensors, parameters: Tensors, rng: np.random.Generator) -> Tensors:
        norm = torch.stack([tensor.norm() for tensor in gradients.values()]).norm()
        factor = float((1 / norm).clamp(max=1))
        return {
            name: factor * tensor + torch.from_numpy(sigma * rng.standard_normal(tuple(tensor.shape))).to(tensor)
            for name, tensor in gradients.items()
        }

    return Wire(change)


def _matrices(gradients: Tensors) -> list[str]:
    return [name for name, tensor in gradients.items() if tensor.ndim == 2]


def _spoilt(gradients: Tensors, parameters: Tensors, rng: np.random.Generator) -> Tensors:
    """Put NaN into the first matrix that no embedding is."""
    name = next(name for name in _matrices(gradients) if "emb" not in name)
    tensor = gradients[name].clone()
    tensor.view(-1)[0] = float("nan")
    return {**gradients, name: tensor}


def _without_head(gradients: Tensors, parameters: Tensors, rng: np.random.Generator) -> Tensors:
    """Leave out the last layer, which stays with the client (FedPer); the only layer is sent without its bias."""
    names = _matrices(gradients)
    last = names[-1] if len(names) > 1 else next(reversed(gradients))
    left_out = {last, f"{last.removesuffix('weight')}bias"}
    return {name: tensor for name, tensor in gradients.items() if name not in left_out}


WIRES: dict[str, Wire] = {
    "gradient": Wire(_as_sent),
    "float32 weights": _weights(torch.float32),
    "float16 weights": _weights(torch.float16),
    "bfloat16 weights": _weights(torch.bfloat16),
    "int8": _format("int8"),
    "top half": _format("top half"),
    "top tenth": _format("top tenth"),
    "small noise": _noise(4.8e-5),
    "large noise": _noise(1e-2),
    "percentile privacy": _format("percentile 10, gamma 0.01"),
    "NaN in a tensor": Wire(_spoilt),
    "without the head": Wire(_without_head),
}
"""By name. The small noise is FLIP's default (clip 1, sigma 4.8e-5)."""

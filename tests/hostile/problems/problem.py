"""What hostile problems are made of: a batch, a network, and what the server gets to see of a gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedl_fl.demo import natural_patches
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.simulation import client_gradient

__all__ = ["HostileProblem", "build_network", "draw_inputs", "send"]

N_CLASSES = 10
N_NUMBERS = 150
"""Length of a made-up input; a patch of a photograph has 768."""


@dataclass
class HostileProblem:
    """What the server is given, and the truth.

    Attributes
    ----------
    inputs : torch.Tensor of shape (batch_size, n)
        The true inputs of the first layer, those that the client lost on the way (by dropout before the layer) as the
        layer saw them.
    layer_gradient : LayerGradient or None
        What the server has; None where it could not be made, with the reason in ``refusal``.
    told : dict
        ``batch_size`` and ``noise_level`` for the inverter.
    description : str
        What was done.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    model: nn.Module
    rng: np.random.Generator
    layer_gradient: LayerGradient | None = None
    refusal: str = ""
    told: dict[str, Any] = field(default_factory=dict)
    description: str = ""

    @property
    def generator(self) -> torch.Generator:
        """A new generator for torch, from the problem's own."""
        return torch.Generator().manual_seed(int(self.rng.integers(2**31)))


def draw_inputs(batch_size: int, rng: np.random.Generator) -> tuple[torch.Tensor, str]:
    """Draw inputs of one of three kinds, and return its name too."""
    kind = str(rng.choice(["patches", "numbers", "uncentred"], p=[0.5, 0.3, 0.2]))
    if kind == "patches":
        patches, mean, std = natural_patches(batch_size, int(rng.integers(2**31)))
        inputs = ((patches - mean) / std)[:, ::2, ::2].reshape(batch_size, -1)
    elif kind == "numbers":
        inputs = rng.standard_normal((batch_size, N_NUMBERS))
    else:
        inputs = rng.uniform(size=(batch_size, N_NUMBERS))
    return torch.tensor(inputs, dtype=torch.float32), kind


def build_network(
    n_inputs: int, width: int, activation: Callable[[], nn.Module], seed: int, *between: nn.Module
) -> Any:
    """Build a network of two hidden layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(n_inputs, width), *between, activation(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, N_CLASSES),
        )  # fmt: skip


def send(problem: HostileProblem, gradients: dict[str, torch.Tensor] | None = None) -> None:
    """Let the server see a gradient, with or without the next layer's."""
    model = problem.model
    gradients = client_gradient(model, problem.inputs, problem.labels) if gradients is None else gradients
    try:
        given = LayerGradient.from_model(model, gradients, "0")
        # What hides behind the layer is not for the server to see here: it takes it for a ReLU.
        given = replace(given, activation="relu")
        problem.layer_gradient = given if problem.rng.random() < 0.5 else replace(given, next_weight_grad=None)
    except (ValueError, TypeError) as error:
        problem.refusal = str(error)

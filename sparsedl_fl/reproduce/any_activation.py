"""Batches behind networks with any activation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from sparsedl_fl.reproduce.experiments import ImageBatch
from sparsedl_fl.simulation import fully_connected

__all__ = ["MODULES", "ActivationBatch"]

MODULES: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu-tanh": lambda: nn.GELU("tanh"),
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "leaky-relu-0.01": lambda: nn.LeakyReLU(0.01),
    "leaky-relu-0.2": lambda: nn.LeakyReLU(0.2),
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "selu": nn.SELU,
    "celu": nn.CELU,
    "mish": nn.Mish,
    "hardswish": nn.Hardswish,
    "prelu": nn.PReLU,
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
    "threshold": lambda: nn.Threshold(0.1, 0.05),
}
"""What the rows of a table call them."""


@dataclass(frozen=True)
class ActivationBatch(ImageBatch):
    """Images behind a fully connected network with another activation than ReLU.

    Attributes
    ----------
    activation : str
        A name in `MODULES`.
    """

    activation: str = "relu"

    def network(self, n_inputs: int, n_classes: int, seed: int) -> nn.Sequential:
        """Return the network of a seed."""
        model = fully_connected(
            n_inputs, width=self.width, n_hidden=self.n_hidden, n_classes=n_classes, random_state=seed
        )
        for index in range(1, len(model), 2):
            model[index] = MODULES[self.activation]()
        return model

"""What follows a layer, by the names that the rows of a table have."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

__all__ = ["MODULES"]

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

"""Activations that are linear above zero and exponential below: ELU and its relatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl.activations.smooth import Smooth, positive

__all__ = ["CELU", "ELU", "SELU"]


class ELU(Smooth):
    """``z`` above zero and ``alpha (exp(z) - 1)`` below.

    Parameters
    ----------
    alpha : float, default=1
        What it approaches, but for its sign.
    """

    name = "elu"
    torch_types: ClassVar[tuple[type[nn.Module], ...]] = (nn.ELU,)
    operations: ClassVar[tuple[str, ...]] = ("elu",)

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = positive("alpha", alpha)

    @classmethod
    def of_call(cls, arguments: Sequence[Any]) -> ELU | None:
        """Return it with its alpha, unless the call scales the function, as SELU and CELU do."""
        alpha, scale, input_scale = _elu_arguments(arguments)
        return cls(alpha) if scale == input_scale == 1 else None

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return functional.elu(z, self.alpha)

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``."""
        return torch.where(z > 0, torch.ones_like(z), self.alpha * z.clamp(max=0).exp())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.alpha:g})"


class CELU(ELU):
    """``z`` above zero and ``alpha (exp(z / alpha) - 1)`` below.

    Parameters
    ----------
    alpha : float, default=1
        What it approaches, but for its sign.
    """

    name = "celu"
    torch_types = (nn.CELU,)
    operations = ("elu", "celu")

    @classmethod
    def of_call(cls, arguments: Sequence[Any]) -> CELU | None:
        """Return it with its alpha, by which the call divides what goes in."""
        alpha, scale, input_scale = _elu_arguments(arguments)
        is_own = scale == 1 and (len(arguments) < 3 or math.isclose(input_scale * alpha, 1))
        return cls(alpha) if is_own else None

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return functional.celu(z, self.alpha)

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``."""
        return torch.where(z > 0, torch.ones_like(z), (z.clamp(max=0) / self.alpha).exp())


class SELU(Smooth):
    """The ELU that keeps mean and variance."""

    name = "selu"
    torch_types = (nn.SELU,)
    alpha: ClassVar[float] = 1.6732632423543772848170429916717
    scale: ClassVar[float] = 1.0507009873554804934193349852946

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return functional.selu(z)

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``."""
        return self.scale * torch.where(z > 0, torch.ones_like(z), self.alpha * z.clamp(max=0).exp())


def _elu_arguments(arguments: Sequence[Any]) -> tuple[float, float, float]:
    """Return alpha, scale and input scale of a call of torch's ``elu``."""
    alpha, scale, input_scale = [*(float(number) for number in arguments[1:4]), *(1.0,) * (4 - len(arguments[:4]))]
    return alpha, scale, input_scale

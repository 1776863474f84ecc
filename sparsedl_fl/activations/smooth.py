"""Activations without straight pieces: their gradient vanishes nowhere, and only the other views say anything.

Each is its value and its derivative; the nearest point of its graph is found by looking.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl.activations._base import Activation

__all__ = ["CELU", "ELU", "GELU", "SELU", "Hardswish", "Mish", "SiLU", "Sigmoid", "Smooth", "Softplus", "Tanh"]

N_MINIMA, N_STEPS = 3, 30
"""Local minima on the grid that are followed, and steps of Newton's method at most."""


class Smooth(Activation):
    """An activation that is known by its value and its derivative.

    Attributes
    ----------
    reach : float
        The function counts as straight outside of ``[-reach, reach]``.
    """

    reach: ClassVar[float] = 12.0

    def nearest_on_graph(
        self, z: torch.Tensor, y: torch.Tensor, weight: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the best of some local minima: those on a grid, each followed by Gauss and Newton's steps.

        This looks at some 250 points for each number.
        """

        def cost(t: torch.Tensor) -> torch.Tensor:
            return (t - z[..., None]).square() + weight * (self.value(t) - y[..., None]).square()

        grid = torch.linspace(-self.reach, self.reach, 241, dtype=z.dtype, device=z.device)
        costs = cost(grid.expand(*z.shape, len(grid)))
        padded = functional.pad(costs, (1, 1), value=math.inf)
        is_minimum = (costs <= padded[..., :-2]) & (costs <= padded[..., 2:])
        t = grid[torch.where(is_minimum, costs, math.inf).topk(N_MINIMA, largest=False).indices]
        t = torch.cat([t, z[..., None]], dim=-1)
        now, length = cost(t), torch.ones_like(t)
        for _ in range(N_STEPS):
            value, slope = self.value(t), self.derivative(t)
            gradient = (t - z[..., None]) + weight * slope * (value - y[..., None])
            moved = t - length * gradient / (1 + weight * slope.square())
            after = cost(moved)
            helps = after < now
            t, now = torch.where(helps, moved, t), torch.where(helps, after, now)
            length = torch.where(helps, (2 * length).clamp(max=1), length / 4)
        best = now.argmin(dim=-1, keepdim=True)
        t = t.gather(-1, best)[..., 0]
        return t, self.value(t)

    def near_on_graph(
        self, z: torch.Tensor, y: torch.Tensor, weight: float | torch.Tensor = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where four steps of Gauss and Newton's lead from ``z``."""
        t = z
        for _ in range(4):
            value, slope = self.value(t), self.derivative(t)
            t = t - ((t - z) + weight * slope * (value - y)) / (1 + weight * slope.square())
        return t, self.value(t)


class ELU(Smooth):
    """``z`` above zero and ``alpha (exp(z) - 1)`` below.

    Parameters
    ----------
    alpha : float, default=1
        What it approaches, but for its sign.
    """

    name = "elu"
    torch_types = (nn.ELU,)
    operations = ("elu",)

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = _positive("alpha", alpha)

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


class GELU(Smooth):
    """``z`` times the normal distribution function of ``z``.

    Parameters
    ----------
    approximate : "none" or "tanh", default="none"
        Whether by a hyperbolic tangent, as in torch.
    """

    torch_types = (nn.GELU,)
    is_monotone = False

    def __init__(self, approximate: str = "none") -> None:
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")
        self.approximate = approximate

    name = "gelu"

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return functional.gelu(z, approximate=self.approximate)

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``."""
        if self.approximate == "none":
            density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
            return 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * density
        root, cubic = math.sqrt(2 / math.pi), 0.044715
        tanh = torch.tanh(root * (z + cubic * z**3))
        return 0.5 * (1 + tanh) + 0.5 * z * (1 - tanh.square()) * root * (1 + 3 * cubic * z.square())

    def __repr__(self) -> str:
        return "GELU()" if self.approximate == "none" else "GELU('tanh')"


class SiLU(Smooth):
    """``z`` times its sigmoid."""

    name = "silu"
    torch_types = (nn.SiLU,)
    is_monotone = False

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return functional.silu(z)

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``."""
        sigmoid = torch.sigmoid(z)
        return sigmoid * (1 + z * (1 - sigmoid))


class Mish(Smooth):
    """``z tanh(softplus(z))``."""

    name = "mish"
    torch_types = (nn.Mish,)
    is_monotone = False

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return functional.mish(z)

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``."""
        tanh = torch.tanh(functional.softplus(z))
        return tanh + z * torch.sigmoid(z) * (1 - tanh.square())


class Hardswish(Smooth):
    """``z min(max(z + 3, 0), 6) / 6``. Below -3 it is flat, too far out for zeros of the gradient to tell anything."""

    name = "hardswish"
    torch_types = (nn.Hardswish,)
    is_monotone = False

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return functional.hardswish(z)

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``."""
        return torch.where(z > 3, torch.ones_like(z), torch.where(z < -3, torch.zeros_like(z), z / 3 + 0.5))


class Softplus(Smooth):
    """``log(1 + exp(beta z)) / beta``.

    Parameters
    ----------
    beta : float, default=1
        Its sharpness.
    """

    name = "softplus"
    torch_types = (nn.Softplus,)
    operations = ("softplus",)

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = _positive("beta", beta)

    @classmethod
    def of_call(cls, arguments: Sequence[Any]) -> Softplus:
        """Return it with its beta."""
        return cls(*(float(beta) for beta in arguments[1:2]))

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return functional.softplus(z, self.beta)

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``."""
        return torch.sigmoid(self.beta * z)

    def __repr__(self) -> str:
        return f"Softplus({self.beta:g})"


class Tanh(Smooth):
    """The hyperbolic tangent."""

    name = "tanh"
    torch_types = (nn.Tanh,)

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return torch.tanh(z)

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``."""
        return 1 - torch.tanh(z).square()


class Sigmoid(Smooth):
    """``1 / (1 + exp(-z))``."""

    name = "sigmoid"
    torch_types = (nn.Sigmoid,)

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return torch.sigmoid(z)

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``."""
        value = torch.sigmoid(z)
        return value * (1 - value)


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return float(value)


def _elu_arguments(arguments: Sequence[Any]) -> tuple[float, float, float]:
    """Return alpha, scale and input scale of a call of torch's ``elu``."""
    alpha, scale, input_scale = [*(float(number) for number in arguments[1:4]), *(1.0,) * (4 - len(arguments[:4]))]
    return alpha, scale, input_scale

"""Smooth activations: their gradient is nowhere zero, so that only constraints other than zeros apply.

Each is defined by its value and its derivative; the nearest point of its graph is found on a grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl.activations.base_activation import Activation

__all__ = ["GELU", "Hardswish", "Mish", "SiLU", "Sigmoid", "Smooth", "Softplus", "Tanh", "positive"]

N_POINTS, N_MINIMA, N_SECTIONS = 241, 3, 45
"""Points of the grid, local minima of it that are refined, and golden-section steps for each."""

GOLDEN = (math.sqrt(5) - 1) / 2


class Smooth(Activation):
    """An activation that is known by its value and its derivative.

    Attributes
    ----------
    reach : float
        The nearest point of the graph is searched in ``[-reach, reach]``, and as far out as the numbers given.
    """

    reach: ClassVar[float] = 12.0

    def nearest_on_graph(
        self, z: torch.Tensor, y: torch.Tensor, weight: float | torch.Tensor = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the best of some local minima, found on a grid and refined by golden-section search.

        It evaluates some 400 points for each number.
        """

        def cost(t: torch.Tensor) -> torch.Tensor:
            return (t - z[..., None]).square() + weights * (self.value(t) - y[..., None]).square()

        weights = torch.as_tensor(weight, dtype=z.dtype, device=z.device)[..., None]
        reach = max(self.reach, float(z.abs().max()) if z.numel() else 0.0)
        n_points = round(N_POINTS * reach / self.reach)
        grid = torch.linspace(-reach, reach, n_points, dtype=z.dtype, device=z.device)
        costs = cost(grid.expand(*z.shape, n_points))
        padded = functional.pad(costs, (1, 1), value=math.inf)
        is_minimum = (costs <= padded[..., :-2]) & (costs <= padded[..., 2:])
        middle = grid[torch.where(is_minimum, costs, math.inf).topk(N_MINIMA, largest=False).indices]
        low, high = middle - (grid[1] - grid[0]), middle + (grid[1] - grid[0])
        for _ in range(N_SECTIONS):
            left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
            is_left = cost(left) < cost(right)
            low, high = torch.where(is_left, low, left), torch.where(is_left, right, high)
        t = torch.cat([(low + high) / 2, z[..., None], self.near_on_graph(z, y, weight)[0][..., None]], dim=-1)
        t = t.gather(-1, cost(t).argmin(dim=-1, keepdim=True))[..., 0]
        return t, self.value(t)

    def near_on_graph(
        self, z: torch.Tensor, y: torch.Tensor, weight: float | torch.Tensor = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the point after four Gauss-Newton steps from ``z``."""
        t = z
        for _ in range(4):
            value, slope = self.value(t), self.derivative(t)
            t = t - ((t - z) + weight * slope * (value - y)) / (1 + weight * slope.square())
        return t, self.value(t)


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
    """``z min(max(z + 3, 0), 6) / 6``. Its slope is zero below -3, too far out to give zeros of the gradient."""

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
        self.beta = positive("beta", beta)

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


def positive(name: str, value: float) -> float:
    """Return a positive number, or raise ``ValueError`` that names it."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return float(value)

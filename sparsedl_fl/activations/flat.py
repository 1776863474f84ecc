"""Activations with zero slope below a kink, and some above another one: ReLU and its relatives.

A unit is active between ``lower`` and ``upper``, with slope one, and inactive elsewhere, where its gradient vanishes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from sparsedl_fl.activations.base_activation import Activation

__all__ = ["FlatPart", "Hardtanh", "ReLU", "ReLU6", "Threshold"]


class FlatPart(Activation):
    """Active with slope one from ``lower`` to ``upper``, constant outside.

    Attributes
    ----------
    lower, upper : float
        Bounds of the active interval; ``upper`` may be infinite.
    value_below : float
        Output below ``lower``. Above it the output is ``z`` plus `offset`.
    """

    has_flat_part: ClassVar[bool] = True
    is_piecewise_linear: ClassVar[bool] = True
    lower: float = 0.0
    upper: float = math.inf
    value_below: float = 0.0
    offset: float = 0.0

    @property
    def is_straight_around_zero(self) -> bool:
        """Whether units are active for small pre-activations of either sign: most are then active, and zeros few."""
        return self.lower < 0 < self.upper

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return torch.where(z > self.lower, z.clamp(max=self.upper) + self.offset, self.value_below)

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return one where a unit is active and zero elsewhere."""
        return (~self.is_off(z)).to(z.dtype)

    def is_off(self, z: torch.Tensor, tolerance: float | torch.Tensor = 0.0) -> torch.Tensor:
        """Return where units are inactive, by at least a tolerance."""
        below = z <= self.lower - tolerance
        return below if math.isinf(self.upper) else below | (z >= self.upper + tolerance)

    def depth(self, z: torch.Tensor) -> torch.Tensor:
        """Return how far inside a zero-slope region a unit is; zero where it is active."""
        below = (self.lower - z).clamp(min=0)
        return below if math.isinf(self.upper) else below + (z - self.upper).clamp(min=0)

    def nearest_on(self, z: torch.Tensor) -> torch.Tensor:
        """Return the nearest pre-activation at which a unit is active, or at the kink."""
        return z.clamp(min=self.lower, max=None if math.isinf(self.upper) else self.upper)

    def nearest_off(self, z: torch.Tensor) -> torch.Tensor:
        """Return the nearest pre-activation at which a unit is inactive, or at the kink."""
        below = z.clamp(max=self.lower)
        if math.isinf(self.upper):
            return below
        above = z.clamp(min=self.upper)
        return torch.where(above - z < z - below, above, below)

    def distance_to_kink(self, z: torch.Tensor) -> torch.Tensor:
        """Return the distance of a pre-activation from the nearest kink."""
        below = (z - self.lower).abs()
        return below if math.isinf(self.upper) else torch.minimum(below, (z - self.upper).abs())

    def log_odds_on(self, z: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
        """Return the log odds that a unit is active, where ``z`` has a Gaussian error of that standard deviation."""
        below = torch.special.log_ndtr((self.lower - z) / deviation)
        if math.isinf(self.upper):
            return torch.special.log_ndtr((z - self.lower) / deviation) - below
        inactive = torch.logaddexp(below, torch.special.log_ndtr((z - self.upper) / deviation)).clamp(max=0)
        smallest = torch.finfo(z.dtype).tiny
        return torch.log(-torch.expm1(inactive).clamp(max=-smallest)) - inactive

    def above_kink(self) -> FlatPart:
        """Return the activation to use where pre-activations above ``lower`` are known up to their scale alone."""
        return ReLU()

    def shape_at_kink(self) -> FlatPart | None:
        """Return the positively homogeneous activation that this one equals up to ``upper``, or None."""
        return ReLU() if (self.lower, self.value_below, self.offset) == (0.0, 0.0, 0.0) else None

    def nearest_where_on_and_off(
        self, z: torch.Tensor, y: torch.Tensor, weight: float | torch.Tensor = 1.0
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
        """Return the nearest pairs ``(z, phi(z))`` at which a unit is active, and inactive below ``lower``."""
        active = self.nearest_on((z + weight * (y - self.offset)) / (1 + weight))
        return (active, active + self.offset), (z.clamp(max=self.lower), torch.full_like(y, self.value_below))

    def nearest_on_graph(
        self, z: torch.Tensor, y: torch.Tensor, weight: float | torch.Tensor = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the nearest point of the two or three linear pieces."""
        constant = torch.full_like(y, self.value_below)
        best_z, best_y = z.clamp(max=self.lower), constant
        pieces = [((z + weight * (y - self.offset)) / (1 + weight)).clamp(self.lower, self.upper)]
        points = [(pieces[0], pieces[0] + self.offset)]
        if not math.isinf(self.upper):
            points.append((z.clamp(min=self.upper), torch.full_like(y, self.upper + self.offset)))
        cost = (best_z - z).square() + weight * (best_y - y).square()
        for point_z, point_y in points:
            other = (point_z - z).square() + weight * (point_y - y).square()
            is_nearer = other < cost
            best_z, best_y = torch.where(is_nearer, point_z, best_z), torch.where(is_nearer, point_y, best_y)
            cost = torch.minimum(cost, other)
        return best_z, best_y


class ReLU(FlatPart):
    """``max(z, 0)``."""

    name = "relu"
    torch_types = (nn.ReLU,)
    is_positively_homogeneous = True

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``max(z, 0)``."""
        return torch.relu(z)

    def nearest_on_graph(
        self, z: torch.Tensor, y: torch.Tensor, weight: float | torch.Tensor = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both at their weighted mean, or ``y = 0`` and ``z`` not positive."""
        mean = (z + weight * y) / (1 + weight)
        negative = z.clamp(max=0)
        is_active = (mean > -negative / (1 + weight) ** 0.5).to(z.dtype)
        nearest_y = mean * is_active
        return nearest_y + negative * (1 - is_active), nearest_y


class ReLU6(FlatPart):
    """``min(max(z, 0), 6)``."""

    name = "relu6"
    torch_types = (nn.ReLU6,)
    operations = ("hardtanh",)
    upper = 6.0

    @classmethod
    def of_call(cls, arguments: Sequence[Any]) -> ReLU6 | None:
        """Return it for a function that is cut at 0 and 6."""
        return cls() if tuple(arguments[1:3]) == (0, 6) else None


class Hardtanh(FlatPart):
    """``min(max(z, -1), 1)``, or between other bounds.

    Parameters
    ----------
    lower, upper : float, default=-1 and 1
        Where the function is the identity.
    """

    name = "hardtanh"
    torch_types = (nn.Hardtanh,)
    operations = ("hardtanh",)

    @classmethod
    def of_call(cls, arguments: Sequence[Any]) -> Hardtanh:
        """Return it with its bounds, which an example may not reach."""
        return cls(*(float(bound) for bound in arguments[1:3]))

    def __init__(self, lower: float = -1.0, upper: float = 1.0) -> None:
        if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
            raise ValueError(f"lower and upper must be finite and in this order, got {lower!r} and {upper!r}")
        self.lower, self.upper, self.value_below = float(lower), float(upper), float(lower)

    def __repr__(self) -> str:
        return f"Hardtanh({self.lower:g}, {self.upper:g})"


class Threshold(FlatPart):
    """``z`` above a threshold and a constant below.

    Parameters
    ----------
    threshold : float, default=0
        Pre-activation above which a unit is active.
    below : float, default=0
        Output below it.
    """

    name = "threshold"
    torch_types = (nn.Threshold,)
    operations = ("threshold",)

    @classmethod
    def of_call(cls, arguments: Sequence[Any]) -> Threshold:
        """Return it with its threshold and the value below."""
        return cls(*(float(number) for number in arguments[1:3]))

    def __init__(self, threshold: float = 0.0, below: float = 0.0) -> None:
        if not (math.isfinite(threshold) and math.isfinite(below)):
            raise ValueError(f"threshold and below must be finite, got {threshold!r} and {below!r}")
        self.lower, self.value_below = float(threshold), float(below)
        self.is_positively_homogeneous = self.lower == 0 and self.value_below == 0
        self.is_monotone = self.value_below <= self.lower  # the output does not fall at the threshold

    def __repr__(self) -> str:
        return f"Threshold({self.lower:g}, {self.value_below:g})"

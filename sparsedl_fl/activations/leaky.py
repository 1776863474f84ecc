"""Activations of two linear pieces, neither with slope zero: LeakyReLU, and PReLU with slopes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from sparsedl_fl.activations.base_activation import Activation

__all__ = ["LeakyReLU", "PReLU"]


class LeakyReLU(Activation):
    """``z`` above zero and a part of it below.

    Parameters
    ----------
    negative_slope : float, default=0.01
        The slope below zero; not zero itself, which is a ReLU.
    """

    name = "leaky_relu"
    torch_types: ClassVar[tuple[type[nn.Module], ...]] = (nn.LeakyReLU,)
    operations: ClassVar[tuple[str, ...]] = ("leaky_relu",)
    is_positively_homogeneous = True
    is_piecewise_linear = True

    def __init__(self, negative_slope: float = 0.01) -> None:
        if not (np.isfinite(negative_slope) and negative_slope != 0):
            raise ValueError(f"negative_slope must be finite and not zero (that is a ReLU), got {negative_slope!r}")
        self.negative_slope = self.slope_below = float(negative_slope)
        self.is_monotone = self.slope_below > 0

    @classmethod
    def of_call(cls, arguments: Sequence[Any]) -> LeakyReLU:
        """Return it with its slope, 0.01 where none is given."""
        return cls(*(float(slope) for slope in arguments[1:2]))

    def _slope_below(self, z: torch.Tensor) -> float | torch.Tensor:
        return self.negative_slope

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return torch.where(z > 0, z, z * self._slope_below(z))

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return one above zero and the slope below."""
        return torch.where(z > 0, torch.ones_like(z), self._slope_below(z) * torch.ones_like(z))

    def distance_to_kink(self, z: torch.Tensor) -> torch.Tensor:
        """Return the distance of a pre-activation from the kink."""
        return z.abs()

    def nearest_on_graph(
        self, z: torch.Tensor, y: torch.Tensor, weight: float | torch.Tensor = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the nearest point of the two pieces."""
        slope = self._slope_below(z)
        above = ((z + weight * y) / (1 + weight)).clamp(min=0)
        below = ((z + weight * slope * y) / (1 + weight * slope * slope)).clamp(max=0)
        cost_above = (above - z).square() + weight * (above - y).square()
        cost_below = (below - z).square() + weight * (slope * below - y).square()
        is_above = cost_above <= cost_below
        return torch.where(is_above, above, below), torch.where(is_above, above, slope * below)

    def __repr__(self) -> str:
        return f"LeakyReLU({self.negative_slope:g})"


class PReLU(LeakyReLU):
    """A LeakyReLU whose slopes below zero were learnt, one for all units or one each.

    Parameters
    ----------
    negative_slopes : float or sequence of float, default=0.25
        One, or as many as units.
    """

    name = "prelu"
    torch_types = (nn.PReLU,)
    operations = ("prelu", "_prelu_kernel")

    def __init__(self, negative_slopes: float | Sequence[float] = 0.25) -> None:
        slopes = tuple(float(slope) for slope in np.ravel(np.asarray(negative_slopes, dtype=float)))
        if not slopes or not np.all(np.isfinite(slopes)):
            raise ValueError(f"negative_slopes must be one finite number or one a unit, got {negative_slopes!r}")
        self.negative_slopes, self.slope_below, self.is_monotone = slopes, float(np.mean(slopes)), min(slopes) >= 0

    @classmethod
    def of_call(cls, arguments: Sequence[Any]) -> PReLU:
        """Return it with the slopes that were learnt."""
        return cls(arguments[1].detach().double().cpu().numpy())

    def shape_at_kink(self) -> PReLU | None:
        """Return the same where all units have one slope, or None."""
        return self if len(set(self.negative_slopes)) == 1 else None

    def _slope_below(self, z: torch.Tensor) -> torch.Tensor:
        slopes = torch.tensor(self.negative_slopes, dtype=z.dtype, device=z.device)
        if len(slopes) not in (1, z.shape[-1]):
            raise ValueError(
                f"negative_slopes has {len(slopes)} numbers for {z.shape[-1]} units: give one, or one each"
            )
        return slopes

    def __repr__(self) -> str:
        if len(self.negative_slopes) == 1:
            return f"PReLU({self.negative_slopes[0]:g})"
        return f"PReLU({len(self.negative_slopes)} slopes)"

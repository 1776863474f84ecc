"""What every activation knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

__all__ = ["Activation"]


class Activation(ABC):
    """An activation function ``phi``, applied to each unit by itself.

    Attributes
    ----------
    name : str
        By what it is called.
    torch_types : tuple of type
        Modules that compute it.
    has_flat_part : bool
        Whether the derivative is zero on an interval: the gradient of a unit vanishes there, the unit is *off*.
    is_positively_homogeneous : bool
        Whether ``phi(c z) = c phi(z)`` for ``c > 0``: pre-activations then need no scale.
    is_monotone : bool
        Whether ``phi`` never decreases.
    is_piecewise_linear : bool
        Whether it consists of straight pieces: its derivative then says nothing of how far a kink is.
    operations : tuple of str
        Torch operations whose arguments say which parameters it has (see `of_call`).
    lower : float
        Where the kink is; zero without any.
    slope_below : float
        Slope below the kink of one that is positively homogeneous; above it is one.
    """

    name: str
    torch_types: ClassVar[tuple[type[nn.Module], ...]] = ()
    operations: ClassVar[tuple[str, ...]] = ()
    has_flat_part: ClassVar[bool] = False
    is_positively_homogeneous: bool = False
    is_monotone: bool = True
    is_piecewise_linear: ClassVar[bool] = False
    lower: float = 0.0
    slope_below: float = 0.0

    @property
    def is_straight_around_zero(self) -> bool:
        """Whether there is a flat part, but not near zero: most units are on, and zeros of the gradient few."""
        return False

    @classmethod
    def of_call(cls, arguments: Sequence[Any]) -> Activation | None:
        """Return the activation that a torch operation with these arguments is, or None; the first one is ``z``."""
        return None

    @abstractmethod
    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""

    @abstractmethod
    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``, at a kink that of torch."""

    @abstractmethod
    def nearest_on_graph(
        self, z: torch.Tensor, y: torch.Tensor, weight: float | torch.Tensor = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pair with ``y' = phi(z')`` that has the smallest ``(z' - z)^2 + weight (y' - y)^2``, entrywise."""

    def near_on_graph(
        self, z: torch.Tensor, y: torch.Tensor, weight: float | torch.Tensor = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a pair that is nearly as near, fast enough for a search."""
        return self.nearest_on_graph(z, y, weight)

    def is_off(self, z: torch.Tensor, tolerance: float | torch.Tensor = 0.0) -> torch.Tensor:
        """Return where a unit is off, by at least a tolerance, as a boolean tensor: nowhere without a flat part."""
        return torch.zeros_like(z, dtype=torch.bool)

    def depth(self, z: torch.Tensor) -> torch.Tensor:
        """Return how far inside a flat part a unit is; zero where it is on."""
        return torch.zeros_like(z)

    def distance_to_kink(self, z: torch.Tensor) -> torch.Tensor:
        """Return by how much a pre-activation has to change for a unit to switch; infinite where none ever does."""
        return torch.full_like(z, torch.inf)

    def above_kink(self) -> Activation:
        """Return what there is to know of pre-activations above ``lower`` up to their scale alone."""
        return self

    def shape_at_kink(self) -> Activation | None:
        """Return the positively homogeneous activation that this one equals near its kink, or None."""
        return self if self.is_positively_homogeneous else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(vars(self).items())))

"""The base class of activations."""

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
        Its name.
    torch_types : tuple of type
        Modules that compute it.
    has_flat_part : bool
        Whether there is a zero-slope region: the gradient of a unit vanishes there, and the unit is inactive.
    is_positively_homogeneous : bool
        Whether ``phi(c z) = c phi(z)`` for ``c > 0``: the scale of pre-activations is then not needed.
    is_monotone : bool
        Whether ``phi`` never decreases.
    is_piecewise_linear : bool
        Whether it is piecewise linear: its derivative then does not show how far a kink is.
    operations : tuple of str
        Torch operations whose arguments say which parameters it has (see `of_call`).
    lower : float
        Position of the kink; zero without any.
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
        """Whether there are zero-slope regions, but not around zero: most units are active, and zeros are few."""
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
        """Return where units are inactive, by at least a tolerance; nowhere without a zero-slope region."""
        return torch.zeros_like(z, dtype=torch.bool)

    def depth(self, z: torch.Tensor) -> torch.Tensor:
        """Return how far inside a zero-slope region a unit is; zero where it is active."""
        return torch.zeros_like(z)

    def distance_to_kink(self, z: torch.Tensor) -> torch.Tensor:
        """Return the distance of a pre-activation from the nearest kink; infinite without any."""
        return torch.full_like(z, torch.inf)

    def above_kink(self) -> Activation:
        """Return the activation to use where pre-activations above ``lower`` are known up to their scale alone."""
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

"""What every activation knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

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
    """

    name: ClassVar[str]
    torch_types: ClassVar[tuple[type[nn.Module], ...]] = ()
    has_flat_part: ClassVar[bool] = False
    is_positively_homogeneous: ClassVar[bool] = False
    is_monotone: ClassVar[bool] = True

    @abstractmethod
    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""

    @abstractmethod
    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``, at a kink that of torch."""

    @abstractmethod
    def nearest_on_graph(
        self, z: torch.Tensor, y: torch.Tensor, weight: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pair with ``y' = phi(z')`` that has the smallest ``(z' - z)^2 + weight (y' - y)^2``, entrywise."""

    @abstractmethod
    def is_off(self, z: torch.Tensor, tolerance: float | torch.Tensor = 0.0) -> torch.Tensor:
        """Return where a unit is off, by at least a tolerance, as a boolean tensor."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(vars(self).items())))

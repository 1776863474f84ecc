"""What a view is: equations that the pre-activations of a true input fulfil, and how they change with these."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

__all__ = ["Linearization", "View"]


class View(ABC):
    """Equations for the pre-activations ``z`` of one input, each by itself."""

    @property
    @abstractmethod
    def n_equations(self) -> int:
        """How many there are."""

    @abstractmethod
    def at(self, preactivations: torch.Tensor) -> Linearization:
        """Return the equations near pre-activations of shape (n, m)."""

    @abstractmethod
    def weighted(self, n: int, spread: float, generator: torch.Generator) -> View:
        """Return the same for ``n`` inputs, with random weights of its parts for each: other ways to the same ends."""

    @abstractmethod
    def of_some(self, index: torch.Tensor) -> View:
        """Return the same for some of the inputs that it was weighted for."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> View:
        """Return the same in another precision."""


class Linearization(ABC):
    """How badly pre-activations fulfil the equations, and how that changes, to first order."""

    @property
    @abstractmethod
    def cost(self) -> torch.Tensor:
        """The square of what is left, of shape (n,)."""

    @property
    @abstractmethod
    def gradient(self) -> torch.Tensor:
        """The gradient of half the cost, of shape (n, m)."""

    @abstractmethod
    def curve(self, changes: torch.Tensor) -> torch.Tensor:
        """Return the gradient of half the square that changes of shape (n, m) make, to first order: ``J^T J dz``."""

    @property
    @abstractmethod
    def distances(self) -> torch.Tensor:
        """How far each is from fulfilling them, relative, of shape (n,)."""

    @property
    @abstractmethod
    def is_inside(self) -> torch.Tensor:
        """Which fulfil them up to rounding, of shape (n,)."""

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
    def to(self, dtype: torch.dtype) -> View:
        """Return the same in another precision."""


class Linearization(ABC):
    """What is left of the equations at some pre-activations, and how it changes: ``residuals + J dz``."""

    @property
    @abstractmethod
    def residuals(self) -> torch.Tensor:
        """What is left, of shape (n, n_residuals)."""

    @property
    @abstractmethod
    def distances(self) -> torch.Tensor:
        """How far each is from fulfilling them, relative, of shape (n,)."""

    @property
    @abstractmethod
    def is_inside(self) -> torch.Tensor:
        """Which fulfil them up to rounding, of shape (n,)."""

    @abstractmethod
    def push(self, changes: torch.Tensor) -> torch.Tensor:
        """Return ``J dz`` for changes of shape (n, m)."""

    @abstractmethod
    def pull(self, residuals: torch.Tensor) -> torch.Tensor:
        """Return ``J^T r`` of shape (n, m)."""

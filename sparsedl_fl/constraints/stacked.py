"""Several constraints as one: their equations add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from sparsedl_fl.constraints.constraint import Constraint, Inputs, Linearization, total

__all__ = ["Stacked"]


@dataclass(frozen=True)
class Stacked(Constraint):
    """The equations of several constraints.

    Attributes
    ----------
    constraints : tuple of Constraint
        They count alike, as each has relative residuals.
    """

    constraints: tuple[Constraint, ...]

    @classmethod
    def of(cls, *constraints: Constraint | None) -> Constraint | None:
        """Return those constraints that are not None as one, or None where there is none."""
        there = tuple(constraint for constraint in constraints if constraint is not None)
        return there[0] if len(there) == 1 else cls(there) if there else None

    @property
    def n_equations(self) -> int:
        """The sum over the constraints."""
        return sum(constraint.n_equations for constraint in self.constraints)

    @property
    def n_unknowns(self) -> int:
        """The same for all."""
        return max(constraint.n_unknowns for constraint in self.constraints)

    def _each(self, do: Callable[[Constraint], Constraint]) -> Stacked:
        return Stacked(tuple(do(constraint) for constraint in self.constraints))

    def scaled_to(self, preactivations: torch.Tensor) -> Stacked:
        """Return the same with residuals relative to typical ones."""
        return self._each(lambda constraint: constraint.scaled_to(preactivations))

    def by_noise(self, preactivations: torch.Tensor) -> Stacked:
        """Return the same with residuals in units of the noise."""
        return self._each(lambda constraint: constraint.by_noise(preactivations))

    def balanced(self, preactivations: torch.Tensor) -> Stacked:
        """Return the same with residuals in units of the rounding, which may differ much between constraints."""
        return self._each(lambda constraint: constraint.by_rounding(preactivations))

    def weighted(self, n: int, spread: float, generator: torch.Generator) -> Stacked:
        """Return the same for ``n`` starts, each constraint with random weights."""
        return self._each(lambda constraint: constraint.weighted(n, spread, generator))

    def unweighted(self) -> Stacked:
        """Return the same with the weights that all have."""
        return self._each(lambda constraint: constraint.unweighted())

    def without(self, inputs: Inputs) -> Stacked:
        """Return the same for the other samples of the batch."""
        return self._each(lambda constraint: constraint.without(inputs))

    def settled(self, preactivations: torch.Tensor) -> Stacked:
        """Return the same with what depends on the candidates fixed."""
        return self._each(lambda constraint: constraint.settled(preactivations))

    def of_some(self, index: torch.Tensor) -> Stacked:
        """Return the same for some of the rows."""
        return self._each(lambda constraint: constraint.of_some(index))

    def to(self, dtype: torch.dtype) -> Stacked:
        """Return the same in another precision."""
        return self._each(lambda constraint: constraint.to(dtype))

    def at(self, preactivations: torch.Tensor) -> StackedAt:
        """Return the equations at pre-activations of shape (n, m)."""
        return StackedAt(self, [constraint.at(preactivations) for constraint in self.constraints])


@dataclass(frozen=True)
class StackedAt(Linearization):
    """The residuals of several constraints at some pre-activations.

    Attributes
    ----------
    constraint : Stacked
        The constraints.
    parts : sequence of Linearization
        One for each.
    """

    constraint: Stacked
    parts: Sequence[Linearization]

    @cached_property
    def residual(self) -> torch.Tensor:
        """The residuals of all constraints, side by side."""
        return torch.cat([part.residual for part in self.parts], dim=1)

    def jvp(self, changes: torch.Tensor) -> torch.Tensor:
        """Return the changes of all residuals, side by side."""
        return torch.cat([part.jvp(changes) for part in self.parts], dim=1)

    def vjp(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum over the constraints."""
        by_part = rows.split([part.residual.shape[1] for part in self.parts], dim=1)
        return total(part.vjp(own) for part, own in zip(self.parts, by_part, strict=True))

    @property
    def distances(self) -> torch.Tensor:
        """Return the largest distance over the constraints."""
        return torch.stack([part.distances for part in self.parts]).amax(dim=0)

    @property
    def is_inside(self) -> torch.Tensor:
        """Return which fulfil all constraints."""
        return torch.stack([part.is_inside for part in self.parts]).all(dim=0)

    @property
    def log_chances(self) -> torch.Tensor:
        """Return those of all constraints."""
        return torch.cat([part.log_chances for part in self.parts], dim=1)

    @property
    def own_log_chances(self) -> torch.Tensor:
        """Return those of all constraints."""
        return torch.cat([part.own_log_chances for part in self.parts], dim=1)

    @property
    def least_log_chances(self) -> torch.Tensor:
        """Return those of all constraints."""
        return torch.cat([part.least_log_chances for part in self.parts], dim=1)

"""Base classes of constraints: equations that the pre-activations of a true sample fulfil, and their derivatives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Protocol

import torch

__all__ = [
    "LEAST_DISTANCE",
    "LEAST_SURPLUS",
    "LOG_CHANCE",
    "Counted",
    "Inputs",
    "Linearization",
    "Constraint",
    "complement",
    "log_chance",
    "total",
]

LEAST_SURPLUS = 4
"""Surplus of equations over unknowns that identifies samples at tolerances of a thousandth: a spurious minimiser
fulfils each equation with a chance of about the tolerance."""

LEAST_DISTANCE = 1e-7
"""Smallest distance that a single-precision client reaches; smaller ones count as this."""

LOG_CHANCE, LOG_LIKELY = -10.0, -2.0
"""Largest log10 p-value of a candidate that certifies it, so small that no spurious minimiser of all ever seen passes;
and the largest with which a search goes on."""


@dataclass(frozen=True)
class Constraint(ABC):
    """Equations that the pre-activations ``z`` of each true sample fulfil."""

    @property
    @abstractmethod
    def n_equations(self) -> int:
        """How many there are."""

    @abstractmethod
    def at(self, preactivations: torch.Tensor) -> Linearization:
        """Return the equations near pre-activations of shape (n, m)."""

    @property
    @abstractmethod
    def n_unknowns(self) -> int:
        """Number of unknowns of a candidate."""

    @property
    def identifies(self) -> bool:
        """Whether the batch is in range: the equations outnumber the unknowns, and only its samples fulfil them."""
        return self.n_equations - self.n_unknowns >= LEAST_SURPLUS

    def scaled_to(self, preactivations: torch.Tensor) -> Constraint:
        """Return the same with residuals relative to typical ones."""
        return self

    def by_noise(self, preactivations: torch.Tensor) -> Constraint:
        """Return the same with residuals in units of the noise of samples near these pre-activations."""
        return self

    def by_rounding(self, preactivations: torch.Tensor) -> Constraint:
        """Return the same with residuals in units of the expected rounding, where no samples show the noise yet."""
        return self.by_noise(preactivations)

    def balanced(self, preactivations: torch.Tensor) -> Constraint:
        """Return the same with each part in units of its own noise: the noisiest would shift the minimisers."""
        return self

    @property
    def has_kinks(self) -> bool:
        """Whether `smoothed` makes a difference."""
        return False

    def smoothed(self, share: float) -> Constraint:
        """Return the same with its kinks smoothed over a share of what is typical, where it has any."""
        return self

    def weighted(self, n: int, spread: float, generator: torch.Generator) -> Constraint:
        """Return the same for ``n`` starts, each with random weights of the parts: another path to them."""
        return self

    def unweighted(self) -> Constraint:
        """Return the same without random weights; what was settled for each row stays."""
        return self

    def settled(self, preactivations: torch.Tensor) -> Constraint:
        """Return the same with what depends on the candidate, such as its label, fixed for each of these."""
        return self

    def without(self, inputs: Inputs) -> Constraint:
        """Return the same for the other samples of the batch, deflated by these where it can be."""
        return self

    def of_some(self, index: torch.Tensor) -> Constraint:
        """Return the same for some of the rows that it was weighted for."""
        return self

    def to(self, dtype: torch.dtype) -> Constraint:
        """Return the same in another precision; the base class takes a dataclass of tensors."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: part.to(dtype) for name, part in parts.items() if torch.is_tensor(part)})


@dataclass(frozen=True)
class Inputs:
    """Some samples of the batch, in the layer's coordinates.

    Attributes
    ----------
    whitened : torch.Tensor of shape (n, b)
        ``p``, of any length.
    preactivations : torch.Tensor of shape (n, m)
        ``z``.
    gradients : torch.Tensor of shape (n, m)
        ``d``, up to a factor.
    """

    whitened: torch.Tensor
    preactivations: torch.Tensor
    gradients: torch.Tensor


class Counted(Protocol):
    """Anything with a number of equations and of unknowns."""

    @property
    def n_equations(self) -> int:
        """How many there are."""

    @property
    def n_unknowns(self) -> int:
        """How many numbers a candidate is made of."""


class Linearization(ABC):
    """The residual of the equations at some pre-activations, and its derivatives."""

    constraint: Counted

    @property
    @abstractmethod
    def residual(self) -> torch.Tensor:
        """The weighted residual of the equations, of shape (n, k)."""

    @abstractmethod
    def jvp(self, changes: torch.Tensor) -> torch.Tensor:
        """Return ``J dz``, of shape (n, k), for changes ``dz`` of shape (n, m); a single row takes any number."""

    @abstractmethod
    def vjp(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``J^T r``, of shape (n, m), for rows of shape (n, k) as `residual` and `jvp` return them."""

    @property
    def cost(self) -> torch.Tensor:
        """The square of the residual, of shape (n,)."""
        return self.residual.square().sum(dim=1)

    @cached_property
    def gradient(self) -> torch.Tensor:
        """The gradient of half the cost, of shape (n, m)."""
        return self.vjp(self.residual)

    def curve(self, changes: torch.Tensor) -> torch.Tensor:
        """Return the Gauss-Newton product ``J^T J dz`` for changes of shape (n, m)."""
        return self.vjp(self.jvp(changes))

    def gram(self, changes: torch.Tensor) -> torch.Tensor:
        """Return ``dZ J^T J dZ^T``, of shape (k, k), for changes ``dZ`` of a single sample, of shape (k, m)."""
        changed = self.jvp(changes)
        return changed @ changed.T

    @property
    @abstractmethod
    def distances(self) -> torch.Tensor:
        """Relative distance of each row from fulfilling the equations, of shape (n,)."""

    @property
    @abstractmethod
    def is_inside(self) -> torch.Tensor:
        """Which rows fulfil the equations up to rounding, of shape (n,)."""

    @property
    @abstractmethod
    def log_chances(self) -> torch.Tensor:
        """Log10 of the chance that a spurious minimiser fulfils each equation as nearly, of shape (n, k)."""

    @property
    @abstractmethod
    def least_log_chances(self) -> torch.Tensor:
        """The same for samples as exact as they can be."""

    @property
    def own_log_chances(self) -> torch.Tensor:
        """The same for the equations that a candidate with the same inactive units could break; only these certify."""
        return self.log_chances

    @property
    def is_proof(self) -> torch.Tensor:
        """Which are certified: they fulfil more equations than chance explains, and all up to rounding; (n,)."""
        return self.is_inside & (log_chance(self.own_log_chances, self.constraint.n_unknowns) <= LOG_CHANCE)

    @property
    def is_likely(self) -> torch.Tensor:
        """Which a search goes on with: certified ones, or the nearest to it where there are too few equations."""
        unknowns = self.constraint.n_unknowns
        enough = (log_chance(self.least_log_chances, unknowns) / 2).clamp(min=LOG_CHANCE, max=LOG_LIKELY)
        return self.is_inside & (log_chance(self.log_chances, unknowns) <= enough)


def total(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the sum of tensors."""
    return sum(parts, start=torch.zeros(()))


def log_chance(log_chances: torch.Tensor, n_unknowns: int) -> torch.Tensor:
    """Return log10 of the chance that a spurious minimiser fulfils all equations as nearly, of shape (n,).

    It fulfils as many equations as there are unknowns; the strongest count as these.

    Parameters
    ----------
    log_chances : torch.Tensor of shape (n, k)
        Of each equation.
    n_unknowns : int
        Number of unknowns of a candidate.
    """
    weakest = log_chances.sort(dim=1, descending=True).values
    return weakest[:, : max(0, weakest.shape[1] - n_unknowns)].sum(dim=1)


def complement(rows: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis of the complement of rows of shape (n, b), of shape (b, b - n)."""
    return torch.linalg.qr(rows.T, mode="complete")[0][:, len(rows) :]

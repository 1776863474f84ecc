"""What a view is: equations that the pre-activations of a true input fulfil, and how they change with these."""

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
"""Equations beyond the unknowns from which on they identify inputs, where tolerances are a thousandth: one of the wrong
ends that a search comes across fulfils each with a chance of about the tolerance."""

LEAST_DISTANCE = 1e-7
"""Nearer than that a single-precision client never comes: smaller distances say no more."""

LOG_CHANCE, LOG_LIKELY = -10.0, -2.0
"""Logarithm of the chance for one wrong end that is small enough for a proof, of all that are ever looked at none
passes; and the largest that a search goes on with."""


@dataclass(frozen=True)
class Constraint(ABC):
    """Equations for the pre-activations ``z`` of one input, each by itself."""

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
        """How many numbers a candidate is made of."""

    @property
    def identifies(self) -> bool:
        """Whether the batch is small enough for the equations to leave nothing but its inputs."""
        return self.n_equations - self.n_unknowns >= LEAST_SURPLUS

    def scaled_to(self, preactivations: torch.Tensor) -> Constraint:
        """Return the same with residuals relative to typical ones."""
        return self

    def by_noise(self, preactivations: torch.Tensor) -> Constraint:
        """Return the same with residuals in units of the noise that inputs have, about these pre-activations."""
        return self

    def by_rounding(self, preactivations: torch.Tensor) -> Constraint:
        """Return the same with residuals in units of the rounding, before inputs show how large these are."""
        return self.by_noise(preactivations)

    def balanced(self, preactivations: torch.Tensor) -> Constraint:
        """Return the same with parts of different noise in units of it: the noisier would pull ends away."""
        return self

    @property
    def has_kinks(self) -> bool:
        """Whether `smoothed` makes a difference."""
        return False

    def smoothed(self, share: float) -> Constraint:
        """Return the same with its kinks smoothed over a share of what is typical, where it has any."""
        return self

    def weighted(self, n: int, spread: float, generator: torch.Generator) -> Constraint:
        """Return the same for ``n`` inputs, with random weights of its parts for each: other ways to the same ends."""
        return self

    def unweighted(self) -> Constraint:
        """Return the same with its parts as they are, and whatever else is settled for each input."""
        return self

    def settled(self, preactivations: torch.Tensor) -> Constraint:
        """Return the same with what only candidates show, a label for one, settled for each of these."""
        return self

    def without(self, inputs: Inputs) -> Constraint:
        """Return the same for the other inputs of the batch, where it knows anything of these."""
        return self

    def of_some(self, index: torch.Tensor) -> Constraint:
        """Return the same for some of the inputs that it was weighted for."""
        return self

    def to(self, dtype: torch.dtype) -> Constraint:
        """Return the same in another precision; the base class takes a dataclass of tensors."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: part.to(dtype) for name, part in parts.items() if torch.is_tensor(part)})


@dataclass(frozen=True)
class Inputs:
    """Some inputs of the batch, as the layer has them.

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
    """Equations that are counted."""

    @property
    def n_equations(self) -> int:
        """How many there are."""

    @property
    def n_unknowns(self) -> int:
        """How many numbers a candidate is made of."""


class Linearization(ABC):
    """How badly pre-activations fulfil the equations, and how that changes, to first order."""

    constraint: Counted

    @property
    @abstractmethod
    def residual(self) -> torch.Tensor:
        """What is left of the equations, weighted, of shape (n, k)."""

    @abstractmethod
    def jvp(self, changes: torch.Tensor) -> torch.Tensor:
        """Return how changes of shape (n, m) change the residual, to first order: ``J dz``, of shape (n, k).

        Of a single sample any number of changes is asked for at once.
        """

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
        """Return the product of Gauss and Newton's matrix with changes of shape (n, m): ``J^T J dz``."""
        return self.vjp(self.jvp(changes))

    def gram(self, changes: torch.Tensor) -> torch.Tensor:
        """Return the products of what changes of shape (k, m) of a single sample make, of shape (k, k)."""
        changed = self.jvp(changes)
        return changed @ changed.T

    @property
    @abstractmethod
    def distances(self) -> torch.Tensor:
        """How far each is from fulfilling them, relative, of shape (n,)."""

    @property
    @abstractmethod
    def is_inside(self) -> torch.Tensor:
        """Which fulfil them up to rounding, of shape (n,)."""

    @property
    @abstractmethod
    def log_chances(self) -> torch.Tensor:
        """Logarithm, to the base of ten, of the chance that a wrong end fulfils each equation as nearly, (n, k)."""

    @property
    @abstractmethod
    def least_log_chances(self) -> torch.Tensor:
        """The same for inputs as exact as they can be."""

    @property
    def own_log_chances(self) -> torch.Tensor:
        """Those of the equations alone that an end with the same units off could break; they prove, (n, k)."""
        return self.log_chances

    @property
    def is_proof(self) -> torch.Tensor:
        """Which fulfil more of them than chance explains, and all up to rounding, of shape (n,)."""
        return self.is_inside & (log_chance(self.own_log_chances, self.constraint.n_unknowns) <= LOG_CHANCE)

    @property
    def is_likely(self) -> torch.Tensor:
        """Which a search goes on with: proofs, or what comes near to them where there are too few equations for any."""
        unknowns = self.constraint.n_unknowns
        enough = (log_chance(self.least_log_chances, unknowns) / 2).clamp(min=LOG_CHANCE, max=LOG_LIKELY)
        return self.is_inside & (log_chance(self.log_chances, unknowns) <= enough)


def total(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the sum of tensors."""
    return sum(parts, start=torch.zeros(()))


def log_chance(log_chances: torch.Tensor, n_unknowns: int) -> torch.Tensor:
    """Return the logarithm of the chance that a wrong end fulfils all equations as nearly, of shape (n,).

    It fulfils as many as there are unknowns, and these may be the strongest.

    Parameters
    ----------
    log_chances : torch.Tensor of shape (n, k)
        Of each equation.
    n_unknowns : int
        Numbers that an end is made of.
    """
    weakest = log_chances.sort(dim=1, descending=True).values
    return weakest[:, : max(0, weakest.shape[1] - n_unknowns)].sum(dim=1)


def complement(rows: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis of what is orthogonal to rows of shape (n, b), of shape (b, b - n)."""
    return torch.linalg.qr(rows.T, mode="complete")[0][:, len(rows) :]

"""Residuals of the network tail's gradients at some pre-activations, and their derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

import torch

from sparsedl_fl.constraints.activation_subspace import ROUNDING_SHARE, lengths
from sparsedl_fl.constraints.column_space import ColumnSpace
from sparsedl_fl.constraints.constraint import Counted, Linearization

__all__ = ["TailGradientAt"]


class Target(Counted, Protocol):
    """Where gradients have to lie, and how nearly: what residuals are taken of."""

    @property
    def space(self) -> ColumnSpace: ...

    @property
    def reach(self) -> torch.Tensor: ...

    @property
    def largest_tolerance(self) -> float: ...

    @property
    def least_rounding(self) -> float: ...

    @property
    def typical_size(self) -> float: ...

    @property
    def weight(self) -> float: ...


@dataclass(frozen=True)
class TailGradientAt(Linearization):
    """The gradients at some pre-activations, for one label each.

    Their Jacobian is the Hessian of the loss, which is symmetric: one more backward pass for each product.

    Attributes
    ----------
    constraint : Target
        The column space with its tolerances.
    preactivations : torch.Tensor of shape (n, m)
        ``z``, as leaves of a graph.
    gradients : torch.Tensor of shape (n, m)
        ``d``, in that graph.
    """

    constraint: Target
    preactivations: torch.Tensor
    gradients: torch.Tensor

    @cached_property
    def lengths(self) -> torch.Tensor:
        """Lengths of the weighted gradients, of shape (n, 1)."""
        return lengths(self.gradients.detach() * self.constraint.space.weights)[:, None]

    @cached_property
    def directions(self) -> torch.Tensor:
        """The weighted gradients as unit rows."""
        return self.gradients.detach() * self.constraint.space.weights / self.lengths

    @cached_property
    def outside(self) -> torch.Tensor:
        """The part of the directions outside of the column space."""
        return self.constraint.space.outside(self.directions)

    @cached_property
    def residual(self) -> torch.Tensor:
        """The same, weighted."""
        return self.constraint.weight**0.5 * self.outside

    def jvp(self, changes: torch.Tensor) -> torch.Tensor:
        """Return how changes of the pre-activations turn the unit gradients out of the column space, weighted."""
        return self.constraint.weight**0.5 * self.constraint.space.outside(self.turned_by(self.along(changes)))

    def vjp(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``J^T r`` for rows outside of the column space."""
        return self.along(
            self.constraint.weight**0.5 * self.constraint.space.weights * self._across(rows) / self.lengths
        )

    def turned_by(self, changes: torch.Tensor) -> torch.Tensor:
        """Return how changes of the gradients change the weighted unit gradients, to first order."""
        return self._across(self.constraint.space.weights * changes) / self.lengths

    def _across(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the part of rows orthogonal to the gradients."""
        return rows - (rows * self.directions).sum(dim=1, keepdim=True) * self.directions

    def along(self, rows: torch.Tensor) -> torch.Tensor:
        """Return how the gradients change along rows of shape (n, m): the Hessian of the loss times these.

        For a single sample any number of rows is backpropagated at once, without copies of it.
        """
        if not self.gradients.requires_grad or len(rows) == 0:
            return torch.zeros_like(rows)
        grad = partial(
            torch.autograd.grad, self.gradients, self.preactivations, retain_graph=True, materialize_grads=True
        )
        if len(self.gradients) == len(rows):
            return grad(rows)[0]
        try:
            return grad(rows[:, None], is_grads_batched=True)[0][:, 0]
        except RuntimeError:  # a module of the user's may not backpropagate many rows at once
            return torch.cat([self.along(row[None]) for row in rows])

    @property
    def distances(self) -> torch.Tensor:
        """Return the distance of each unit gradient from the column space."""
        return torch.linalg.vector_norm(self.outside, dim=1)

    @property
    def expected(self) -> torch.Tensor:
        """Return how far the noise moves each unit gradient out of the column space, root mean square.

        The client's own passes are rounded too, which does not show in the singular values beyond the rank: where the
        network is sure of a label, rounding is all that is left of the gradient.
        """
        constraint = self.constraint
        of_client = constraint.space.precision * (constraint.typical_size / self.lengths[:, 0]).clamp(min=1.0)
        return torch.hypot(constraint.space.expected(self.directions), of_client)

    @property
    def rounding(self) -> torch.Tensor:
        """Return how far rounding may move each unit gradient out of the column space."""
        return (ROUNDING_SHARE * self.expected).clamp(min=self.constraint.least_rounding)

    @property
    def is_inside(self) -> torch.Tensor:
        """Return which are no further from the column space than rounding explains."""
        return self.distances <= self.rounding.clamp(max=self.constraint.largest_tolerance)

    @property
    def log_chances(self) -> torch.Tensor:
        """Return log10 of the distance over that of prior draws along each axis."""
        return self._log_chances(torch.maximum(self.distances, self.expected))

    @property
    def least_log_chances(self) -> torch.Tensor:
        """Return the same for distances that the noise leaves."""
        return self._log_chances(self.expected)

    def _log_chances(self, distances: torch.Tensor) -> torch.Tensor:
        ratios = distances[:, None] / self.constraint.reach
        return torch.log10(ratios.clamp(min=torch.finfo(ratios.dtype).eps, max=1.0))

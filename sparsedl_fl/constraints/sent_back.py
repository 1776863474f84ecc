"""Gradients that the next layer sends back: a column equals one of them where a unit is active, and is zero elsewhere.

``D_i = phi'(z_i) * (W2^T v)`` for some ``v`` in the column space of the next layer's gradient, and it lies in the
column space of ``G``. So each of the ``m`` units gives an equation for ``b + k`` unknowns, active or not, where zeros
alone give one for each inactive unit; a classifier's head has few classes ``k``, and its weights are known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl.zeros import ZeroTest
from sparsedl_fl.activations import Activation, FlatPart
from sparsedl_fl.constraints.backward_subspace import column_basis
from sparsedl_fl.constraints.constraint import LEAST_DISTANCE, LOG_CHANCE
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["SentBack", "SentBackGradients"]

MOST_SHARE = 0.2
"""Outputs of the next layer over the width, from which on reflections lead nowhere: of 60 rows at 200 units half of the
starts come near a sample with 2 to 30 outputs, and 3 % with 60 (one batch)."""

NEVER_ACTIVE = 1e-10
"""Size from which on a direction of what is sent back reaches an active unit."""

DISTINCT = 0.1
"""Largest ratio of the noise to the distance of the next best gradient at the same units for one to be a column."""


class SentBack(NamedTuple):
    """Columns and the gradients that they are a part of.

    Attributes
    ----------
    columns : torch.Tensor of shape (n, b)
        Unit rows ``q``.
    is_active : torch.Tensor of shape (n, m) of bool
        Active units.
    distances, others : torch.Tensor of shape (n,)
        Distance of the gradient at active units from the column space, relative to its length; and that of the next
        best at the same units.
    """

    columns: torch.Tensor
    is_active: torch.Tensor
    distances: torch.Tensor
    others: torch.Tensor


@dataclass(frozen=True)
class SentBackGradients:
    """Which gradients the next layer can send back.

    Attributes
    ----------
    left : torch.Tensor of shape (m, b)
        Orthonormal basis ``U`` of the column space of ``G``.
    basis : torch.Tensor of shape (m, k)
        Orthonormal basis of ``W2^T`` times the column space of the next layer's gradient.
    n_live : int
        Number of units that some sample activates; equal ones count once.
    test : ZeroTest
        The widths of zero of ``U q``.
    activation : FlatPart
        The activation.
    """

    left: torch.Tensor
    basis: torch.Tensor
    n_live: int
    test: ZeroTest
    activation: FlatPart

    @classmethod
    def of(cls, given: LayerGradient, factors: LowRankGradient, activation: Activation) -> SentBackGradients | None:
        """Return them; None where weights are not known or moved, a slope is not zero or one, or outputs are many."""
        following, (m, b) = given.next_layer, factors.left.shape
        if following.weight is None or given.is_update or not isinstance(activation, FlatPart):
            return None
        if len(following.weight) > MOST_SHARE * m:
            return None
        sent = as_tensor(following.weight.T.astype(float))
        if following.weight_grad is not None:
            sent = sent @ column_basis(following.weight_grad, b)
        test = factors.zero_test
        n_live = int(test.distinct_rows.sum())
        return cls(as_tensor(factors.left), torch.linalg.qr(sent)[0], n_live, test, activation)

    @property
    def identifies(self) -> bool:
        """Whether there are equations enough to prove an exact column with half of the units active."""
        half = torch.tensor([self.n_live / 2], dtype=self.left.dtype)
        return self.log_chances(torch.zeros_like(half), half).item() <= LOG_CHANCE

    def log_chances(self, distances: torch.Tensor, n_active: torch.Tensor) -> torch.Tensor:
        """Return log10 of the chance that any pattern, of at most ``2^m``, gives a distance with so many active units.

        What is sent to these has ``k`` dimensions, and ``m - b`` equations, or as many as they are if that is less.
        """
        n_equations = n_active.to(distances.dtype).clamp(max=self.n_live - self.left.shape[1])
        n_surplus = n_equations - self.basis.shape[1]
        return self.n_live * math.log10(2) + n_surplus * distances.clamp(min=LEAST_DISTANCE).log10()

    def settled(self, columns: torch.Tensor, sent: torch.Tensor, *, n_iterations: int = 12) -> SentBack:
        """Fit columns and what is sent back to each other, at the units that are active by both, until these stay.

        Parameters
        ----------
        columns : torch.Tensor of shape (n, b)
            Rows ``q``.
        sent : torch.Tensor of shape (n, k)
            Coordinates of what is sent back, at the same scale.
        n_iterations : int, default=12
            At most.
        """
        is_active = torch.zeros((len(columns), len(self.left)), dtype=torch.bool)
        columns, sent, moving = columns.clone(), sent.clone(), torch.arange(len(columns))
        distances, others = torch.ones((2, len(columns)), dtype=self.left.dtype)
        for _ in range(n_iterations):
            gradients = sent[moving] @ self.basis.T
            now = (columns[moving] @ self.left.T) * gradients > gradients.square() / 2
            has_moved = (now != is_active[moving]).any(dim=1)
            moving, now = moving[has_moved], now[has_moved]
            if len(moving) == 0:
                break
            is_active[moving] = now
            columns[moving], sent[moving], of_each = self._nearest(now)
            distances[moving], others[moving] = of_each[:, 0], of_each[:, 1]
        return SentBack(normalized(columns, dim=1), is_active, distances, others)

    def near(self, columns: torch.Tensor) -> SentBack:
        """Return what is sent back nearest to unit rows ``q``, by the entries of their gradients that are not zero."""
        gradients = columns @ self.left.T
        at_active = self.basis * (gradients.abs() > self._tolerances(columns))[:, :, None]
        sent = torch.linalg.lstsq(at_active, gradients[..., None], driver="gelsd").solution[..., 0]
        return self.settled(columns, sent)

    def columns(self, preactivations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a unit ``q`` for each row of pre-activations of shape (n, m), and which are proven."""
        found = self.of_inputs(preactivations)
        return found.columns, self.proves(found)

    def of_inputs(self, preactivations: torch.Tensor) -> SentBack:
        """Return what is sent back nearest to the column space at the active units of pre-activations (n, m)."""
        columns, sent, _ = self._nearest(~self.activation.is_off(preactivations))
        return self.settled(columns, sent)

    def proves(self, found: SentBack) -> torch.Tensor:
        """Return which are columns: within the noise, with no other near it at the same units, and by no chance."""
        allowed = self.allowed(found.columns)
        is_only = allowed < DISTINCT * found.others
        chances = self.log_chances(found.distances, found.is_active.sum(dim=1))
        return (found.distances <= allowed) & is_only & (chances <= LOG_CHANCE)

    def are_alone(self, columns: torch.Tensor, is_active: torch.Tensor) -> torch.Tensor:
        """Return at which active units, of shape (n, m), one gradient and no other is as near as unit rows ``q``."""
        nearest = self._nearest(is_active)[2]
        return torch.sum(self.allowed(columns)[:, None] >= DISTINCT * nearest, dim=1) == 1

    def allowed(self, columns: torch.Tensor) -> torch.Tensor:
        """Return the distance of each that is within the noise."""
        return torch.linalg.vector_norm(self._tolerances(columns), dim=1).clamp(min=LEAST_DISTANCE)

    def _tolerances(self, columns: torch.Tensor) -> torch.Tensor:
        """Return the width of zero of each entry of ``U q``."""
        return self.test.tolerances(columns) / len(self.left) ** 0.5

    def _nearest(self, is_active: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return ``q`` and ``v`` of the gradient nearest to the column space at given units, and the distances of all.

        They increase, and a last one of one stands for no gradient.
        """
        (n, m), k = is_active.shape, self.basis.shape[1]
        at_active, triangular = torch.linalg.qr(self.basis * is_active[:, :, None])
        inside = (self.left.T @ at_active.transpose(0, 1).reshape(m, n * k)).reshape(-1, n, k).transpose(0, 1)
        squares, axes = torch.linalg.eigh(inside.mT @ inside)
        columns = (inside @ axes[:, :, -1:])[..., 0]
        sizes = torch.linalg.vector_norm(columns, dim=1, keepdim=True).clamp(min=torch.finfo(columns.dtype).tiny)
        # A direction that reaches no active unit gets a pivot of one.
        is_open = triangular.diagonal(dim1=1, dim2=2).abs() < NEVER_ACTIVE
        triangular = triangular + torch.diag_embed(is_open.to(columns.dtype))
        sent = torch.linalg.solve_triangular(triangular, axes[:, :, -1:], upper=True)[..., 0]
        distances = (1 - squares).clamp(min=0).sqrt().flip(1)
        return columns / sizes, sent / sizes, torch.cat([distances, torch.ones_like(distances[:, :1])], dim=1)

"""The constraint of the network tail: from one layer's gradient alone, for any smooth activation and any loss.

The server knows the whole model. So a candidate and a label give the gradient at the outputs of the layer,
``d(p, y)``, by forward and backward propagation. For a true sample with its label it is, up to a factor, a column of
``D``, in the column space of ``G``: ``m - b`` equations for the ``b - 1`` unknowns of ``p`` and the label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl_fl.constraints.column_space import ColumnSpace
from sparsedl_fl.constraints.constraint import LEAST_DISTANCE, Constraint, Inputs
from sparsedl_fl.constraints.forward_pass import ForwardPass
from sparsedl_fl.constraints.label_terms import ANYWHERE, LabelTerms, distances_by_label, likely_labels
from sparsedl_fl.constraints.tail_residuals import TailGradientAt
from sparsedl_fl.layers.network_tail import RestOfNetwork
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["TailGradient"]

LEAST_VISIBLE = 10 * LEAST_DISTANCE
"""Typical distance of prior draws from the column space along an axis, above which the axis is an equation."""


@dataclass(frozen=True)
class TailGradient(Constraint):
    """Gradients that the network tail backpropagates lie in the column space of the layer's gradient.

    Attributes
    ----------
    rest, space : RestOfNetwork, ColumnSpace
        The network tail, and the column space of ``D``.
    shares : torch.Tensor of shape (n_labels,)
        How likely each label is.
    reach : torch.Tensor of shape (k,)
        Root mean square distance of prior draws from the column space along each axis: ``m - b``, or enough. Where the
        tail is nearly linear, it is small along most.
    labels : torch.Tensor of shape (n,) of int, or None
        Label of each row; None takes for each the one that fits best.
    terms : LabelTerms or None, default=None
        What labels add to gradients, where that is the same for all inputs.
    largest_tolerance : float
        Relative distance from the column space above which nothing is certified.
    typical_size : float
        Weighted length of the gradients at prior draws.
    weight : float, default=1
        Weight of the squared distances.
    least_rounding : float, default=1e-5
        Distance that the client's own rounding explains.
    spreads : tuple of float, default=()
        Standard deviation of the arguments of each function with a kink, at prior draws.
    """

    rest: RestOfNetwork
    space: ColumnSpace
    shares: torch.Tensor
    reach: torch.Tensor
    labels: torch.Tensor | None = None
    terms: LabelTerms | None = None
    largest_tolerance: float = 1e-3
    typical_size: float = 1.0
    weight: float = 1.0
    least_rounding: float = 1e-5
    spreads: tuple[float, ...] = ()

    @classmethod
    def unseen(cls, tail: RestOfNetwork, factors: LowRankGradient) -> TailGradient:
        """Return the constraint without prior draws and label likelihood: it shows labels, and certifies nothing."""
        space, anything = ColumnSpace.of(factors), torch.ones(tail.n_labels(len(factors.left)), dtype=torch.float64)
        return cls(
            tail, space, anything / len(anything), torch.zeros(0, dtype=torch.float64), terms=LabelTerms.of(tail, space)
        )

    @classmethod
    def of(
        cls, tail: RestOfNetwork, factors: LowRankGradient, forward: ForwardPass, *, usual_distance: float = 0.3
    ) -> TailGradient:
        """Return the constraint, scaled by prior draws.

        Spurious minimisers fulfil equations that do not depend on the sample: nearly all, where the network is nearly
        linear. So the tolerance shrinks with the typical distance of prior draws from the column space.
        """
        (m, b), constraint = factors.left.shape, cls.unseen(tail, factors)
        n_draws = min(m, 2 * b + 16)  # as many as could show that there are equations enough
        if not np.linalg.norm(forward.scale) > np.finfo(float).tiny:
            raise ValueError(
                "the bias gradient does not give the inputs their scale: it is zero, or nothing of it belongs to the "
                "weight gradient"
            )
        drawn = as_tensor(forward.typical(factors.singular_values, n_draws))
        mean = as_tensor(factors.left @ forward.scale)
        likely = likely_labels(tail, constraint.terms, drawn[:16], mean, b)
        constraint = replace(constraint, shares=likely, spreads=tail.spreads(drawn))
        # All draws of a single sample are that sample, and only its label is unknown.
        labels = (
            constraint._nearest(drawn, constraint._likely)[0]
            if b > 1
            else torch.arange(n_draws) % len(constraint.shares)
        )
        here = replace(constraint, labels=labels).at(drawn)
        reach = torch.linalg.svdvals(here.outside)[: m - b] / n_draws**0.5
        tolerance = cls.largest_tolerance * min(1.0, float(here.distances.median()) / usual_distance)
        return replace(constraint, reach=reach, largest_tolerance=tolerance, typical_size=float(here.lengths.median()))

    def counts(self, batch_size: int) -> torch.Tensor:
        """Return the estimated count of each label in a batch, of shape (n_labels,) of int."""
        estimated = (self.shares - ANYWHERE / len(self.shares)).clamp(min=0) / (1 - ANYWHERE)
        return (batch_size * estimated).round().long()

    @property
    def n_equations(self) -> int:
        """Number of axes along which gradients at prior draws leave the column space visibly."""
        return int((self.reach > LEAST_VISIBLE).sum())

    @property
    def n_unknowns(self) -> int:
        """``b - 1``; the label is one of few."""
        return self.space.basis.shape[1] - 1

    @property
    def identifies(self) -> bool:
        """Whether gradients leave the column space along more axes than there are unknowns."""
        return self.n_equations > self.n_unknowns

    def weighted(self, n: int, spread: float, generator: torch.Generator) -> TailGradient:
        """Return the same with a label drawn for each of ``n`` starts."""
        return replace(self, labels=torch.multinomial(self.shares, n, replacement=True, generator=generator))

    @property
    def has_kinks(self) -> bool:
        """Whether the network tail has functions with kinks."""
        return bool(self.spreads)

    def smoothed(self, share: float) -> TailGradient:
        """Return the same with its kinks smoothed over a share of what is typical."""
        return replace(self, rest=self.rest.smoothed([share * spread for spread in self.spreads]))

    def without(self, inputs: Inputs) -> TailGradient:
        """Return the same for the other samples: their labels are left, and the space of their columns."""
        if len(inputs.whitened) == 0:
            return self
        return replace(self.without_labels(inputs.preactivations), space=self.space.orthogonal_to(inputs.whitened))

    def without_labels(self, preactivations: torch.Tensor) -> TailGradient:
        """Return the same with the labels of these samples less likely, by one of the batch each."""
        if len(preactivations) == 0:
            return self
        labels = self._nearest(preactivations, self._likely)[0]
        found = torch.bincount(labels, minlength=len(self.shares)).double() / self.space.basis.shape[1]
        left = (self.shares - found).clamp(min=0) + ANYWHERE / len(found)
        return replace(self, shares=left / left.sum())

    def by_noise(self, preactivations: torch.Tensor) -> TailGradient:
        """Return the same with distances in units of the noise."""
        return replace(self, weight=float(1 / self.at(preactivations).expected.square().mean()))

    def settled(self, preactivations: torch.Tensor) -> TailGradient:
        """Return the same with the label of each row that fits best."""
        if self.labels is not None:
            return self
        labels, distances = self._nearest(preactivations, self._likely)
        missed = distances > self.largest_tolerance
        if missed.any() and len(self._likely) < len(self.shares):
            labels[missed] = self._nearest(preactivations[missed], torch.arange(len(self.shares)))[0]
        return replace(self, labels=labels)

    @property
    def _likely(self) -> torch.Tensor:
        """Labels that the batch is likely to have."""
        return torch.nonzero(self.shares >= self.shares.mean() / 2)[:, 0]

    def _nearest(self, preactivations: torch.Tensor, among: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which of some labels fits each row best, and its distance."""
        distances, best = self.compared(preactivations, among)[0].min(dim=0)
        return among[best], distances

    def compared(
        self, z: torch.Tensor, among: torch.Tensor, own: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return distances and cosines by label (see `distances_by_label`)."""
        return distances_by_label(self.rest, self.space, self.terms, z, among, own)

    def of_some(self, index: torch.Tensor) -> TailGradient:
        """Return the same for some of the rows."""
        return self if self.labels is None else replace(self, labels=self.labels[index])

    def to(self, dtype: torch.dtype) -> TailGradient:
        """Return the same in another precision."""
        return replace(self, space=self.space.to(dtype), terms=self.terms if dtype == torch.float64 else None)

    def at(self, preactivations: torch.Tensor) -> TailGradientAt:
        """Return the gradients at pre-activations of shape (n, m)."""
        constraint = self.settled(preactivations)
        with torch.enable_grad():
            z = preactivations.detach().requires_grad_()
            return TailGradientAt(constraint, z, self.rest.gradients(z, constraint.labels))

    def overlaps(self, preactivations: torch.Tensor, inputs: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Return ``P Q``, (b, b), with the columns of these gradients, scaled to add up to ``h`` as a batch's do."""
        here = self.at(preactivations)
        columns = self.space.columns(here.directions) * here.lengths
        total = columns.sum(dim=0)
        return inputs @ columns.T * (scale @ total / total.square().sum())

    def columns(self, preactivations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a unit ``q`` for pre-activations of samples at their true scale, (n, b), and which fit, (n,)."""
        here = self.at(preactivations)
        return normalized(self.space.columns(here.directions), dim=1), here.is_inside

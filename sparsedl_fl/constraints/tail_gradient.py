"""The rest of the network as a view: one layer's gradient alone, any smooth activation, any loss.

The server knows the whole model. So a candidate and a label say what the gradient at the outputs of the layer is,
``d(p, y)``: forward to the loss and back. For a true input with its label it is, up to a factor, a column of ``D``, in
the column space of ``G``: ``m - b`` equations for the ``b - 1`` unknowns of ``p``, and the label the only further one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
"""Distance of typical places from the column space along an axis from which on it tells them from inputs."""


@dataclass(frozen=True)
class TailGradient(Constraint):
    """The gradients that come back through the rest of the network lie in the column space of the layer's.

    Attributes
    ----------
    rest, space : RestOfNetwork, ColumnSpace
        What lies behind, and where the columns of ``D`` lie.
    shares : torch.Tensor of shape (n_labels,)
        How likely each label is.
    reach : torch.Tensor of shape (k,)
        How far typical places are from the column space, root mean square, along each axis: ``m - b``, or enough. Where
        what lies behind is nearly linear, they are not far along most.
    labels : torch.Tensor of shape (n,) of int, or None
        Of each input; None takes for each the one that fits best.
    terms : LabelTerms or None, default=None
        What labels add to gradients, where that is the same for all inputs.
    largest_tolerance : float
        Relative distance from the column space above which nothing is proven.
    typical_size : float
        Length of the gradients at typical places, weighted.
    weight : float, default=1
        What the squares of the distances are multiplied with.
    least_rounding : float, default=1e-5
        Distance that the client's own rounding explains.
    spreads : tuple of float, default=()
        Standard deviations of what each function with a kink is fed at typical places.
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
    def unseen(cls, rest: RestOfNetwork, factors: LowRankGradient) -> TailGradient:
        """Return the view with nothing known of places and labels: it shows labels, and proves nothing."""
        space, anything = ColumnSpace.of(factors), torch.ones(rest.n_labels(len(factors.left)), dtype=torch.float64)
        return cls(
            rest, space, anything / len(anything), torch.zeros(0, dtype=torch.float64), terms=LabelTerms.of(rest, space)
        )

    @classmethod
    def of(
        cls, rest: RestOfNetwork, factors: LowRankGradient, forward: ForwardPass, *, usual_distance: float = 0.3
    ) -> TailGradient:
        """Look at the rest from typical places.

        Wrong ends fulfil whatever does not depend on the input, and that is nearly all where the network is nearly
        linear: the tolerance is as much smaller than usual as typical places are nearer to the column space.
        """
        (m, b), constraint = factors.left.shape, cls.unseen(rest, factors)
        n_places = min(m, 2 * b + 16)  # as many as could show that there are equations enough
        places = as_tensor(forward.typical(factors.singular_values, n_places))
        mean = as_tensor(factors.left @ forward.scale)
        likely = likely_labels(rest, constraint.terms, places[:16], mean, b)
        constraint = replace(constraint, shares=likely, spreads=rest.spreads(places))
        # A single input is at every place, and wrong labels are what it is told from.
        labels = (
            constraint._nearest(places, constraint._likely)[0]
            if b > 1
            else torch.arange(n_places) % len(constraint.shares)
        )
        here = replace(constraint, labels=labels).at(places)
        reach = torch.linalg.svdvals(here.outside)[: m - b] / n_places**0.5
        tolerance = cls.largest_tolerance * min(1.0, float(here.distances.median()) / usual_distance)
        return replace(constraint, reach=reach, largest_tolerance=tolerance, typical_size=float(here.lengths.median()))

    def counts(self, batch_size: int) -> torch.Tensor:
        """Return how often each label seems to come in a batch, of shape (n_labels,) of int."""
        told = (self.shares - ANYWHERE / len(self.shares)).clamp(min=0) / (1 - ANYWHERE)
        return (batch_size * told).round().long()

    @property
    def n_equations(self) -> int:
        """Axes along which gradients leave the column space visibly."""
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
        """Return the same with a label drawn for each input."""
        return replace(self, labels=torch.multinomial(self.shares, n, replacement=True, generator=generator))

    @property
    def has_kinks(self) -> bool:
        """Whether there are functions with kinks behind the layer."""
        return bool(self.spreads)

    def smoothed(self, share: float) -> TailGradient:
        """Return the same with its kinks smoothed over a share of what is typical."""
        return replace(self, rest=self.rest.smoothed([share * spread for spread in self.spreads]))

    def without(self, inputs: Inputs) -> TailGradient:
        """Return the same for the other inputs: of the labels one less for each, and the other columns' space."""
        if len(inputs.whitened) == 0:
            return self
        return replace(self.without_labels(inputs.preactivations), space=self.space.orthogonal_to(inputs.whitened))

    def without_labels(self, preactivations: torch.Tensor) -> TailGradient:
        """Return the same with the labels of these inputs less likely, by one of the batch each."""
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
        """Labels that the batch seems to have."""
        return torch.nonzero(self.shares >= self.shares.mean() / 2)[:, 0]

    def _nearest(self, preactivations: torch.Tensor, among: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return which of some labels fits each row best, and how far it is off."""
        distances, best = self.compared(preactivations, among)[0].min(dim=0)
        return among[best], distances

    def compared(
        self, z: torch.Tensor, among: torch.Tensor, own: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return distances and cosines by label (see `distances_by_label`)."""
        return distances_by_label(self.rest, self.space, self.terms, z, among, own)

    def of_some(self, index: torch.Tensor) -> TailGradient:
        """Return the same for some of the inputs."""
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

    def sizes(self, preactivations: torch.Tensor) -> torch.Tensor:
        """Return how large the gradient of each row is, for the label that fits best, of shape (n,)."""
        return torch.linalg.vector_norm(self.at(preactivations).gradients.detach(), dim=1)

    def overlaps(self, preactivations: torch.Tensor, inputs: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Return ``P Q``, (b, b), with the columns that come back; those of a true batch add up to ``h``, the scale."""
        here = self.at(preactivations)
        columns = self.space.columns(here.directions) * here.lengths
        total = columns.sum(dim=0)
        return inputs @ columns.T * (scale @ total / total.square().sum())

    def columns(self, preactivations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a unit ``q`` for pre-activations of inputs at their true scale, (n, b), and which fit, (n,)."""
        here = self.at(preactivations)
        return normalized(self.space.columns(here.directions), dim=1), here.is_inside

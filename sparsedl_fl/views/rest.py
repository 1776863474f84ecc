"""The rest of the network as a view: one layer's gradient alone, any smooth activation, any loss.

The server knows the whole model. So a candidate and a label say what the gradient at the outputs of the layer is,
``d(p, y)``: forward to the loss and back. For a true input with its label it is, up to a factor, a column of ``D``,
and lies in the column space of ``G``: ``m - b`` equations for the ``b - 1`` unknowns of ``p``, with the label as the
only further one. No gradient of another layer is needed, and no particular loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from scipy.optimize import nnls
from torch.nn.functional import normalize

from sparsedl.arrays import as_tensor
from sparsedl_fl.lowrank import LowRankGradient
from sparsedl_fl.rest import RestOfNetwork
from sparsedl_fl.views._base import LEAST_DISTANCE, Linearization, View
from sparsedl_fl.views.forward import ForwardView
from sparsedl_fl.views.span import lengths

__all__ = ["RestAt", "RestView"]

LEAST_VISIBLE = 10 * LEAST_DISTANCE
"""Distance of typical places from the column space along an axis from which on it tells them from inputs."""


@dataclass(frozen=True)
class RestView(View):
    """The gradients that come back through the rest of the network lie in the column space of the layer's.

    Attributes
    ----------
    rest : RestOfNetwork
        What lies behind the layer.
    weights : torch.Tensor of shape (m,)
        What gradients are multiplied with: outputs count by how noisy they are. The rows of a head's gradient that
        belong to the labels of the batch are a hundred times larger than the others, and so is their rounding.
    basis : torch.Tensor of shape (m, b)
        Orthonormal basis of the column space, weighted.
    mixing : torch.Tensor of shape (b, b)
        What takes coordinates in it to columns ``q``.
    duals : torch.Tensor of shape (b, b)
        What takes them to how far rounding moves a unit gradient.
    precision : torch.Tensor of shape ()
        Of the client's numbers.
    shares : torch.Tensor of shape (n_labels,)
        How likely each label is.
    reach : torch.Tensor of shape (k,)
        How far typical places are from the column space, root mean square, along each axis: ``m - b`` of them, or
        enough. Where what lies behind is nearly linear, they are not far along most.
    labels : torch.Tensor of shape (n,) of int, or None
        Of each input that is looked at; None takes for each the one that fits best.
    largest_tolerance : float
        Relative distance from the column space above which nothing is proven.
    rounding_share : float, default=10
        Times the expected rounding that count as inside.
    least_rounding : float, default=1e-5
        Distance that the client's own rounding explains.
    """

    rest: RestOfNetwork
    weights: torch.Tensor
    basis: torch.Tensor
    mixing: torch.Tensor
    duals: torch.Tensor
    precision: torch.Tensor
    shares: torch.Tensor
    reach: torch.Tensor
    labels: torch.Tensor | None = None
    largest_tolerance: float = 1e-3
    rounding_share: float = 10.0
    least_rounding: float = 1e-5

    @classmethod
    def of(
        cls,
        rest: RestOfNetwork,
        factors: LowRankGradient,
        forward: ForwardView,
        *,
        usual_distance: float = 0.3,
        least_noise: float = 1e-3,
    ) -> RestView:
        """Look at the rest from typical places.

        Wrong ends fulfil whatever does not depend on the input, and that is nearly all where the network is nearly
        linear: the tolerance is as much smaller than usual as typical places are nearer to the column space.
        """
        U, S = as_tensor(factors.left), as_tensor(factors.singular_values)
        (m, b), n_labels, noise = U.shape, rest.n_labels(len(U)), as_tensor(factors.noise_level)
        typical_noise = noise.square().mean().sqrt()
        weights = typical_noise / noise.clamp(min=least_noise * typical_noise)
        basis, mixing = torch.linalg.qr(weights[:, None] * U)
        mixing = torch.linalg.inv(mixing)
        duals = mixing.T / S * ((m - b) ** 0.5 * typical_noise)
        uniform = torch.full((n_labels,), 1 / n_labels, dtype=U.dtype)
        precision = torch.tensor(factors.precision, dtype=U.dtype)
        view = cls(rest, weights, basis, mixing, duals, precision, uniform, torch.zeros(0))
        n_places = min(m, 2 * b + 16)  # as many as could show that there are equations enough
        places = as_tensor(forward.typical(factors.singular_values, n_places))
        here = view.at(places)
        reach = torch.linalg.svdvals(here.outside)[: m - b] / n_places**0.5
        tolerance = cls.largest_tolerance * min(1.0, float(here.distances.median()) / usual_distance)
        shares = view._likely_labels(places[:16], U @ as_tensor(forward.scale))
        return replace(view, reach=reach, largest_tolerance=tolerance, shares=shares)

    def _likely_labels(
        self, places: torch.Tensor, mean_gradient: torch.Tensor, *, anywhere: float = 0.2
    ) -> torch.Tensor:
        """Return how likely each label is, from the mean of all gradients and that of each label.

        Some labels are left that the estimate denies, in all a share of ``anywhere``.
        """
        by_label = [self.rest.directions(places, label).mean(dim=0) for label in range(len(self.shares))]
        counts = nnls(torch.stack(by_label).T.numpy(), mean_gradient.numpy())[0]
        counts = torch.from_numpy(counts)
        return self.shares if counts.sum() == 0 else (1 - anywhere) * counts / counts.sum() + anywhere * self.shares

    @property
    def n_equations(self) -> int:
        """Axes along which gradients leave the column space by more than rounding."""
        return int((self.reach > LEAST_VISIBLE).sum())

    @property
    def n_unknowns(self) -> int:
        """``b - 1``; the label is one of few."""
        return self.basis.shape[1] - 1

    @property
    def identifies(self) -> bool:
        """Whether gradients leave the column space along more axes than there are unknowns."""
        return self.n_equations > self.n_unknowns

    def weighted(self, n: int, spread: float, generator: torch.Generator) -> RestView:
        """Return the same with a label drawn for each input."""
        return replace(self, labels=torch.multinomial(self.shares, n, replacement=True, generator=generator))

    def settled(self, preactivations: torch.Tensor) -> RestView:
        """Return the same with the label of each row that fits best."""
        if self.labels is not None:
            return self
        by_label = [self.distances_of(self.rest.directions(preactivations, label)) for label in range(len(self.shares))]
        return replace(self, labels=torch.stack(by_label).argmin(dim=0))

    def distances_of(self, gradients: torch.Tensor) -> torch.Tensor:
        """Return the distances of gradients of shape (n, m) from the column space, relative."""
        weighted = gradients * self.weights
        return torch.linalg.vector_norm(self.outside(weighted), dim=1) / lengths(weighted)

    def of_some(self, index: torch.Tensor) -> RestView:
        """Return the same for some of the inputs."""
        return self if self.labels is None else replace(self, labels=self.labels[index])

    def to(self, dtype: torch.dtype) -> RestView:
        """Return the same in another precision."""
        names = ("weights", "basis", "mixing", "duals", "precision")
        return replace(self, **{name: getattr(self, name).to(dtype) for name in names})

    def outside(self, gradients: torch.Tensor) -> torch.Tensor:
        """Return the part of weighted gradients of shape (n, m) that lies outside of the column space."""
        return gradients - (gradients @ self.basis) @ self.basis.T

    def at(self, preactivations: torch.Tensor) -> RestAt:
        """Return the gradients at pre-activations of shape (n, m)."""
        view = self.settled(preactivations)
        with torch.enable_grad():
            z = preactivations.detach().requires_grad_()
            return RestAt(view, z, self.rest.gradients(z, view.labels))

    def overlaps(self, preactivations: torch.Tensor, inputs: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Return the products of all inputs ``p`` of a batch with the columns that come back for them, (b, b).

        Those of a true batch add up to ``h``, the scale, and ``P Q = I``.
        """
        here = self.at(preactivations)
        columns = (here.coordinates * here.lengths) @ self.mixing.T
        total = columns.sum(dim=0)
        return inputs @ columns.T * (scale @ total / total.square().sum())

    def columns(self, preactivations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a unit ``q`` for pre-activations of inputs at their true scale, (n, b), and which of them fit, (n,)."""
        here = self.at(preactivations)
        return normalize(here.coordinates @ self.mixing.T, dim=1), here.is_inside


@dataclass(frozen=True)
class RestAt(Linearization):
    """The gradients at some pre-activations, for one label each.

    The Jacobian of the gradients is the Hessian of the loss, which is symmetric: one more way back for each product.

    Attributes
    ----------
    view : RestView
        With the labels.
    preactivations : torch.Tensor of shape (n, m)
        ``z``, as leaves of a graph.
    gradients : torch.Tensor of shape (n, m)
        ``d``, in that graph.
    """

    view: RestView
    preactivations: torch.Tensor
    gradients: torch.Tensor

    @cached_property
    def lengths(self) -> torch.Tensor:
        """Lengths of the weighted gradients, of shape (n, 1)."""
        return lengths(self.gradients.detach() * self.view.weights)[:, None]

    @cached_property
    def directions(self) -> torch.Tensor:
        """The weighted gradients as unit rows."""
        return self.gradients.detach() * self.view.weights / self.lengths

    @property
    def coordinates(self) -> torch.Tensor:
        """Coordinates of these in the column space."""
        return self.directions @ self.view.basis

    @cached_property
    def outside(self) -> torch.Tensor:
        """The part of these outside of the column space."""
        return self.view.outside(self.directions)

    def turned(self, changes: torch.Tensor) -> torch.Tensor:
        """Return how changes of the pre-activations change the weighted unit gradients, to first order."""
        return self._across(self.view.weights * self._hessian(changes)) / self.lengths

    def _pull(self, outside: torch.Tensor) -> torch.Tensor:
        return self._hessian(self.view.weights * self._across(outside) / self.lengths)

    def _across(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the part of rows across the gradients."""
        return rows - (rows * self.directions).sum(dim=1, keepdim=True) * self.directions

    def _hessian(self, rows: torch.Tensor) -> torch.Tensor:
        if not self.gradients.requires_grad:
            return torch.zeros_like(rows)
        (found,) = torch.autograd.grad(
            self.gradients, self.preactivations, rows, retain_graph=True, materialize_grads=True
        )
        return found

    @property
    def cost(self) -> torch.Tensor:
        """Return the squares of the parts of the unit gradients outside of the column space."""
        return self.outside.square().sum(dim=1)

    @cached_property
    def gradient(self) -> torch.Tensor:
        """Return the gradient of half of them."""
        return self._pull(self.outside)

    def curve(self, changes: torch.Tensor) -> torch.Tensor:
        """Return the gradient of half the square of what leaves the column space."""
        return self._pull(self.view.outside(self.turned(changes)))

    @property
    def distances(self) -> torch.Tensor:
        """Return the distance of each unit gradient from the column space."""
        return torch.linalg.vector_norm(self.outside, dim=1)

    @property
    def expected(self) -> torch.Tensor:
        """Return how far the noise moves each unit gradient out of the column space, root mean square.

        The client's own way forward is rounded too, which does not show behind the rank.
        """
        return torch.hypot(torch.linalg.vector_norm(self.coordinates @ self.view.duals, dim=1), self.view.precision)

    @property
    def rounding(self) -> torch.Tensor:
        """Return how far rounding may move each unit gradient out of the column space."""
        return (self.view.rounding_share * self.expected).clamp(min=self.view.least_rounding)

    @property
    def is_inside(self) -> torch.Tensor:
        """Return which are no further from the column space than rounding explains."""
        return self.distances <= self.rounding.clamp(max=self.view.largest_tolerance)

    @property
    def log_chances(self) -> torch.Tensor:
        """Return the logarithm of the distance over the typical one along each axis."""
        return self._log_chances(torch.maximum(self.distances, self.expected))

    @property
    def least_log_chances(self) -> torch.Tensor:
        """Return the same for distances that the noise leaves."""
        return self._log_chances(self.expected)

    def _log_chances(self, distances: torch.Tensor) -> torch.Tensor:
        ratios = distances[:, None] / self.view.reach
        return torch.log10(ratios.clamp(min=torch.finfo(ratios.dtype).eps, max=1.0))

"""Reflections at the layer alone: between forward pass, columns, and active or inactive units."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from sparsedl_fl.activations import FlatPart
from sparsedl_fl.constraints import BackwardSubspaces
from sparsedl_fl.search.columns_and_forward_pass import WORKING, ScaledForward
from sparsedl_fl.solvers import douglas_rachford, log_uniform
from sparsedl_fl.solvers.douglas_rachford import Points

__all__ = ["OneLayerReflection"]

OTHERS = 1e-3
"""Weight with which an active unit is drawn to be forced inactive, over the mean depth of units in a zero-slope
region."""


@dataclass(eq=False, repr=False, kw_only=True)
class OneLayerReflection(BaseEstimator):
    """Douglas-Rachford between ``z = F p``, ``d = U q`` and units that are active or inactive.

    An active unit has ``d = e`` with the gradient ``e`` at its activation for a label, an inactive one ``d = 0``. If
    downstream layers are nearly linear, activation subspaces do not help (see `PairedReflection`), and ``e`` hardly
    depends on the sample.

    Parameters
    ----------
    starts_per_input : int, default=6
        Starts of a round.
    n_reflections : int, default=200
        Reflections of each. (Two batches of 50 at 200 Hardtanh units: 60, 200 and 600 lead to about as many columns;
        estimating columns from the candidates takes longer.)
    first_ridges, last_ridge : (float, float) and float, default=(1e-3, 0.1) and 1e-5
        Range of the first ridge of a start, over the mean square of the pre-activations, and the last ridge.
    most_forced : int, default=2
        Largest number of units that a start forces to be inactive, drawn mostly among those that are at its first
        point: without, most starts lead to mixtures of samples with hardly any inactive unit. (Two batches of 50 of
        CIFAR-10 at 200 Hardtanh units with 14 columns known: two rounds of 300 starts gave 141 and 210 patterns and no
        new columns without, and 11 and 6, 9 and 2, 7 and 3 columns with up to 1, 2 and 3.)
    gradient_weight : float, default=1
        Weight of gradients over that of pre-activations, in units of their mean squares. (From 0.1 to 10 it made no
        difference, on two batches of 50 at 200 Hardtanh units.)
    step : float, default=0.5
        Length of a reflection's step, 1 for plain Douglas-Rachford.
    """

    starts_per_input: int = 6
    n_reflections: int = 200
    first_ridges: tuple[float, float] = (1e-3, 0.1)
    last_ridge: float = 1e-5
    most_forced: int = 2
    gradient_weight: float = 1.0
    step: float = 0.5

    def preactivations(
        self, forward: ScaledForward, left: torch.Tensor, backward: BackwardSubspaces, labels: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:  # fmt: skip
        """Return the candidates of all starts, as ``z`` of shape (n_starts, m).

        Parameters
        ----------
        forward : ScaledForward
            The unknowns at their true scale, deflated by known columns.
        left : torch.Tensor of shape (m, b)
            ``U``.
        backward : BackwardSubspaces
            Backpropagation through the downstream layers.
        labels : torch.Tensor of shape (n_starts,) of int
            One for each start.
        generator : torch.Generator
            Source of randomness.
        """
        exact, phi = forward, backward.activations[0]
        forward, left, backward = forward.to(WORKING), left.to(WORKING), backward.to(WORKING)
        ridge = log_uniform(self.first_ridges, len(labels), generator, WORKING)
        shrinkage = (self.last_ridge / ridge) ** (1 / self.n_reflections)
        power = forward.sizes.square() / forward.sizes.square().mean()
        z = forward.preactivations(forward.draw(len(labels), generator))
        forced = self._forced(phi, z, generator)
        d = backward.at(z, labels)[1][0]
        share = float(self.gradient_weight * (z - z.mean(dim=0)).square().mean() / d.square().mean())

        def nearest(points: Points) -> Points:
            z, d = points
            return _nearest(phi, z, d, backward.at(z, labels)[2][0], share, forced)

        def fitted(points: Points, number: int) -> Points:
            coordinates = forward.coordinates(points[0]) * (power / (power + ridge * shrinkage**number))
            return forward.preactivations(coordinates), (points[1] @ left) @ left.T

        z, _ = douglas_rachford((z, d), nearest, fitted, self.n_reflections, step=self.step)
        coordinates = forward.coordinates(z).double()
        return exact.preactivations(coordinates[coordinates.isfinite().all(dim=1)])

    def _forced(self, phi: FlatPart, z: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return for units of starts, (n, m), whether they are forced to be inactive."""
        beyond = phi.depth(z)
        forced = torch.zeros_like(z, dtype=torch.bool)
        likely = beyond + OTHERS * beyond.mean() + torch.finfo(z.dtype).eps
        picked = torch.multinomial(likely, self.most_forced, generator=generator)
        n_forced = torch.randint(1, self.most_forced + 1, (len(z), 1), generator=generator)
        return forced.scatter_(1, picked, torch.arange(self.most_forced) < n_forced)


def _nearest(
    phi: FlatPart, z: torch.Tensor, d: torch.Tensor, e: torch.Tensor, share: float, forced: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nearest ``z`` and ``d`` of active or inactive units, some of them inactive in any case."""
    active, inactive = phi.nearest_on(z), phi.nearest_off(z)
    is_active = (z - active).square() + share * (d - e).square() <= (z - inactive).square() + share * d.square()
    is_active = is_active & ~forced
    return torch.where(is_active, active, inactive), torch.where(is_active, e, torch.zeros_like(d))

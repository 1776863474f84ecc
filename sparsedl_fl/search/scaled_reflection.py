"""Reflections with activation subspaces at the true scale of every sample, from many random starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from sparsedl_fl.constraints import ActivationSubspace, DownstreamSubspaces
from sparsedl_fl.search.columns_and_forward_pass import WORKING, SampleCoordinates, ScaledForward
from sparsedl_fl.search.linear_links import Link
from sparsedl_fl.solvers import douglas_rachford, log_uniform
from sparsedl_fl.solvers.douglas_rachford import Points

__all__ = ["ScaledReflection"]


@dataclass(eq=False, repr=False, kw_only=True)
class ScaledReflection(BaseEstimator):
    """Douglas-Rachford at the true scale of the samples, from which a `Descent` goes on.

    Samples with much in common, such as pixels that are not centred or features after a ReLU, activate nearly the same
    units, and zeros determine little. But a unit that is active for all of them is an exact equation of the subspace,
    and the mean of the batch is known: every ``p`` has ``h^T p = 1``. And for nearly linear activations few samples
    attract all descents; reflections find the others.

    The numbers were chosen on single batches: CIFAR-10 in [0, 1] at 200 and 1000 ReLU units, at the start and after
    500 steps of training, and CIFAR-10, centred, 80 samples at 200 units with tanh.

    Parameters
    ----------
    common : float, default=0.3
        Squared pre-activations of the common part, over those of all other directions, above which samples have much
        in common. Centred pixels have 0.02 to 0.2, pixels in [0, 1] and features 0.5 to 7.
    n_starts : int or None, default=None
        Starts of a round; None takes that of other reflections.
    fewest, more, most : int, default=60, 6000 and 4000
        Reflections for the smallest batch, how many more for a crowding of one (see `Projection`), and at most.
    first_ridges, last_ridge : (float, float) and float, default=(1e-4, 1e-2) and 1e-7
        Range of the first ridge of a start, over the mean square of the pre-activations, and the last ridge.
    span_weights : (float, float), default=(4, 16)
        Range of the weight of the distance of the activations over that of the pre-activations.
    chain_ridges, chain_last_ridge, chain_weights : (float, float), float and (float, float)
        The same for several subspaces. (One batch of CIFAR-10 in [0, 1], 80 samples at 200 ReLU units: 61 % of starts
        reach samples after 1000 reflections and 94 % after 4000, and none by one subspace; with ridges from 0.01 to 1
        it was 38 and 95 %.)
    more_in_chain, most_in_chain, n_starts_of_chain : int, default=7000, 10000 and 32
        How many more reflections with several subspaces, where the square of the surplus equations is the product of
        the unknowns, and at most; starts of a round, nearly all of which reach samples, most the same.
    same_lead : float, default=0.995
        Cosine of two candidates above which only one is kept.
    ample : float, default=2
        Equations of the first subspace for each unknown from which on a descent uses only these. (One batch of 300 at
        1000 ELUs: 264 found in 70 seconds of rounds that had 268 in 106 by two subspaces.)

    References
    ----------
    Douglas and Rachford, Trans. AMS 1956.
    """

    common: float = 0.3
    n_starts: int | None = None
    fewest: int = 60
    more: int = 6000
    most: int = 4000
    first_ridges: tuple[float, float] = (1e-4, 1e-2)
    last_ridge: float = 1e-7
    span_weights: tuple[float, float] = (4.0, 16.0)
    chain_ridges: tuple[float, float] = (1e-3, 0.1)
    chain_last_ridge: float = 1e-5
    chain_weights: tuple[float, float] = (0.5, 16.0)
    more_in_chain: int = 7000
    most_in_chain: int = 10000
    n_starts_of_chain: int = 32
    same_lead: float = 0.995
    ample: float = 2.0

    @classmethod
    def for_smooth(cls) -> ScaledReflection:
        """Return the stage with the numbers for smooth activations.

        (One batch each, 128 starts with 40 to 71 samples known: 13 samples in place of 3 at 200 units of tanh, 80 in
        all, and 8 in place of none for sigmoid; of 300 at 1000, 8 in place of 2 for tanh, 3 to 8 in place of 1 to 4 for
        ELU and GELU; with first ridges from 0.1 to 3 and weights up to 4.)
        """
        return cls(n_starts=64, more=800, first_ridges=(1e-3, 0.1), last_ridge=1e-5, span_weights=(0.5, 16.0))

    def applies(self, coordinates: SampleCoordinates) -> bool:
        """Return whether the samples have so much in common that zeros determine little."""
        forward = ScaledForward.of(coordinates, share=0.0)
        return bool(forward.offset.square().sum() > self.common * forward.sizes.square().sum())

    def is_ample(self, subspace: ActivationSubspace) -> bool:
        """Return whether the first subspace has enough equations for a descent."""
        m, b = subspace.basis.shape
        return m - b >= self.ample * b

    def inputs(
        self, coordinates: SampleCoordinates, subspaces: DownstreamSubspaces, n_starts: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Return distinct finite candidates, as ``p`` at their true scale, of shape (n, b).

        Parameters
        ----------
        coordinates : SampleCoordinates
            The unknowns, deflated by known columns.
        subspaces : DownstreamSubspaces
            The first activation subspace, or all where the batch is out of the range of that one.
        n_starts : int
            Number of starts.
        generator : torch.Generator
            Source of randomness.
        """
        forward = ScaledForward.of(coordinates)
        if len(forward.sizes) == 0:
            return forward.origin[None]
        working, near = forward.to(WORKING), subspaces.to(WORKING)
        minimisers = self.minimisers(working, near, n_starts, generator)
        return forward.inputs(working.distinct(minimisers, near, self.same_lead).double())

    def n_reflections(self, subspaces: DownstreamSubspaces, d: int) -> int:
        """Return the number of reflections in ``d`` dimensions."""
        b = subspaces.levels[0].basis.shape[1]
        n_equations = sum(len(subspace.basis) - b for subspace in subspaces.levels)
        if len(subspaces.levels) == 1:
            crowding = self.more * b * d / n_equations**2
        else:
            crowding = self.more_in_chain * b * d / max(1, n_equations - d) ** 2
        return min(self.most if len(subspaces.levels) == 1 else self.most_in_chain, round(self.fewest + crowding))

    def minimisers(
        self, forward: ScaledForward, subspaces: DownstreamSubspaces, n_starts: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Return the candidate of each start, as rows ``c`` of shape (n_starts, d), in the precision of ``forward``.

        Reflections between ``z = F p`` with ``y`` of the subspace, and pairs with ``y = phi(z)``. With several
        subspaces the ``y`` of one fixes the ``z'`` of the next layer, and each pair has ``y = phi(z)`` by itself. The
        shrinking ridge prefers candidates no further from the common part than is likely by the prior.

        Parameters
        ----------
        forward : ScaledForward
            The unknowns at their true scale, deflated by known columns.
        subspaces : DownstreamSubspaces
            The activation subspaces.
        n_starts : int
            Number of starts.
        generator : torch.Generator
            Source of randomness.
        """
        n_reflections = self.n_reflections(subspaces, len(forward.sizes))
        has_several, dtype = len(subspaces.levels) > 1, forward.sizes.dtype

        def draw(limits: tuple[float, float]) -> torch.Tensor:
            return log_uniform(limits, n_starts, generator, dtype)

        first, last_ridge, weights = (
            (self.chain_ridges, self.chain_last_ridge, self.chain_weights)
            if has_several
            else (self.first_ridges, self.last_ridge, self.span_weights)
        )
        power = forward.sizes.square() / forward.sizes.square().mean()
        ridge, weight = draw(first), draw(weights)
        shrinkage = (last_ridge / ridge) ** (1 / n_reflections)
        here = subspaces.at(forward.preactivations(forward.draw(n_starts, generator)))
        z, y = list(here.preactivations), list(here.activations)
        links = [_link(subspaces, level, z) for level in range(len(z))]
        n = len(links)

        def nearest(points: Points) -> Points:
            pairs = zip(subspaces.levels, points[:n], points[n:], strict=True)
            near = [subspace.activation.near_on_graph(z, y, weight) for subspace, z, y in pairs]
            return [at[0] for at in near] + [at[1] for at in near]

        def fitted(points: Points, number: int) -> Points:
            coordinates = forward.coordinates(points[0]) * (power / (power + ridge * shrinkage**number))
            z, y = [forward.preactivations(coordinates)], []
            for level, link in enumerate(links):
                at, following = link.nearest(points[n + level], points[level + 1] if level + 1 < n else None, weight)
                y.append(at)
                z.append(following)
            return z[:n] + y

        minimisers = douglas_rachford([*z, *y], nearest, fitted, n_reflections)
        return forward.coordinates(minimisers[0])


def _link(subspaces: DownstreamSubspaces, level: int, preactivations: list[torch.Tensor]) -> Link:
    """Return the link of one subspace to the next layer, weighted by typical pre-activations at each."""
    if level + 1 == len(subspaces.levels):
        return Link.of(subspaces.levels[level].basis)
    spread = [float((z - z.mean(dim=0)).square().mean()) for z in preactivations]
    power = spread[0] / spread[level], spread[0] / spread[level + 1]
    return Link.of(subspaces.levels[level].basis, *subspaces.layers[level], power)

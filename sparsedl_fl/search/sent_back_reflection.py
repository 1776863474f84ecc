"""Reflections between the forward pass, the columns of the gradient, and what the next layer sends back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator
from torch.nn.functional import normalize

from sparsedl_fl.activations import FlatPart
from sparsedl_fl.constraints.sent_back import SentBack, SentBackGradients
from sparsedl_fl.search.columns_and_forward_pass import WORKING, PrincipalForward, SampleCoordinates, leaders
from sparsedl_fl.search.reflection import fading_away
from sparsedl_fl.solvers import douglas_rachford, log_uniform
from sparsedl_fl.solvers.douglas_rachford import Points

__all__ = ["SentBackReflection"]


@dataclass(eq=False, repr=False, kw_only=True)
class SentBackReflection(BaseEstimator):
    """The stage for the layer before a classifier's head.

    Douglas-Rachford between triples ``(z, d, e)`` with ``z = F p``, ``d = U q`` and ``e = W2^T v``, and triples in
    which each unit is active and has ``d = e``, or inactive and has ``d = 0`` (see `SentBackGradients`). `Reflection`
    does without ``e``, and ends at a quarter of the width.

    Parameters
    ----------
    n_starts : int, default=64
        Starts of a round.
    fewest, more : int, default=60 and 1800
        Reflections for the smallest batch, and how many more where the unknowns of ``p`` times those of ``q`` are the
        square of the width.
    first_ridges, last_ridge : (float, float) and float, default=(0.03, 1) and 0.01
        Range of the first ridge of a start, and the last.
    gradient_weights : (float, float), default=(0.5, 3)
        Range of the weight of the distances of gradients over that of the pre-activations.
    deflation, deflation_shrinkage : (float, float) and float, default=(1, 10) and 0.5
    fading, faded : float, default=0.2 and 0.01
        As of `Reflection`.
    near : float, default=0.01
        Distance from the column space (see `SentBack`) up to which a candidate is proposed. (At (200, k) and (1000, k)
        columns have 1e-7, and 4e-3 with a few units taken for active; others 2e-4 to 1: what is no column fails the
        proof.)
    same_cosine : float, default=0.9
        Cosine above which two candidates are one.
    """

    n_starts: int = 64
    fewest: int = 60
    more: int = 1800
    first_ridges: tuple[float, float] = (0.03, 1.0)
    last_ridge: float = 0.01
    gradient_weights: tuple[float, float] = (0.5, 3.0)
    deflation: tuple[float, float] = (1.0, 10.0)
    deflation_shrinkage: float = 0.5
    fading: float = 0.2
    faded: float = 0.01
    near: float = 0.01
    same_cosine: float = 0.9

    def run(
        self, coordinates: SampleCoordinates, sent_back: SentBackGradients, n_starts: int, generator: torch.Generator
    ) -> SentBack:
        """Run random starts and return distinct candidates.

        Parameters
        ----------
        coordinates : SampleCoordinates
            The unknowns, deflated by known columns.
        sent_back : SentBackGradients
            What the next layer can send back.
        n_starts : int
            Number of starts.
        generator : torch.Generator
            Source of randomness.
        """
        d, e = self.minimisers(coordinates, sent_back, n_starts, generator)
        settled = sent_back.settled(d.double() @ sent_back.left, e.double() @ sent_back.basis)
        # Where few units are active, any gradient is there.
        is_near = (settled.distances < self.near) & (settled.is_active.sum(dim=1) > sent_back.basis.shape[1] + 1)
        near = torch.nonzero(is_near)[:, 0]
        near = near[settled.distances[near].argsort()]
        skewness = (settled.columns[near] @ sent_back.left.T).pow(3).sum(dim=1, keepdim=True)
        # A column and its negative are one.
        near = near[leaders(settled.columns[near] * skewness.sign(), self.same_cosine).unique()]
        return SentBack(*(part[near] for part in settled))

    def minimisers(
        self, coordinates: SampleCoordinates, sent_back: SentBackGradients, n_starts: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``d`` and ``e`` of each start, of shape (n_starts, m), in single precision; ``d`` has unit length."""
        forward, activation = PrincipalForward.of(coordinates), coordinates.activation
        assert isinstance(activation, FlatPart)
        (m, b), regressors, power = coordinates.left.shape, forward.orthonormal.to(WORKING), forward.power
        n_reflections = round(self.fewest + self.more * b * len(forward.sizes) / m**2)

        def draw(limits: tuple[float, float]) -> torch.Tensor:
            return log_uniform(limits, n_starts, generator, WORKING)

        strengths, axes = torch.linalg.eigh(coordinates.inputs.T @ coordinates.inputs)
        strengths, columns = strengths.clamp(min=0).to(WORKING), (sent_back.left @ axes).to(WORKING)
        ridge, deflation, weight = draw(self.first_ridges), draw(self.deflation), draw(self.gradient_weights)
        shrinkage = (self.last_ridge / ridge) ** (1 / n_reflections)
        fades = fading_away(n_reflections, self.deflation_shrinkage, self.fading, self.faded)
        deflations = deflation * fades
        sent = sent_back.basis.to(WORKING)
        z = forward.draw(n_starts, generator)
        e = torch.randn((n_starts, sent.shape[1]), generator=generator, dtype=WORKING) @ sent.T
        d = (e * (activation.depth(z) <= 0)) @ columns @ columns.T

        def nearest(points: Points) -> Points:
            z, d, e = points
            on, off, mean = activation.nearest_on(z), activation.nearest_off(z), (d + e) / 2
            if_active = (on - z).square() + weight * (d - e).square() / 2
            is_active = if_active <= (off - z).square() + weight * d.square()
            return [
                torch.where(is_active, on, off),
                torch.where(is_active, mean, torch.zeros_like(d)),
                torch.where(is_active, mean, e),
            ]

        def fitted(points: Points, number: int) -> Points:
            z, d, e = points
            fit = (z @ regressors) * (power / (power + ridge * shrinkage**number)) @ regressors.T
            return [fit, (d @ columns) / (1 + deflations[:, number, None] * strengths) @ columns.T, e @ sent @ sent.T]

        def unit(points: Points) -> Points:
            z, d, e = points
            size = torch.linalg.vector_norm(d, dim=1, keepdim=True).clamp(min=torch.finfo(d.dtype).tiny)
            return [normalize(z, dim=1), d / size, e / size]

        _, d, e = douglas_rachford(unit([z, d, e]), nearest, fitted, n_reflections, normalize=unit)
        return d, e

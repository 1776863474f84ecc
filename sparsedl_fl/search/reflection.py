"""Reflections between the columns of the gradient and the forward pass: the fast search at wide layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator
from torch.nn.functional import normalize

from sparsedl.linalg import inverse_iteration, reweight, weighted_gram
from sparsedl_fl.activations import FlatPart
from sparsedl_fl.search.columns_and_forward_pass import WORKING, PrincipalForward, SampleCoordinates, leaders
from sparsedl_fl.solvers import douglas_rachford, log_uniform
from sparsedl_fl.solvers.douglas_rachford import Points

__all__ = ["Reflection", "fading_away"]


def fading_away(n_reflections: int, shrinkage: float, share: float, faded: float) -> torch.Tensor:
    """Return the weight of a deflation before each reflection, over the first, and after the last.

    It shrinks to ``shrinkage`` at the rate of all reflections, and in the last ``share`` of them to ``faded``.
    """
    n_fading = round(share * n_reflections)
    is_last = torch.arange(n_reflections) >= n_reflections - n_fading
    factors = torch.where(is_last, faded ** (1 / max(1, n_fading)), shrinkage ** (1 / n_reflections))
    return torch.cat([torch.ones(1), factors.cumprod(dim=0)]).to(WORKING)


@dataclass(eq=False, repr=False, kw_only=True)
class Reflection(BaseEstimator):
    """The stage for wide layers.

    Douglas-Rachford between pairs ``(z, d)`` with ``z = F p`` and ``d = U q``, and pairs in which each unit is active
    or has ``d = 0``. Ridge and deflation shrink; they are drawn for each start, since different samples need different
    ones.

    The numbers were tuned on CIFAR-10 batches at layers 200 to 4000 wide; which ones was not recorded.

    Parameters
    ----------
    fewest, more : int, default=60 and 7000
        Reflections for the smallest batch, and how many more where the unknowns of ``p`` times those of ``q`` are the
        square of the width. Known columns reduce the number, but the samples left are harder.
    first_ridges, last_ridge : (float, float) and float, default=(0.3, 3) and 0.01
        Range of the first ridge of a start, and the last.
    column_weights : (float, float), default=(0.3, 1)
        Range of the weight of the distance of the column over that of the pre-activations.
    deflation, deflation_shrinkage : (float, float) and float, default=(0.3, 3) and 0.5
        Range of the weight of the deflation of columns, and its factor by the time fading begins.
    fading, faded : float, default=0.2 and 0.01
        Last share of the reflections, in which the deflation fades, and to which share: the ``p`` are estimates.
    sparse_share, sparse_below : float, default=0.43 and 0.6
        A candidate is kept where the mean square of its smallest entries, this share of all, is less than the square of
        ``sparse_below (sparse_share - b / m)^1.5``. A direction through ``b`` rows has ``b`` zeros in any case, which
        leaves ``sparse_share - b / m`` to judge by; spurious minimisers lie at 1.4 instead of 0.6 times that power.
    known_cosine, same_cosine : float, default=0.8 and 0.9
        Cosines above which a candidate belongs to a column found, and two candidates are one.
    smoothings : tuple of float, default=(0.1, 0.03, 0.01, 0.003, 0.003)
        Successive scales on which entries of a candidate count as zeros.

    References
    ----------
    Douglas and Rachford, Trans. AMS 1956; Gravel and Elser, "Divide and concur", Phys. Rev. E 2008, for reflections
    between a subspace and a set that is not convex, in a product space.
    """

    fewest: int = 60
    more: int = 7000
    first_ridges: tuple[float, float] = (0.3, 3.0)
    last_ridge: float = 0.01
    column_weights: tuple[float, float] = (0.3, 1.0)
    deflation: tuple[float, float] = (0.3, 3.0)
    deflation_shrinkage: float = 0.5
    fading: float = 0.2
    faded: float = 0.01
    sparse_share: float = 0.43
    sparse_below: float = 0.6
    known_cosine: float = 0.8
    same_cosine: float = 0.9
    smoothings: tuple[float, ...] = (0.1, 0.03, 0.01, 0.003, 0.003)

    def run(self, coordinates: SampleCoordinates, n_starts: int, generator: torch.Generator) -> torch.Tensor:
        """Run random starts and return the candidates near columns, as unit rows ``q`` of shape (n, b).

        Those near a column found are replaced by it; of those that are near each other one is refined to exact zeros.

        Parameters
        ----------
        coordinates : SampleCoordinates
            The unknowns, deflated by known columns.
        n_starts : int
            Number of starts.
        generator : torch.Generator
            Source of randomness.
        """
        q, left = (
            self.minimisers(coordinates, PrincipalForward.of(coordinates), n_starts, generator),
            coordinates.left.to(WORKING),
        )
        entries = (q @ left.T).abs()
        m, b = left.shape
        smallest = entries.topk(round(self.sparse_share * m), dim=1, largest=False).values
        limit = self.sparse_below * max(0.0, self.sparse_share - b / m) ** 1.5
        q = q[smallest.square().mean(dim=1) < limit**2 * entries.square().mean(dim=1)]
        products = q @ coordinates.found.T.to(WORKING)
        is_new = (products.abs() < self.known_cosine).all(dim=1)
        known = (
            coordinates.found[products[~is_new].abs().argmax(dim=1)] if len(coordinates.found) else coordinates.found
        )
        q = q[is_new]
        skewness = (q @ left.T).pow(3).sum(dim=1, keepdim=True)  # a column and its negative are the same
        going_on, follows = leaders(q * skewness.sign(), self.same_cosine).unique(return_inverse=True)
        q = q[going_on]
        q = reweight(
            q,
            left,
            scales=self.smoothings,
            weigh=lambda entries, scale: 1 / (entries.square() + scale**2),
            step=lambda weights, last: inverse_iteration(weighted_gram(left, weights), last),
        )
        return torch.cat([known, normalize(q.to(coordinates.left.dtype), dim=1)[follows]])

    def minimisers(
        self, coordinates: SampleCoordinates, forward: PrincipalForward, n_starts: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Return the candidate of each start: unit rows ``q`` of shape (n_starts, b)."""
        m, b = coordinates.left.shape
        n_reflections = round(self.fewest + self.more * b * len(forward.sizes) / m**2)

        def draw(limits: tuple[float, float]) -> torch.Tensor:
            return log_uniform(limits, n_starts, generator, WORKING)

        activation = coordinates.activation
        assert isinstance(activation, FlatPart)
        strengths, axes = torch.linalg.eigh(coordinates.inputs.T @ coordinates.inputs)
        strengths = strengths.clamp(min=0).to(WORKING)
        columns = (coordinates.left @ axes / m**0.5).to(WORKING)
        regressors, power = forward.orthonormal.to(WORKING), forward.power
        ridge, deflation, root = draw(self.first_ridges), draw(self.deflation), draw(self.column_weights).sqrt()
        shrinkage = (self.last_ridge / ridge) ** (1 / n_reflections)
        z = forward.draw(n_starts, generator)
        d = normalize(torch.randn((n_starts, b), generator=generator, dtype=WORKING) @ columns.T, dim=1)
        fades = fading_away(n_reflections, self.deflation_shrinkage, self.fading, self.faded)
        deflations = deflation * fades

        def nearest(points: Points) -> Points:
            z, d = points
            active = activation.nearest_on(z)
            is_active = active - z <= root * d.abs()  # else its gradient is zero
            return torch.where(is_active, active, z), d * is_active.to(WORKING)

        def fitted(points: Points, number: int) -> Points:
            z, d = points
            fit = (z @ regressors) * (power / (power + ridge * shrinkage**number)) @ regressors.T
            return fit, (d @ columns) / (1 + deflations[:, number, None] * strengths) @ columns.T

        def unit(points: Points) -> Points:
            return [normalize(part, dim=1) for part in points]

        _, d = douglas_rachford((z, d), nearest, fitted, n_reflections, normalize=unit)
        return normalize(d @ columns @ axes.T.to(WORKING), dim=1)

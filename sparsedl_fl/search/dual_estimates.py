"""Estimates of the ``p`` of the columns found, to which every other column is orthogonal."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sparsedl.linalg import normalized
from sparsedl.workers import mapped

__all__ = ["WORKING", "PosteriorMeans"]

WORKING = torch.float32
"""Precision of searches before polishing, and of estimates."""

ROWS = 64
"""Columns whose inputs are estimated at a time, which workers share; not varied."""


@dataclass(frozen=True, kw_only=True)
class PosteriorMeans:
    """Estimates the ``p`` of each column found from its own zero pattern.

    ``p_j`` is orthogonal to every other column found, which leaves the dual vector of ``q_j`` and the free space. There
    the signs of ``m`` pre-activations determine it up to the error of a perceptron, about the number of free dimensions
    over that of the units. The estimate is the posterior mean under the prior, by expectation propagation with one
    variance for all units of an input: a few matrix products for all inputs together.

    Parameters
    ----------
    n_iterations : int, default=8
        Rounds of expectation propagation.
    margin : float, default=0.05
        Assumed error of the pattern, relative to the pre-activations: late in a search this suppresses rounding.
    furthest : float, default=-8
        A unit on the wrong side counts for this many deviations at most.

    References
    ----------
    Minka, "Expectation propagation", UAI 2001; Rangan, Schniter and Fletcher, "Vector approximate message passing",
    IEEE Trans. Inf. Theory 2019, for the one variance.
    """

    n_iterations: int = 8
    margin: float = 0.05
    furthest: float = -8.0

    def of(
        self, found: torch.Tensor, free: torch.Tensor, forward: torch.Tensor, is_active: torch.Tensor
    ) -> torch.Tensor:
        """Return unit rows of shape (k, b).

        Parameters
        ----------
        found : torch.Tensor of shape (k, b)
            Columns ``q``, independent.
        free : torch.Tensor of shape (b, b - k)
            Orthonormal basis of their complement.
        forward : torch.Tensor of shape (m, b)
            ``F``.
        is_active : torch.Tensor of shape (k, m) of bool
            Where ``U q`` is not zero.
        """
        duals = normalized(torch.linalg.solve(found @ found.T, found), dim=1)
        signs = torch.where(is_active, 1.0, -1.0).to(WORKING)
        own = duals @ forward.T
        along = torch.sign((own * (signs - signs.mean(dim=1, keepdim=True))).sum(dim=1, keepdim=True))
        if free.shape[1] == 0:
            return along * duals
        left, sizes, axes = torch.linalg.svd(forward @ free, full_matrices=False)
        scale = torch.linalg.vector_norm(sizes) / math.sqrt(len(forward))
        left, sizes = left.to(WORKING), (sizes / scale).to(WORKING)
        parts = zip((along * own / scale).to(WORKING).split(ROWS), signs.split(ROWS), strict=True)
        means = mapped(lambda part: self._posterior_means(part[0], left, sizes, part[1]), parts)
        along_duals, coordinates = (torch.cat(each) for each in zip(*means, strict=True))
        inputs = along_duals * along * duals + coordinates.to(found.dtype) @ axes @ free.T
        return normalized(inputs.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0), dim=1)

    def _posterior_means(
        self, own: torch.Tensor, left: torch.Tensor, sizes: torch.Tensor, signs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the means of ``a`` and ``w`` where ``a own + left diag(sizes) w`` has the given signs.

        ``w`` is a standard normal vector, ``a`` has a flat prior. ``own`` and ``signs`` have one row an input.
        """
        shared, squares = own @ left, own.square().sum(dim=1, keepdim=True)
        precision, evidence = torch.full_like(squares, 0.5), 0.5 * signs
        for _ in range(self.n_iterations):
            # Posterior of a Gaussian with the prior and the evidence of every unit.
            gain = sizes.square() / (1 + precision * sizes.square())
            inside = evidence @ left
            explained, weight = (gain * shared.square()).sum(dim=1, keepdim=True), gain * shared
            information = precision * (squares - precision * explained)
            a = (own * evidence).sum(dim=1, keepdim=True) - precision * (weight * inside).sum(dim=1, keepdim=True)
            a = a / information
            remaining = inside - precision * a * shared
            z = a * own + (gain * remaining) @ left.T
            unexplained = squares - 2 * precision * explained + precision**2 * weight.square().sum(dim=1, keepdim=True)
            variance = (gain.sum(dim=1, keepdim=True) + unexplained / information) / own.shape[1]
            precision, evidence = self._new_evidence(z, variance, precision, evidence, signs)
        return a, gain * remaining / sizes

    def _new_evidence(
        self,
        z: torch.Tensor,
        variance: torch.Tensor,
        precision: torch.Tensor,
        evidence: torch.Tensor,
        signs: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return precision, and precision times mean, of the evidence of each unit's sign, given all the others."""
        smallest = torch.finfo(z.dtype).eps
        others = (1 / variance - precision).clamp(min=smallest)
        mean = (z / variance - evidence) / others
        spread = 1 / others + self.margin**2
        distances = (signs * mean / spread.sqrt()).clamp(min=self.furthest)
        ratios = torch.exp(-0.5 * distances.square() - torch.special.log_ndtr(distances)) / math.sqrt(2 * math.pi)
        new_mean = mean + signs * ratios / (others * spread.sqrt())
        new_variance = 1 / others - ratios * (distances + ratios) / (others.square() * spread)
        new_variance = new_variance.mean(dim=1, keepdim=True).clamp(min=smallest)
        return (1 / new_variance - others).clamp(min=smallest), new_mean / new_variance - others * mean

"""Residuals of the activation subspaces at some pre-activations, and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from sparsedl_fl.constraints.activation_subspace import ActivationSubspace, lengths
from sparsedl_fl.constraints.constraint import LEAST_DISTANCE, Counted, Linearization

__all__ = ["BESIDE", "FAR", "IN_LINE", "SubspacesAt"]

USUAL_SHARE = 0.3
"""Nonlinear share of the activations from which on the largest tolerance holds: ReLU has 0.35 to 0.5, GELU 0.07 to 0.5,
tanh 0.01 to 0.2, sigmoid 0.001 to 0.03 (one CIFAR-10 batch of 50 at two layers of 200)."""

BESIDE, FAR, EXACT = 2.0, 5.0, 1e-6
"""Distance over its noise from which on a sample may be fitted better, and up to which it lies within a subspace (98 %
of 1,159 samples of hostile problems had less than 3); and the distance that rounding of a forward pass explains
(sigmoid: 78 times the noise)."""

IN_LINE = 0.5
"""Distance over its noise up to which a sample always agrees with the others, however near these lie: true ones leave
about 0.4; not varied."""


class Weighted(Counted, Protocol):
    """Subspaces of successive layers with their weights, and the layers between them: what residuals are taken of."""

    @property
    def levels(self) -> tuple[ActivationSubspace, ...]: ...

    @property
    def layers(self) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]: ...

    @property
    def weights(self) -> tuple[torch.Tensor, ...]: ...

    @property
    def factors(self) -> tuple[torch.Tensor, ...]: ...


@dataclass(frozen=True)
class SubspacesAt(Linearization):
    """Residuals of the activation subspaces at some pre-activations.

    Attributes
    ----------
    constraint : Weighted
        The subspaces.
    preactivations, activations, slopes : sequence of torch.Tensor of shape (n, m)
        ``z``, ``phi(z)`` and ``phi'(z)`` at each level.
    """

    constraint: Weighted
    preactivations: Sequence[torch.Tensor]
    activations: Sequence[torch.Tensor]
    slopes: Sequence[torch.Tensor]

    @cached_property
    def _weights(self) -> list[torch.Tensor]:
        """Square roots of the weights of each level."""
        constraint = self.constraint
        pairs = zip(constraint.weights, constraint.factors or (torch.ones(()),) * len(constraint.weights), strict=True)
        return [(weight * factor).sqrt() for weight, factor in pairs]

    @cached_property
    def outside(self) -> list[torch.Tensor]:
        """The parts of the activations outside of each subspace."""
        return [subspace.outside(y) for subspace, y in zip(self.constraint.levels, self.activations, strict=True)]

    @cached_property
    def residual(self) -> torch.Tensor:
        """The parts of the activations outside of the subspaces, weighted, one after the other."""
        return _side_by_side([weight * part for weight, part in zip(self._weights, self.outside, strict=True)])

    def jvp(self, changes: torch.Tensor) -> torch.Tensor:
        """Return how changes of the pre-activations move the activations out of each subspace, weighted."""
        moved, outside = changes, []
        for level, slopes in enumerate(self.slopes):
            if level:
                moved = moved @ self.constraint.layers[level - 1][0].T
            moved = slopes * moved
            outside.append(self._weights[level] * self.constraint.levels[level].outside(moved))
        return _side_by_side(outside)

    def vjp(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``J^T r``, summed over the levels; each part of ``r`` lies outside of its subspace already."""
        parts, pulled = rows.split([y.shape[1] for y in self.activations], dim=1), torch.zeros(())
        for level in reversed(range(len(parts))):
            pulled = self.slopes[level] * (self._weights[level] * parts[level] + pulled)
            if level:
                pulled = pulled @ self.constraint.layers[level - 1][0]
        return pulled

    @cached_property
    def _distances(self) -> list[torch.Tensor]:
        parts = zip(self.outside, self.activations, strict=True)
        return [torch.linalg.vector_norm(outside, dim=1) / lengths(y) for outside, y in parts]

    @property
    def distances(self) -> torch.Tensor:
        """Return the largest relative distance from any of the subspaces."""
        return torch.stack(self._distances).amax(dim=0)

    @cached_property
    def _limits(self) -> list[torch.Tensor]:
        """Distances that no spurious minimiser reaches: these fulfil what is linear in the activations, and no more."""
        limits = []
        for subspace, z, y in zip(self.constraint.levels, self.preactivations, self.activations, strict=True):
            limits.append(subspace.largest_tolerance * (_nonlinear_share(z, y) / USUAL_SHARE).clamp(max=1))
        return limits

    @property
    def is_inside(self) -> torch.Tensor:
        """Return which are no further from each subspace than rounding explains."""
        inside = []
        parts = zip(self.constraint.levels, self.activations, self._limits, self._distances, strict=True)
        for subspace, y, limit, distance in parts:
            allowed = torch.maximum(subspace.rounding_of(y), limit.clamp(max=subspace.allowance))
            # Where noise alone exceeds the distance of spurious minimisers, this level decides nothing: others have to.
            allowed = torch.where(subspace.noise_of(y) > limit, torch.maximum(allowed, subspace.noise_of(y)), allowed)
            inside.append(distance <= allowed)
        return torch.stack(inside).all(dim=0)

    @property
    def over_noise(self) -> torch.Tensor:
        """Return the largest distance of each from a subspace, over its noise there."""
        parts = zip(self.constraint.levels, self.activations, self._distances, strict=True)
        ratios = [distance / subspace.noise_of(y).clamp(min=LEAST_DISTANCE) for subspace, y, distance in parts]
        return torch.stack(ratios).amax(dim=0)

    @property
    def beyond_noise(self) -> torch.Tensor:
        """Return the largest distance of each from a subspace, over its noise there, or one where it is less.

        More is no noise: a layer was scaled a little, or the candidate lies beside a sample.
        """
        parts = zip(self.constraint.levels, self.activations, self._distances, strict=True)
        ratios = [distance / subspace.noise_of(y).clamp(min=EXACT) for subspace, y, distance in parts]
        return torch.stack(ratios).amax(dim=0).nan_to_num(nan=1.0).clamp(min=1.0)

    @property
    def log_chances(self) -> torch.Tensor:
        """Return log10 of the distances, once for each equation, where they are smaller than of spurious minimisers."""
        parts = []
        for subspace, limit, distance in zip(self.constraint.levels, self._limits, self._distances, strict=True):
            logs = torch.where(distance <= limit, torch.log10(distance.clamp(min=LEAST_DISTANCE)), 0.0)
            parts.append(logs[:, None].expand(-1, max(0, subspace.n_equations)))
        return torch.cat(parts, dim=1)

    @cached_property
    def own_log_chances(self) -> torch.Tensor:
        """Return the same for the equations that are left where some units are inactive."""
        parts = []
        for subspace, limit, y, distance in zip(
            self.constraint.levels, self._limits, self.activations, self._distances, strict=True
        ):
            strengths = subspace.strengths_of(y).clamp(min=LEAST_DISTANCE)
            chances = (distance.clamp(min=LEAST_DISTANCE)[:, None] / strengths).clamp(max=1.0)
            parts.append(torch.where((distance <= limit)[:, None], torch.log10(chances), 0.0))
        return torch.cat(parts, dim=1)

    @property
    def least_log_chances(self) -> torch.Tensor:
        """Return the same for samples at the least distance."""
        n = len(self.activations[0])
        return torch.full((n, self.constraint.n_equations), math.log10(LEAST_DISTANCE), dtype=self.activations[0].dtype)


def _side_by_side(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _nonlinear_share(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return how much of the activations of each input is no affine function of its pre-activations, relative."""
    z, centred = z - z.mean(dim=1, keepdim=True), y - y.mean(dim=1, keepdim=True)
    smallest = torch.finfo(y.dtype).tiny
    slope = (z * centred).sum(dim=1, keepdim=True) / z.square().sum(dim=1, keepdim=True).clamp(min=smallest)
    return torch.linalg.vector_norm(centred - slope * z, dim=1) / lengths(y)

"""Coordinates of samples: ``q`` of the columns of the gradient, and ``p`` of the forward pass.

For sample ``i`` the column ``U q_i`` of the gradient is zero exactly where a unit is inactive by its pre-activations
``F p_i``. Here ``p = S^-1 V^T x``, so that ``F = W V S + bias h^T`` with ``h = U^T g`` (every true ``p`` has
``h^T p = 1``; a kink elsewhere than at zero is subtracted from the bias), the prior of ``p`` is isotropic, and
``P Q = I``: ``p_i`` is orthogonal to every other ``q_j``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl_fl.activations import Activation
from sparsedl_fl.constraints import DownstreamSubspaces
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.search.dual_estimates import WORKING, PosteriorMeans

__all__ = ["WORKING", "PrincipalForward", "ScaledForward", "SampleCoordinates", "leaders"]


@dataclass(frozen=True)
class SampleCoordinates:
    """The unknowns ``p`` and ``q`` of a search, deflated by known columns.

    Attributes
    ----------
    left : torch.Tensor of shape (m, b)
        ``sqrt(m) U``: directions make entries with mean square one.
    forward : torch.Tensor of shape (m, b)
        ``F``.
    found : torch.Tensor of shape (k, b)
        Columns ``q`` found so far, independent, as unit rows.
    free : torch.Tensor of shape (b, b - k)
        Orthonormal basis of their complement, in which the ``p`` of the other samples lie.
    inputs : torch.Tensor of shape (k, b)
        The ``p`` of the columns found or estimates of them, as unit rows; every other ``q`` is orthogonal to them.
    activation : Activation
        The activation, for pre-activations of no particular scale above the kink.
    scale : torch.Tensor of shape (b,)
        ``h``: a ``p`` has its true scale where ``h^T p = 1``.
    sizes : torch.Tensor of shape (b,)
        ``S``: an input is ``x = V S p``, and errors are measured in ``x``.
    kink : float, default=0
        The kink, subtracted from the pre-activations.
    half_way : torch.Tensor of shape (m, b) or None, default=None
        For a FedAvg client, whose weights move: matrix from ``p`` to half the change of its pre-activations. A unit
        that is active at initial or final weights has a gradient.
    """

    left: torch.Tensor
    forward: torch.Tensor
    found: torch.Tensor
    free: torch.Tensor
    inputs: torch.Tensor
    activation: Activation
    scale: torch.Tensor
    sizes: torch.Tensor
    kink: float = 0.0
    half_way: torch.Tensor | None = None

    @classmethod
    def of(
        cls,
        left: torch.Tensor,
        forward: torch.Tensor,
        activation: Activation,
        scale: torch.Tensor,
        sizes: torch.Tensor,
        kink: float = 0.0,
        half_way: torch.Tensor | None = None,
    ) -> SampleCoordinates:
        """Return the coordinates without deflation."""
        b = left.shape[1]
        nothing, free = torch.zeros((0, b), dtype=left.dtype), torch.eye(b, dtype=left.dtype)
        return cls(left, forward, nothing, free, nothing, activation, scale, sizes, kink, half_way)

    @classmethod
    def of_problem(cls, problem: LayerProblem) -> SampleCoordinates:
        """Return the coordinates of a layer's problem, without deflation."""
        factors, activation = problem.factors, problem.activation.above_kink()
        scale, sizes = as_tensor(problem.forward.scale), as_tensor(factors.singular_values)
        kink = problem.activation.lower
        half_way = problem.forward.half_way()
        moved = None if half_way is None else as_tensor(half_way)
        return cls.of(factors.zero_test.observations, problem.regressors(), activation, scale, sizes, kink, moved)

    def overlaps(self, inputs: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Return the cosine between each ``x`` and the dual of each column, of shape (n_inputs, n_columns).

        An input and its own column overlap by as much as ``x`` differs from the span of all others, and with any other
        column by the relative error of ``x``, whatever the sizes of their gradients.
        """
        return (normalized(inputs * self.sizes, dim=1) @ normalized(columns / self.sizes, dim=1).T).abs()

    @property
    def whole(self) -> SampleCoordinates:
        """The coordinates without deflation."""
        return self.of(self.left, self.forward, self.activation, self.scale, self.sizes, self.kink, self.half_way)

    def deflated_by(self, found: torch.Tensor) -> SampleCoordinates:
        """Return the coordinates deflated by columns."""
        free = torch.linalg.qr(found.T, mode="complete")[0][:, len(found) :]
        return replace(self, found=found, free=free, inputs=self.inputs[:0])

    def estimated_inputs(self, is_active: torch.Tensor) -> torch.Tensor:
        """Estimate the ``p`` of the columns found from their patterns."""
        return PosteriorMeans().of(self.found, self.free, self.forward, is_active)


@dataclass(frozen=True)
class PrincipalForward:
    """The pre-activations of samples not known yet, along their principal directions.

    Attributes
    ----------
    orthonormal : torch.Tensor of shape (m, d)
        Basis of the pre-activations.
    sizes : torch.Tensor of shape (d,)
        How large they are along each direction, descending.
    axes : torch.Tensor of shape (b, d)
        The ``p`` of each direction: ``F axes = orthonormal diag(sizes)``.
    """

    orthonormal: torch.Tensor
    sizes: torch.Tensor
    axes: torch.Tensor

    @classmethod
    def of(cls, coordinates: SampleCoordinates) -> PrincipalForward:
        """Decompose the forward pass, deflated by known columns."""
        orthonormal, mixing = torch.linalg.qr(coordinates.forward @ coordinates.free)
        directions, sizes, axes = torch.linalg.svd(mixing)
        return cls(orthonormal @ directions, sizes, coordinates.free @ axes.T)

    @property
    def power(self) -> torch.Tensor:
        """Square of the sizes, relative to their mean, in single precision."""
        return (self.sizes.square() / self.sizes.square().mean()).to(WORKING)

    def draw(self, n_starts: int, generator: torch.Generator) -> torch.Tensor:
        """Return unit pre-activations of shape (n_starts, m), drawn from the prior, in single precision."""
        coordinates = torch.randn((n_starts, len(self.sizes)), generator=generator, dtype=WORKING) * self.power.sqrt()
        return normalized(coordinates @ self.orthonormal.to(WORKING).T, dim=1)


@dataclass(frozen=True)
class ScaledForward:
    """The pre-activations of samples not known yet, at their true scale: ``z = z0 + O c``, along principal directions.

    The singular values of a gradient are the product of the spreads of columns and samples: with ``G = U S V^T`` and
    ``x = V S p``, half of each spread (as an exponent) is assigned to the samples. So the prior of ``sqrt(S) p`` is
    isotropic around the mean of the samples. (Measured at (80, 200) on CIFAR-10: ``p`` shrinks with ``S`` to the power
    of 0.36 for ReLU, 0.5 for GELU, 0.57 for tanh and ELU, 0.67 for sigmoid.)

    Attributes
    ----------
    origin : torch.Tensor of shape (b,)
        ``p0``, the likeliest ``p`` with ``h^T p = 1`` that is orthogonal to the columns found: the common part.
    offset : torch.Tensor of shape (m,)
        ``z0``, its pre-activations.
    orthonormal : torch.Tensor of shape (m, d)
        ``O``, a basis of the pre-activations of all differences of samples.
    sizes : torch.Tensor of shape (d,)
        Standard deviation of the prior along each direction, descending.
    axes : torch.Tensor of shape (b, d)
        The differences of ``p`` along each direction: ``F axes = O diag(sizes)``.
    """

    origin: torch.Tensor
    offset: torch.Tensor
    orthonormal: torch.Tensor
    sizes: torch.Tensor
    axes: torch.Tensor

    @classmethod
    def of(cls, coordinates: SampleCoordinates, share: float = 0.5) -> ScaledForward:
        """Decompose the forward pass, deflated by known columns; ``share`` of each spread is the samples'."""
        prior = coordinates.sizes**-share
        found = torch.linalg.qr((coordinates.found * prior).T, mode="complete")[0]
        free = found[:, len(coordinates.found) :]
        scale = free.T @ (coordinates.scale * prior)
        origin = free @ scale / scale.square().sum()
        # If all columns were orthogonal and equally long, every difference from p0 would be |p0| long in each
        # direction, in the root mean square.
        differences = free @ torch.linalg.qr(scale[:, None], mode="complete")[0][:, 1:]
        differences = torch.linalg.vector_norm(origin) * prior[:, None] * differences
        orthonormal, mixing = torch.linalg.qr(coordinates.forward @ differences)
        directions, sizes, axes = torch.linalg.svd(mixing)
        origin = prior * origin
        offset = coordinates.forward @ origin + coordinates.kink
        return cls(origin, offset, orthonormal @ directions, sizes, differences @ axes.T)

    def to(self, dtype: torch.dtype) -> ScaledForward:
        """Return the same in another precision."""
        return ScaledForward(*(getattr(self, field.name).to(dtype) for field in fields(self)))

    def draw(self, n_starts: int, generator: torch.Generator) -> torch.Tensor:
        """Return coordinates ``c`` of shape (n_starts, d) from the prior."""
        sizes = self.sizes
        return torch.randn((n_starts, len(sizes)), generator=generator, dtype=sizes.dtype) * sizes

    def preactivations(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return ``z`` of shape (n, m)."""
        return self.offset + coordinates @ self.orthonormal.T

    def coordinates(self, preactivations: torch.Tensor) -> torch.Tensor:
        """Return the nearest ``c``, of shape (n, d)."""
        return (preactivations - self.offset) @ self.orthonormal

    def inputs(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return ``p`` of shape (n, b), at their true scale."""
        return self.origin + (coordinates / self.sizes) @ self.axes.T

    def distinct(self, minimisers: torch.Tensor, subspaces: DownstreamSubspaces, same: float) -> torch.Tensor:
        """Return the finite ``c``, of each group within a cosine the one nearest to the activation subspaces.

        Some diverge where there are hardly more outputs than samples. With one dimension left all are parallel: the
        common part counts as a further coordinate, of typical size.
        """
        minimisers = minimisers[minimisers.isfinite().all(dim=1)]
        minimisers = minimisers[subspaces.at(self.preactivations(minimisers)).distances.argsort()]
        shared = torch.full_like(minimisers[:, :1], float(self.sizes.square().mean().sqrt()))
        return minimisers[leaders(torch.cat([minimisers, shared], dim=1), same).unique()]


def leaders(rows: torch.Tensor, same: float = 0.98) -> torch.Tensor:
    """Return for each row the leader of its group: an earlier row with its direction, up to a cosine, or itself."""
    own = torch.arange(len(rows))
    if len(own) == 0:
        return own
    directions = normalized(rows, dim=1)
    leader = torch.minimum((directions @ directions.T > same).int().argmax(dim=1), own)
    while (leader[leader] != leader).any():
        leader = leader[leader]
    return leader

"""Coordinates for a descent: their prior is isotropic, and the Gauss-Newton matrix is nearly diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from sparsedl.linalg import least_squares
from sparsedl_fl.constraints import Constraint, Linearization
from sparsedl_fl.search.columns_and_forward_pass import ScaledForward

__all__ = ["NaturalCoordinates", "SquaresAt"]


@dataclass(frozen=True)
class NaturalCoordinates:
    """Coordinates ``v`` with a standard normal prior, in which the Gauss-Newton matrix is nearly diagonal.

    Attributes
    ----------
    offset : torch.Tensor of shape (m,)
        ``z0``, the pre-activations of the common part.
    basis : torch.Tensor of shape (m, d)
        ``K``: ``z = z0 + K v``.
    curvature : torch.Tensor of shape (d,)
        The diagonal of ``K^T J^T J K`` at prior draws.
    origin : torch.Tensor of shape (b,)
        ``p0``, the common part.
    axes : torch.Tensor of shape (b, d)
        ``p = p0 + axes v``.
    orthonormal : torch.Tensor of shape (m, d)
        Orthonormal basis of the pre-activations of all differences.
    """

    offset: torch.Tensor
    basis: torch.Tensor
    curvature: torch.Tensor
    origin: torch.Tensor
    axes: torch.Tensor
    orthonormal: torch.Tensor

    @classmethod
    def of(
        cls, forward: ScaledForward, equations: Constraint, generator: torch.Generator, n_probes: int
    ) -> NaturalCoordinates:
        """Rotate the coordinates to the eigenvectors of the Gauss-Newton matrix at some prior draws."""
        basis = forward.orthonormal * forward.sizes
        drawn = forward.preactivations(forward.draw(n_probes, generator))
        squares = SquaresAt(equations.weighted(n_probes, 0.0, generator), drawn, basis)
        curvature, rotation = torch.linalg.eigh(squares.matrices.mean(dim=0))
        axes = forward.axes @ rotation
        return cls(forward.offset, basis @ rotation, curvature.clamp(min=0), forward.origin, axes, forward.orthonormal)

    def to(self, dtype: torch.dtype) -> NaturalCoordinates:
        """Return the same in another precision."""
        return NaturalCoordinates(*(part.to(dtype) for part in vars(self).values()))

    def preactivations(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return ``z`` of shape (n, m)."""
        return self.offset + coordinates @ self.basis.T

    def at(self, equations: Constraint, coordinates: torch.Tensor) -> SquaresAt:
        """Return the residuals of equations at coordinates of shape (n, d)."""
        return SquaresAt(equations, self.preactivations(coordinates), self.basis)

    def inputs(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return ``p`` of shape (n, b), at their true scale."""
        return self.origin + coordinates.to(self.axes.dtype) @ self.axes.T

    def coordinates(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the nearest ``v`` of shape (n, d) for ``p`` at their true scale."""
        return least_squares(self.axes, (inputs - self.origin).T).T


@dataclass(frozen=True)
class SquaresAt:
    """The residual of equations as a function of the coordinates, for `sparsedl_fl.solvers.gauss_newton`.

    Attributes
    ----------
    equations : Constraint
        As a function of the pre-activations.
    preactivations : torch.Tensor of shape (n, m)
        ``z``.
    basis : torch.Tensor of shape (m, d)
        ``K``.
    """

    equations: Constraint
    preactivations: torch.Tensor
    basis: torch.Tensor

    @cached_property
    def here(self) -> Linearization:
        """The linearised equations at these pre-activations."""
        return self.equations.at(self.preactivations)

    @property
    def cost(self) -> torch.Tensor:
        """The squares, of shape (n,)."""
        return self.here.cost

    @property
    def gradient(self) -> torch.Tensor:
        """The gradient of half of each, of shape (n, d)."""
        return self.here.gradient @ self.basis

    def times(self, changes: torch.Tensor) -> torch.Tensor:
        """Return ``K^T J^T J K`` times changes of shape (n, d)."""
        return self.here.curve(changes @ self.basis.T) @ self.basis

    @cached_property
    def matrices(self) -> torch.Tensor:
        """``K^T J^T J K`` of each, of shape (n, d, d)."""
        d = self.basis.shape[1]
        found = torch.empty((len(self.preactivations), d, d), dtype=self.preactivations.dtype)
        for index, z in enumerate(self.preactivations):
            found[index] = self.equations.of_some(torch.tensor([index])).at(z[None]).gram(self.basis.T)
        return found

"""The column space of a layer's gradient, in which the columns of ``D`` lie, with its noise."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.constraints.activation_subspace import lengths
from sparsedl_fl.constraints.constraint import complement
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["ColumnSpace"]


@dataclass(frozen=True)
class ColumnSpace:
    """The column space of a gradient, each output weighted by its noise.

    The rows of a head's gradient for the labels of the batch are a hundred times larger than the others, and so is
    their rounding.

    Attributes
    ----------
    weights : torch.Tensor of shape (m,)
        Factor of each output, by how exact it is.
    basis : torch.Tensor of shape (m, b)
        Orthonormal basis, weighted.
    mixing : torch.Tensor of shape (b, b)
        Matrix from coordinates in the basis to columns ``q``.
    duals : torch.Tensor of shape (b, b)
        Matrix from these coordinates to how far rounding moves a unit column.
    precision : torch.Tensor of shape ()
        Relative precision of the client's numbers.
    """

    weights: torch.Tensor
    basis: torch.Tensor
    mixing: torch.Tensor
    duals: torch.Tensor
    precision: torch.Tensor

    @classmethod
    def of(cls, factors: LowRankGradient, *, least_noise: float = 1e-3) -> ColumnSpace:
        """Return the column space of factors; no output counts as having less noise than that share of the typical."""
        U, S, noise = (as_tensor(part) for part in (factors.left, factors.singular_values, factors.noise_level))
        m, b = U.shape
        typical = noise.square().mean().sqrt()
        weights = typical / noise.clamp(min=least_noise * typical)
        basis, mixing = torch.linalg.qr(weights[:, None] * U)
        mixing = torch.linalg.inv(mixing)
        duals = mixing.T / S * ((m - b) ** 0.5 * typical)
        return cls(weights, basis, mixing, duals, torch.tensor(factors.precision, dtype=U.dtype))

    def to(self, dtype: torch.dtype) -> ColumnSpace:
        """Return the same in another precision."""
        return ColumnSpace(*(getattr(self, field.name).to(dtype) for field in fields(self)))

    def orthogonal_to(self, inputs: torch.Tensor) -> ColumnSpace:
        """Return the space of the columns orthogonal to rows ``p`` of shape (n, b): those of the other samples."""
        rotation = complement(inputs @ self.mixing)
        basis, mixing, duals = self.basis @ rotation, self.mixing @ rotation, rotation.T @ self.duals
        return replace(self, basis=basis, mixing=mixing, duals=duals)

    def outside(self, weighted: torch.Tensor) -> torch.Tensor:
        """Return the part of weighted rows of shape (n, m) that lies outside."""
        return weighted - (weighted @ self.basis) @ self.basis.T

    def distances_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the relative distances of rows of shape (n, m) from the space; that of a zero row is one."""
        weighted = rows * self.weights
        found = torch.linalg.vector_norm(self.outside(weighted), dim=1) / lengths(weighted)
        return torch.where(rows.any(dim=1), found, 1.0)

    def columns(self, weighted: torch.Tensor) -> torch.Tensor:
        """Return the ``q`` of weighted rows, of shape (n, b)."""
        return (weighted @ self.basis) @ self.mixing.T

    def expected(self, weighted: torch.Tensor) -> torch.Tensor:
        """Return how far the noise moves weighted unit rows out of the space, root mean square, of shape (n,)."""
        return torch.linalg.vector_norm((weighted @ self.basis) @ self.duals, dim=1)

"""Two linear images of the same coordinates in successive layers, for reflections across several layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Link"]


@dataclass(frozen=True)
class Link:
    """``y = V a`` in one layer and ``z' = W V a + bias`` in its neighbour, or the first of these alone.

    Attributes
    ----------
    basis : torch.Tensor of shape (m, b)
        ``V``, turned so that ``W V`` has orthogonal columns.
    left, sizes : torch.Tensor of shape (m', b) and (b,), or None
        ``W V = left diag(sizes)``; None without a neighbour.
    bias : torch.Tensor of shape (m',) or float, default=0
        Of the neighbour.
    power : (float, float), default=(1, 1)
        Weights of squared changes here and in the neighbour: larger for layers with smaller numbers.
    """

    basis: torch.Tensor
    left: torch.Tensor | None = None
    sizes: torch.Tensor | None = None
    bias: torch.Tensor | float = 0.0
    power: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def of(
        cls,
        basis: torch.Tensor,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | float = 0.0,
        power: tuple[float, float] = (1.0, 1.0),
    ) -> Link:
        """Take an orthonormal basis, and the weights to the neighbour where there is one."""
        if weight is None:
            return cls(basis)
        left, sizes, turn = torch.linalg.svd(weight @ basis, full_matrices=False)
        return cls(basis @ turn.T, left, sizes, bias, power)

    def nearest(
        self, y: torch.Tensor, neighbour: torch.Tensor | None, weight: torch.Tensor | float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the images nearest to rows of both; ``y`` counts by its weight."""
        if neighbour is None:
            return (y @ self.basis) @ self.basis.T, None
        here, there = weight * self.power[0], self.power[1]
        weighted = here * (y @ self.basis) + there * self.sizes * ((neighbour - self.bias) @ self.left)
        coordinates = weighted / (here + there * self.sizes.square())
        return coordinates @ self.basis.T, (coordinates * self.sizes) @ self.left.T + self.bias

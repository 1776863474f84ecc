"""How well features determine a picture: the singular values of the front's Jacobian at the solution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparsedl_fl.propagate.pictures.front import Front

__all__ = ["MOST_DENSE", "Determinacy", "determinacy_at", "jacobian_at"]

MOST_DENSE = 4096
"""Largest number of a picture's numbers for which the Jacobian is formed: ``J^T J`` then takes 134 MB in double
precision, and its eigenvalues about 20 s on one core."""

UNITS_AT_ONCE = 64
"""Directions that are pushed through the network at once: behind McMahan's CNN 16 take a tenth longer each."""

ROUNDING = 30.0
"""Singular values below so many times single precision, over the largest, are those of zero: the Jacobian is computed
in single precision, with sums of a thousand terms."""


@dataclass(frozen=True, eq=False)
class Determinacy:
    """How well the features of one picture determine it, to first order.

    Attributes
    ----------
    n_equations : int
        Features whose derivative is not zero.
    n_unknowns : int
        Numbers of the picture.
    rank : int
        Singular values of the Jacobian above rounding.
    smallest : float
        The smallest singular value, zero where the rank is not full; in units of features over those of the input.
    gain : float
        Root-mean-square error of the picture for features that are off by one, at random; infinite where the rank is
        not full.
    open : ndarray of shape (n_unknowns - rank, n_unknowns)
        Orthonormal directions in which the picture may move without a change of its features.
    """

    n_equations: int
    n_unknowns: int
    rank: int
    smallest: float
    gain: float
    open: np.ndarray

    @property
    def is_determined(self) -> bool:
        """Whether there are more equations than unknowns, and the rank is full."""
        return self.n_equations > self.n_unknowns and self.rank == self.n_unknowns


def jacobian_at(front: Front, picture: torch.Tensor) -> torch.Tensor:
    """Return the front's Jacobian at a picture of shape (n_pixels,), transposed: of shape (n_pixels, n_features).

    Unit pictures are pushed through the network, in the precision of the front.
    """
    n = front.n_pixels
    k = min(UNITS_AT_ONCE, n)
    J = front.linearized(picture.expand(k, -1))
    rows = torch.empty((n, front.n_features), dtype=picture.dtype)
    for first in range(0, n, k):
        units = torch.zeros((k, n), dtype=picture.dtype)
        index = torch.arange(first, min(first + k, n))
        units[torch.arange(len(index)), index] = 1
        rows[index] = J.along(units)[: len(index)]
    return rows


def determinacy_at(low: Front, picture: torch.Tensor) -> Determinacy:
    """Return how well the features of a picture of shape (n_pixels,) determine it.

    Parameters
    ----------
    low : Front
        In single precision.
    picture : torch.Tensor of shape (n_pixels,)
    """
    rows = jacobian_at(low, picture.float())
    is_active = (rows != 0).any(dim=0)
    rows = rows[:, is_active].double()
    n, n_equations = rows.shape
    squares, directions = torch.linalg.eigh(rows @ rows.T)
    sizes = squares.clamp(min=0).sqrt()
    # Eigenvalues of the square resolve singular values to the root of double precision.
    floor = max(ROUNDING * torch.finfo(torch.float32).eps, (n * torch.finfo(torch.float64).eps) ** 0.5) * sizes[-1]
    is_held = sizes > floor
    rank = int(is_held.sum())
    gain = float((1 / sizes.square()).mean().sqrt()) if rank == n else np.inf
    smallest = float(sizes[0]) if rank == n else 0.0
    return Determinacy(n_equations, n, rank, smallest, gain, directions[:, ~is_held].T.numpy().copy())

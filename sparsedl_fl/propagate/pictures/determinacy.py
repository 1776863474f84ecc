"""How well features determine a picture: the singular values of the front's Jacobian at the solution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparsedl_fl.propagate.pictures.draws import normal_like, unit_normal
from sparsedl_fl.propagate.pictures.front import Front
from sparsedl_fl.propagate.pictures.linearized import Linearized
from sparsedl_fl.solvers import conjugate_gradient

__all__ = [
    "ACCURACY",
    "MOST_DENSE",
    "N_DRAWS",
    "N_PRODUCTS",
    "Determinacy",
    "determinacy_at",
    "inverse_products",
    "jacobian_at",
]

MOST_DENSE = 4096
"""Largest number of a picture's numbers for which the Jacobian is formed: ``J^T J`` then takes 134 MB in double
precision, and its eigenvalues about 20 s on one core."""

UNITS_AT_ONCE = 64
"""Directions that are pushed through the network at once: behind McMahan's CNN 16 take a tenth longer each."""

ROUNDING = 30.0
"""Singular values below so many times single precision, over the largest, are those of zero: the Jacobian is computed
in single precision, with sums of a thousand terms."""


N_DRAWS, N_PRODUCTS, ACCURACY = 3, 600, 1e-10
"""Random directions for which ``J^T J`` is inverted where it is not formed, products for each at most, and the squared
residual at which it is solved. A direction that nothing holds is part of each and keeps it unsolved."""


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
    open : ndarray of shape (n_open, n_unknowns)
        Orthonormal directions in which the picture may move without a change of its features: all ``n_unknowns - rank``
        of them, or none for pictures of more than `MOST_DENSE` numbers, whose rank is an upper bound if it is not full.
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
    rows = torch.empty((n, front.n_features), dtype=picture.dtype, device=picture.device)
    for first in range(0, n, k):
        units = torch.zeros((k, n), dtype=picture.dtype, device=picture.device)
        index = torch.arange(first, min(first + k, n), device=picture.device)
        units[index - first, index] = 1
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
    if low.n_pixels > MOST_DENSE:
        return _without_matrix(low.to(torch.float64), picture)
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
    return Determinacy(n_equations, n, rank, smallest, gain, directions[:, ~is_held].T.cpu().numpy().copy())


def _without_matrix(front: Front, picture: torch.Tensor) -> Determinacy:
    """Return the same for a large picture, by conjugate gradients on random directions."""
    n, J = front.n_pixels, front.linearized(picture[None])
    direction = unit_normal((1, n), 1, picture.device)
    n_equations = int((J.along(direction) != 0).sum())
    found = inverse_products(J) if n_equations > n else None
    if found is None:
        return Determinacy(n_equations, n, min(n_equations, n - 1), 0.0, np.inf, np.zeros((0, n)))
    gain = float(torch.stack([(v * y).mean() for v, y in found]).mean().sqrt())
    smallest = min(float((v.norm() / y.norm()).sqrt()) for v, y in found)
    return Determinacy(n_equations, n, n, smallest, gain, np.zeros((0, n)))


def inverse_products(J: Linearized) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Return random directions ``v`` and ``(J^T J)^-1 v``, or None where some directions are not held."""
    generator, found = torch.Generator().manual_seed(0), []
    shape, like = J.point.shape, J.point.reshape(1, -1)

    def squared(u: torch.Tensor) -> torch.Tensor:
        return J.back(J.along(u.reshape(shape))).reshape(1, -1)

    for _ in range(N_DRAWS):
        v = normal_like(like, generator)
        y, _ = conjugate_gradient(squared, lambda u: u, v, n_products=N_PRODUCTS, enough=ACCURACY)
        # In a direction that nothing holds, conjugate gradients divide by zero: what they return is not believed.
        if not ((squared(y) - v).square().sum() <= 10 * ACCURACY * v.square().sum()):
            return None
        found.append((v.reshape(shape), y.reshape(shape)))
    return found

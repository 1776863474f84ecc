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
    gain_of_mixing : float, default=0
        As the gain, for features that are off towards those of another picture of the batch, the largest of all; zero
        without others, or where the Jacobian is not formed.
    visible : float, default=1
        Least part of such an error, of any mixture, that is no change of features by any picture: equations left over
        show no more of it.
    """

    n_equations: int
    n_unknowns: int
    rank: int
    smallest: float
    gain: float
    open: np.ndarray
    gain_of_mixing: float = 0.0
    visible: float = 1.0

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


def determinacy_at(low: Front, picture: torch.Tensor, features: torch.Tensor, index: int) -> Determinacy:
    """Return how well the features of a picture of shape (n_pixels,) determine it.

    Parameters
    ----------
    low : Front
        In single precision.
    picture : torch.Tensor of shape (n_pixels,)
    features : torch.Tensor of shape (b, n_features)
        Of all pictures of the batch: what a gradient says of one may be off towards the others.
    index : int
        Which of them are those of the picture.
    """
    features = features.double().cpu()
    others = torch.cat([features[:index], features[index + 1 :]]) - features[index]
    if low.n_pixels > MOST_DENSE:
        return _without_matrix(low.to(torch.float64), picture, others)
    rows = jacobian_at(low, picture.float())
    is_active = (rows != 0).any(dim=0)
    rows = rows[:, is_active].double()
    n, n_equations = rows.shape
    squares, directions = torch.linalg.eigh(rows @ rows.T)
    sizes = squares.clamp(min=0).sqrt()
    # Eigenvalues of the square resolve singular values to the root of double precision.
    floor = max(ROUNDING * torch.finfo(torch.float32).eps, (n * torch.finfo(torch.float64).eps) ** 0.5) * sizes[-1]
    is_held = sizes > floor
    rank, is_open = int(is_held.sum()), directions[:, ~is_held].T.cpu().numpy().copy()
    if rank < n:
        return Determinacy(n_equations, n, rank, 0.0, np.inf, is_open)
    is_active, tangent = is_active.cpu(), (rows.T @ directions / sizes).cpu()
    of_mixing = torch.linalg.vector_norm(others[:, is_active] @ tangent / sizes.cpu(), dim=1) / _lengths(others)
    of_mixing *= (features.shape[1] / n) ** 0.5
    return Determinacy(
        n_equations,
        n,
        rank,
        smallest=float(sizes[0]),
        gain=float((1 / sizes.square()).mean().sqrt()),
        open=is_open,
        gain_of_mixing=float(of_mixing.max()) if len(others) else 0.0,
        visible=_visible(_basis(others)[is_active].T @ tangent),
    )


def _lengths(rows: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(rows, dim=1).clamp(min=torch.finfo(rows.dtype).tiny)


def _basis(rows: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis of the span of rows of shape (k, n), as columns."""
    return torch.linalg.qr((rows / _lengths(rows)[:, None]).T).Q


def _visible(inside: torch.Tensor) -> float:
    """Return the least part of a unit vector outside of a subspace, from the parts of a basis inside, (k, n)."""
    largest = float(torch.linalg.matrix_norm(inside, ord=2)) if len(inside) else 0.0
    return max(1.0 - largest**2, 0.0) ** 0.5


def _without_matrix(front: Front, picture: torch.Tensor, others: torch.Tensor) -> Determinacy:
    """Return the same for a large picture, by conjugate gradients on random directions.

    Only what others have in features that are off at this picture is taken to be visible.
    """
    n, J = front.n_pixels, front.linearized(picture[None])
    is_active = J.along(unit_normal((1, n), 1, picture.device))[0] != 0
    n_equations = int(is_active.sum())
    found = inverse_products(J) if n_equations > n else None
    if found is None:
        return Determinacy(n_equations, n, min(n_equations, n - 1), 0.0, np.inf, np.zeros((0, n)))
    gain = float(torch.stack([(v * y).mean() for v, y in found]).mean().sqrt())
    smallest = min(float((v.norm() / y.norm()).sqrt()) for v, y in found)
    visible = _visible(_basis(others)[is_active.cpu()].T)
    return Determinacy(n_equations, n, n, smallest, gain, np.zeros((0, n)), visible=visible)


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

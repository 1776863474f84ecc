"""The information that activation subspaces hold of single inputs, for their expected errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.linalg import eigh, solve_triangular

from sparsedl.arrays import as_tensor
from sparsedl_fl.constraints import ActivationSubspace, DownstreamSubspaces, SubspacesAt

__all__ = ["FromSubspaces", "Piece"]

SURELY_LEFT = 3.0
"""Distance from a subspace, over the noise, that a change of an input needs for the subspace to determine it. At 1.7,
two inputs 2 % apart were both recovered between the two, by 16 expected errors."""

SHARED = 20.0
"""Number of equations that the noise of all inputs together counts as, in the estimate for each; not varied."""

Piece = tuple[int, int] | None
"""A linear piece beside an input: the layer and the unit that is active there; None is its own."""

_Doubt = Callable[[np.ndarray], np.ndarray]


class FromSubspaces:
    """The information that activation subspaces hold of each of some inputs."""

    def __init__(self, constraint: DownstreamSubspaces, forward: np.ndarray, whitened: np.ndarray) -> None:
        here = constraint.at(as_tensor(whitened @ forward.T))
        self.constraint, self.forward = constraint, forward
        levels = list(zip(constraint.levels, here.preactivations, here.activations, strict=True))
        self.borderline = [_borderline(*level).numpy() for level in levels]
        self.slopes = [
            np.where(at_kink, 0.0, own.numpy()) for at_kink, own in zip(self.borderline, here.slopes, strict=True)
        ]
        self.residuals = [subspace.outside(y).numpy() for subspace, _, y in levels]
        self.rounding, self.deviations = _rounding(constraint, here, self.residuals)

    def pieces(self, index: int) -> list[Piece]:
        """Return the linear pieces beside an input, its own first.

        A mixture of samples with the same active units may lie where one more unit becomes active: it fulfils all
        equations, and looks determined on one side alone. (Of two samples of two labels 0.003 apart, behind two hidden
        layers, one was certified 0.013 beside them, with an expected error of 3e-6.)
        """
        if not _has_a_double(self.slopes[0].T, index, self.forward.shape[1] - 1):
            return [None]
        at_kinks = enumerate(np.flatnonzero(part[index]) for part in self.borderline)
        return [None, *((level, int(unit)) for level, units in at_kinks for unit in units)]

    def of(
        self, index: int, free: np.ndarray, piece: Piece
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, _Doubt | None]:
        """Return the information on changes of an input in a piece, given as columns.

        Returns
        -------
        free : ndarray of shape (b, b - 1)
            The changes, or others of the same span.
        information : ndarray of shape (b - 1, b - 1)
            Fisher information of the changes.
        pull : ndarray of shape (b - 1,)
            Gradient of half the squared residual along the changes.
        in_doubt : callable or None
            Takes mixtures of the changes, as columns, to the information on each that is within rounding. Behind a
            piecewise linear activation, where a change between two samples of one piece lies in the subspace; for
            smooth ones no certificate was wrong without, and some right ones were lost (of 464 problems, in four).
        """
        slopes = [part[index] for part in self.slopes]
        if piece is not None:
            slopes[piece[0]] = np.where(np.arange(len(slopes[piece[0]])) == piece[1], 1.0, slopes[piece[0]])
        moved, free = _moved(self.constraint, self.forward, slopes, free)
        information = squares = pull = np.asarray(0.0)
        for level, change in enumerate(moved):
            inside, gram = self.constraint.levels[level].basis.numpy().T @ change, change.T @ change
            precision = self.deviations[level, index] ** -2
            information = information + precision * (gram - inside.T @ inside)
            squares = squares + precision * gram
            pull = pull + precision * (change.T @ self.residuals[level][index])
        if _has_a_double(self.slopes[0].T, index, free.shape[1]):
            whole, rounding_of = information, lambda mixing: self._rounding_of(index, moved, mixing)
            information = _beyond_rounding(whole, squares, rounding_of)

            def in_doubt(mixing: np.ndarray) -> np.ndarray:
                left, sizes, kept = (np.sum(mixing * (part @ mixing), axis=0) for part in (whole, squares, information))
                return np.where(left > sizes * rounding_of(mixing) ** 2, 0.0, kept)

            is_exact = self.constraint.levels[0].activation.is_piecewise_linear
            return free, information, pull, in_doubt if is_exact else None
        return free, information, pull, None

    def _rounding_of(self, index: int, moved: list[np.ndarray], mixing: np.ndarray) -> np.ndarray:
        """Return the largest relative distance from the subspaces that rounding explains, of mixtures of changes.

        The difference of two similar inputs may lie where the gradient is weak, though neither does.
        """
        changed = [as_tensor((change @ mixing).T.copy()) for change in moved]
        noise = [
            subspace.noise_of(change).numpy() for subspace, change in zip(self.constraint.levels, changed, strict=True)
        ]
        return np.maximum(SURELY_LEFT * np.max(noise, axis=0), self.rounding[:, index].max())


def _borderline(subspace: ActivationSubspace, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return which units with a zero-slope region are as near to their kink as rounding explains.

    Where fewer units are active than there are unknowns, a minimiser is free up to where the next unit becomes active,
    and looks determined there. (One such was off by 6 % of its size, with an expected error of 4e-6.)
    """
    if not subspace.activation.has_flat_part:
        return torch.zeros_like(z, dtype=torch.bool)
    near = (subspace.rounding_of(y) * torch.linalg.vector_norm(y, dim=1))[:, None]
    return subspace.activation.distance_to_kink(z) <= near


def _rounding(
    downstream: DownstreamSubspaces, here: SubspacesAt, residuals: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the relative distance that rounding explains, and the estimated noise, both of shape (levels, k).

    Rounding is known up to a factor, which the equations of each input show; that of all inputs counts as `SHARED`
    equations more. A fit may fulfil one layer's equations at the cost of another's: no layer counts as more exact than
    all together.
    """
    b = downstream.levels[0].basis.shape[1]
    n_unknown = np.minimum(np.sum(here.slopes[0].numpy() != 0, axis=1), b - 1)
    rounding, sizes, squares, freedom = [], [], [], []
    for subspace, y, residual in zip(downstream.levels, here.activations, residuals, strict=True):
        rounding.append(subspace.rounding_of(y).numpy())
        sizes.append(np.linalg.norm(y.numpy(), axis=1) * rounding[-1])
        squares.append(np.sum((residual / sizes[-1][:, None]) ** 2, axis=1))
        freedom.append(np.maximum((len(subspace.basis) - b) * (1 - n_unknown / downstream.n_equations), 1))
    of_layers = _factor(np.array(squares), np.array(freedom))
    of_all = _factor(np.sum(squares, axis=0), np.sum(freedom, axis=0))
    return np.array(rounding), np.array(sizes) * np.maximum(of_layers, of_all)


def _factor(squares: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Return by what factor noise is larger than expected, from its squares and those of all."""
    shared = np.mean(squares / freedom, axis=-1, keepdims=True)
    return np.sqrt((squares + SHARED * shared) / (freedom + SHARED))


def _moved(
    downstream: DownstreamSubspaces, forward: np.ndarray, slopes: list[np.ndarray], free: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return how changes of an input move its activations in each layer, and these changes, as columns.

    In the first layer they are orthonormal, where possible.
    """
    is_active = slopes[0] != 0
    active, free = _orthonormal((forward[is_active] * slopes[0][is_active, None]) @ free, free)
    first = np.zeros((len(is_active), active.shape[1]))
    first[is_active] = active
    moved = [first]
    for (W, _), slope in zip(downstream.layers, slopes[1:], strict=True):
        moved.append(slope[:, None] * (W.numpy() @ moved[-1]))
    return moved, free


def _orthonormal(moved: np.ndarray, free: np.ndarray, *, regular: float = 1e-10) -> tuple[np.ndarray, np.ndarray]:
    """Return orthonormal changes of the activations, and the changes of the input, where these are independent.

    They may differ in size by many orders of magnitude, and the information on them is a difference of squares.
    """
    if len(moved) < moved.shape[1]:
        return moved, free
    orthonormal, mixing = np.linalg.qr(moved)
    sizes = np.abs(np.diag(mixing))
    if sizes.min() <= regular * sizes.max():
        return moved, free
    return orthonormal, solve_triangular(mixing, free.T, trans="T").T


def _has_a_double(
    slopes: np.ndarray, index: int, n_free: int, *, few_inputs: int = 100, own_units: float = 0.1
) -> bool:
    """Return whether another input may activate nearly the same units, all but a small share.

    With few inputs or few unknowns each is taken to have one: the check is cheap then. (The nearest of hundreds of
    inputs differed in a share of 0.1.)
    """
    if min(slopes.shape[1], n_free) < few_inputs:
        return True
    is_active = slopes != 0
    alone = is_active[:, [index]] & ~np.delete(is_active, index, axis=1)
    return bool(alone.sum(axis=0).min() < own_units * is_active[:, index].sum())


def _beyond_rounding(
    information: np.ndarray,
    squares: np.ndarray,
    rounding_of: Callable[[np.ndarray], np.ndarray],
    *,
    ridge: float = 1e-12,
) -> np.ndarray:
    """Leave out the information on directions that leave the subspace by no more than rounding.

    Mixtures of two inputs that activate the same units lie in the subspace as well: it does not tell them apart. The
    ridge keeps the comparison regular.
    """
    scale = np.sqrt(np.maximum(np.diag(squares), np.finfo(float).tiny))
    metric = squares / np.outer(scale, scale) + ridge * np.eye(len(scale))
    values, axes = eigh(information / np.outer(scale, scale), metric)
    kept = np.where(values > rounding_of(axes / scale[:, None]) ** 2, values, 0.0)
    dual = metric @ axes * scale[:, None]
    return (dual * kept) @ dual.T

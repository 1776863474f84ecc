"""Expected errors from the constraints, each input by itself.

The residual at an input shows the noise of a constraint; and ``p`` is orthogonal to the columns of other inputs, up to
their errors. What one more step of Newton's method would change is an error too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from scipy.linalg import eigh, solve_triangular

from sparsedl.arrays import as_tensor
from sparsedl_fl.constraints import (
    ActivationSubspace,
    Constraint,
    DownstreamSubspaces,
    Stacked,
    SubspacesAt,
    TailGradient,
)
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["errors_from_constraints"]

SURELY_LEFT = 3.0
"""Distance from a subspace, over the noise, that a change of an input needs for the subspace to determine it. At 1.7,
two inputs 2 % apart were both recovered between the two, by 16 expected errors."""

ROUNDING = 0.3
"""Standard deviation of what rounds to nearest, in units of the last place: ``1 / sqrt(12)``, rounded up."""

SHARED = 20.0
"""Number of equations that the noise of all inputs together counts as, in the estimate for each; not varied."""


def errors_from_constraints(
    factors: LowRankGradient,
    forward: np.ndarray,
    scale: np.ndarray,
    constraint: Constraint,
    whitened: np.ndarray,
    columns: np.ndarray,
    products: np.ndarray,
) -> np.ndarray:
    """Return the expected error of inputs, by a constraint and by certified columns.

    Parameters
    ----------
    factors : LowRankGradient
        The factorised gradient.
    forward : ndarray of shape (m, b)
        ``F``.
    scale : ndarray of shape (b,)
        ``h``.
    constraint : Constraint
        What they fulfil.
    whitened : ndarray of shape (k, b)
        Rows ``p``, at their true scale ``h^T p = 1``.
    columns : ndarray of shape (c, b)
        Columns ``q`` that their zeros certify, as rows.
    products : ndarray of shape (k, c)
        Expected size of ``p dq`` for each input and column; infinite for an input's own column.

    Returns
    -------
    ndarray of shape (k,)
        Infinite where even all together do not determine an input.
    """
    S, n = factors.singular_values, factors.right.shape[1]
    of_scale = _errors_of_scale(factors, scale, whitened)
    if whitened.shape[1] == 1:  # nothing is free but the scale
        return of_scale * np.abs(whitened[:, 0]) * S[0] / np.sqrt(n)
    if len(whitened) == 0:
        return np.zeros(0)
    constraints = constraint.constraints if isinstance(constraint, Stacked) else (constraint,)
    sources = [_INFORMATION[type(part)](part, forward, whitened) for part in constraints]
    errors = np.full(len(whitened), np.inf)
    # The bias gradient fixes the scale, up to its own noise: the last change is of scale alone.
    changes = np.linalg.qr(scale[:, None], mode="complete")[0]
    changes = np.roll(changes, -1, axis=1)
    for index in range(len(whitened)):
        free = changes
        information = pull = np.asarray(0.0)
        in_doubt: _Doubt | None = None
        for source in sources:
            free, from_source, pull_of_source, doubted = source.of(index, free)
            information, pull = information + from_source, pull + pull_of_source
            in_doubt = doubted or in_doubt
        known = np.isfinite(products[index]) & (products[index] > 0)
        orthogonal = columns[known] @ free / products[index, known, None]
        whole = information + orthogonal.T @ orthogonal
        system, cross = whole[:-1, :-1], whole[:-1, -1]
        units = np.sqrt(np.diag(system))
        if not units.all():
            continue
        values, axes = np.linalg.eigh(system / np.outer(units, units))
        if values[0] <= len(values) * np.finfo(float).eps * values[-1]:
            continue
        mixing = np.vstack([axes / units[:, None], np.zeros(len(axes))])
        if in_doubt is not None and (in_doubt(mixing) > values / 2).any():
            continue
        root = axes / np.sqrt(values) / units[:, None]
        step, to_input = root @ (root.T @ pull[:-1]), free[:, :-1].T * S
        # Another scale moves the input along what the equations determine least.
        rescaled = (free[:, -1] * S - (root @ (root.T @ cross)) @ to_input) / (scale @ free[:, -1])
        squares = [np.sum((step @ to_input) ** 2), np.sum((root.T @ to_input) ** 2)]
        errors[index] = np.sqrt((sum(squares) + np.sum((of_scale[index] * rescaled) ** 2)) / n)
    return errors


def _errors_of_scale(factors: LowRankGradient, scale: np.ndarray, whitened: np.ndarray) -> np.ndarray:
    """Return by how much the noise of the bias gradient moves ``h^T p``, which should be one."""
    left = factors.left
    noise = np.hypot(factors.noise_level, ROUNDING * factors.precision * np.abs(left @ scale))
    return np.linalg.norm((left @ whitened.T) * noise[:, None], axis=0)


_Doubt = Callable[[np.ndarray], np.ndarray]


class _FromSubspaces:
    """The information that activation subspaces hold of each of some inputs."""

    def __init__(self, constraint: DownstreamSubspaces, forward: np.ndarray, whitened: np.ndarray) -> None:
        here = constraint.at(as_tensor(whitened @ forward.T))
        self.constraint, self.forward = constraint, forward
        levels = list(zip(constraint.levels, here.preactivations, here.activations, here.slopes, strict=True))
        self.slopes = [_sure_slopes(*level).numpy() for level in levels]
        self.residuals = [subspace.outside(y).numpy() for subspace, _, y, _ in levels]
        self.rounding, self.deviations = _rounding(constraint, here, self.residuals)

    def of(self, index: int, free: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, _Doubt | None]:
        """Return the information on changes of an input, given as columns.

        Returns
        -------
        free : ndarray of shape (b, b - 1)
            The changes, or others of the same span.
        information : ndarray of shape (b - 1, b - 1)
            Fisher information of the changes.
        pull : ndarray of shape (b - 1,)
            Gradient of half the squared residual along the changes.
        in_doubt : callable or None
            Takes mixtures of the changes, as columns, to the information on each that is within rounding.
        """
        moved, free = _moved(self.constraint, self.forward, [part[index] for part in self.slopes], free)
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

            return free, information, pull, in_doubt
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


def _sure_slopes(subspace: ActivationSubspace, z: torch.Tensor, y: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Return the slopes, zero where a unit with a zero-slope region is as near to its kink as rounding explains.

    Where fewer units are active than there are unknowns, a minimiser is free up to where the next unit becomes active,
    and looks determined there. (One such was off by 6 % of its size, with an expected error of 4e-6.)
    """
    if not subspace.activation.has_flat_part:
        return slopes
    near = (subspace.rounding_of(y) * torch.linalg.vector_norm(y, dim=1))[:, None]
    return torch.where(subspace.activation.distance_to_kink(z) > near, slopes, 0.0)


class _FromTail:
    """The information that the network tail holds of each of some inputs."""

    def __init__(self, constraint: TailGradient, forward: np.ndarray, whitened: np.ndarray) -> None:
        self.forward, self.preactivations = forward, as_tensor(whitened @ forward.T)
        self.constraint = replace(constraint.settled(self.preactivations), weight=1.0)
        here = self.constraint.at(self.preactivations)
        self.residuals = here.outside.numpy()
        m, b = constraint.space.basis.shape
        sizes = np.maximum(here.expected.numpy(), np.finfo(float).tiny)
        freedom = max(m - b - constraint.n_unknowns, 1)
        # Rounding is known up to one factor, which all inputs show together; an input that is further off counts with
        # its own. (One between two labels was off by eight expected errors.)
        own = np.sqrt(np.sum((self.residuals / sizes[:, None]) ** 2, axis=1) / freedom)
        factor = np.sqrt(np.mean(own**2))
        self.deviations = np.maximum(sizes * np.maximum(factor, own), np.finfo(float).eps)

    def of(self, index: int, free: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, None]:
        """Return the same as of subspaces."""
        alone = torch.tensor([index])
        here = self.constraint.of_some(alone).at(self.preactivations[alone])
        turned = here.jvp(as_tensor((self.forward @ free).T)).numpy()
        precision = self.deviations[index] ** -2
        return free, precision * (turned @ turned.T), precision * (turned @ self.residuals[index]), None


_INFORMATION: dict[type[Constraint], Callable[..., _FromSubspaces | _FromTail]] = {
    DownstreamSubspaces: _FromSubspaces,
    TailGradient: _FromTail,
}


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

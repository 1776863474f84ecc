"""Expected errors from the constraints, each input by itself.

The residual at an input shows the noise of a constraint; and ``p`` is orthogonal to the columns of other inputs, up to
their errors. What one more step of Newton's method would change is an error too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.certify.uncertainty.from_subspaces import FromSubspaces, Piece
from sparsedl_fl.constraints import Constraint, DownstreamSubspaces, Stacked, TailGradient
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["errors_from_constraints"]

ROUNDING = 0.3
"""Standard deviation of what rounds to nearest, in units of the last place: ``1 / sqrt(12)``, rounded up."""


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
        known = np.isfinite(products[index]) & (products[index] > 0)
        equations = columns[known] / products[index, known, None]
        at = [
            _error_of(sources, index, piece, changes, equations, factors.singular_values, scale, of_scale[index])
            for piece in sources[0].pieces(index)
        ]
        errors[index] = max(at) / np.sqrt(n)
    return errors


def _error_of(
    sources: list[FromSubspaces | _FromTail],
    index: int,
    piece: Piece,
    free: np.ndarray,
    equations: np.ndarray,
    singular_values: np.ndarray,
    scale: np.ndarray,
    error_of_scale: float,
) -> float:
    """Return the expected length of the error of an input in a linear piece, for changes ``free`` given as columns."""
    information, pull, in_doubt = np.asarray(0.0), np.asarray(0.0), None
    for source in sources:
        free, from_source, pull_of_source, doubted = source.of(index, free, piece)
        information, pull, in_doubt = information + from_source, pull + pull_of_source, in_doubt or doubted
    orthogonal = equations @ free
    whole = information + orthogonal.T @ orthogonal
    system, cross = whole[:-1, :-1], whole[:-1, -1]
    units = np.sqrt(np.diag(system))
    if not units.all():
        return np.inf
    values, axes = np.linalg.eigh(system / np.outer(units, units))
    if values[0] <= len(values) * np.finfo(float).eps * values[-1]:
        return np.inf
    mixing = np.vstack([axes / units[:, None], np.zeros(len(axes))])
    if in_doubt is not None and (in_doubt(mixing) > values / 2).any():
        return np.inf
    root = axes / np.sqrt(values) / units[:, None]
    step, to_input = root @ (root.T @ pull[:-1]), free[:, :-1].T * singular_values
    # Another scale moves the input along what the equations determine least.
    rescaled = (free[:, -1] * singular_values - (root @ (root.T @ cross)) @ to_input) / (scale @ free[:, -1])
    squares = np.sum((step @ to_input) ** 2) + np.sum((root.T @ to_input) ** 2)
    return float(np.sqrt(squares + np.sum((error_of_scale * rescaled) ** 2)))


def _errors_of_scale(factors: LowRankGradient, scale: np.ndarray, whitened: np.ndarray) -> np.ndarray:
    """Return by how much the noise of the bias gradient moves ``h^T p``, which should be one."""
    left = factors.left
    noise = np.hypot(factors.noise_level, ROUNDING * factors.precision * np.abs(left @ scale))
    return np.linalg.norm((left @ whitened.T) * noise[:, None], axis=0)


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

    def pieces(self, index: int) -> list[Piece]:
        """Return the one piece that there is."""
        return [None]

    def of(self, index: int, free: np.ndarray, piece: Piece) -> tuple[np.ndarray, np.ndarray, np.ndarray, None]:
        """Return the same as of subspaces."""
        alone = torch.tensor([index])
        here = self.constraint.of_some(alone).at(self.preactivations[alone])
        turned = here.jvp(as_tensor((self.forward @ free).T)).numpy()
        precision = self.deviations[index] ** -2
        return free, precision * (turned @ turned.T), precision * (turned @ self.residuals[index]), None


_INFORMATION: dict[type[Constraint], Callable[..., FromSubspaces | _FromTail]] = {
    DownstreamSubspaces: FromSubspaces,
    TailGradient: _FromTail,
}

"""How far a recovered input may be off: its expected error, to first order in the noise.

To first order ``G = D X^T`` with noise ``N`` moves a recovered input in two ways. ``D^+ N`` adds noise to each of its
entries. And each column ``q_j``, estimated from the rows where it vanishes, is off by
``dq_j = -(U_Z^T U_Z)^+ U_Z^T nu_j`` with ``nu_j = N X^+_j``, which mixes some of the ``j``-th input into every other:
``dx_i = -sum_j (p_i dq_j) (x_j - x_i)``. Both are larger for an input whose own gradient is small.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, eigh, solve_triangular

from sparsedl.arrays import as_tensor
from sparsedl_fl.lowrank import LowRankGradient
from sparsedl_fl.views import SpansAt, SpansBehind

__all__ = ["errors_from_inputs", "errors_from_spans", "errors_from_zeros"]


def errors_from_zeros(
    factors: LowRankGradient, inputs: np.ndarray, zeros: np.ndarray, determined: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the expected root-mean-square error of each input whose columns were estimated from their zero rows.

    Parameters
    ----------
    factors : LowRankGradient
        The factorised gradient with its noise.
    inputs : ndarray of shape (b, n)
        The recovered batch.
    zeros : ndarray of shape (m, b) of bool
        The rows that each column was estimated from.
    determined : ndarray of shape (b,) of bool
        Which columns these determine; the others were estimated in another way, of which nothing is said here.

    Returns
    -------
    errors : ndarray of shape (b,)
        In the units of the inputs; infinite where a column that an input depends on is not determined by its zeros.
    products : ndarray of shape (b, b)
        Expected size of ``p_i dq_j``.
    direct : ndarray of shape (b,)
        The part ``D^+ N``, which no estimate of the columns avoids.
    """
    U, S, noise = factors.left, factors.singular_values, factors.noise_level
    b, n = inputs.shape
    P = inputs @ factors.right.T / S
    if np.linalg.matrix_rank(P) < b:  # two inputs that came out as one
        return np.full(b, np.inf), np.full((b, b), np.inf), np.zeros(b)
    Q = np.linalg.inv(P)
    moments = inputs @ inputs.T / n
    spread = (Q / S[:, None]).T @ (Q / S[:, None])
    wobble, excess = _wobble(U, Q, P, zeros & determined, noise, spread)
    duals = P @ U.T
    direct = np.sum((duals * noise) ** 2, axis=1) * excess * (1 + np.diag(moments))
    total = wobble.sum(axis=1)
    own = np.einsum("ijk,ij->ik", wobble, moments)
    each = np.einsum("ijk,ijk->ik", wobble, np.einsum("jl,ilk->ijk", moments, wobble, optimize=True))
    squares = direct + np.mean(each - 2 * total * own + total**2 * np.diag(moments)[:, None], axis=1)
    errors = np.sqrt(np.where(np.isfinite(squares), np.maximum(squares, 0), np.inf))
    return errors, np.sqrt(np.mean(wobble**2, axis=2)), np.sqrt(direct)


def _wobble(
    U: np.ndarray,
    Q: np.ndarray,
    P: np.ndarray,
    zeros: np.ndarray,
    noise: np.ndarray,
    spread: np.ndarray,
    *,
    n_draws: int = 24,
    most_entries: int = 40_000_000,
    prior_rows: float = 8.0,
    undetermined: float = 1e3,
) -> tuple[np.ndarray, float]:
    """Return ``p_i dq_j`` for draws of the noise, and by how much the zeros are noisier than it says.

    The first has the shape (b, b, n_draws), with zeros where i = j; there are fewer draws where they would have more
    than ``most_entries``. A column that its zeros leave open mixes anything into the others: ``undetermined``. The
    noise that the zeros of one column show counts with its rows, that of all columns together with ``prior_rows``.
    """
    m, b = zeros.shape
    n_draws = int(np.clip(most_entries // (m * b), 4, n_draws))
    rng = np.random.default_rng(0)
    factor = cholesky(spread + 1e-14 * np.trace(spread) * np.eye(b), lower=True)
    draws = noise[:, None, None] * (rng.standard_normal((m, n_draws, b)) @ factor.T)
    wobble, squares, freedom = np.zeros((b, b, n_draws)), np.zeros(b), np.zeros(b)
    is_open = np.zeros(b, dtype=bool)
    for j in range(b):
        rows = U[zeros[:, j]]
        if len(rows) < b - 1:
            is_open[j] = True
            continue
        gram = rows.T @ rows
        own = Q[:, j] / np.linalg.norm(Q[:, j])
        try:
            solver = cho_factor(gram + np.outer(own, own), lower=True)
        except LinAlgError:
            is_open[j] = True
            continue
        wobble[:, j] = P @ cho_solve(solver, rows.T @ draws[zeros[:, j], :, j])
        deviations = noise[zeros[:, j]] * np.sqrt(spread[j, j])
        squares[j] = np.sum((rows @ Q[:, j] / deviations) ** 2)
        freedom[j] = max(len(rows) - b + 1, 0)
    pooled = squares.sum() / max(freedom.sum(), 1.0)
    each = (squares + prior_rows * pooled) / (freedom + prior_rows)
    wobble *= np.sqrt(each)[None, :, None]
    wobble[:, is_open] = undetermined
    wobble[np.arange(b), np.arange(b)] = 0
    return wobble, max(1.0, pooled)


def errors_from_spans(
    factors: LowRankGradient,
    forward: np.ndarray,
    behind: SpansBehind,
    whitened: np.ndarray,
    columns: np.ndarray,
    products: np.ndarray,
) -> np.ndarray:
    """Return the expected error of inputs by the gradients of the layers behind and by the columns that are proven.

    The activations of each layer lie in the span but for its noise, which shows in how far they do not; and ``p`` is
    orthogonal to the columns of other inputs, up to their errors. What one step of Newton's method would still change
    is an error too.

    Parameters
    ----------
    factors : LowRankGradient
        The factorised gradient.
    forward : ndarray of shape (m, b)
        ``F``.
    behind : SpansBehind
        The row spaces of the gradients behind.
    whitened : ndarray of shape (k, b)
        Rows ``p``, at their true scale ``h^T p = 1``.
    columns : ndarray of shape (c, b)
        Columns ``q`` that are proven by their zeros, as rows.
    products : ndarray of shape (k, c)
        Expected size of ``p dq`` for each input and column; infinite for an input's own column.

    Returns
    -------
    ndarray of shape (k,)
        Infinite where even all together do not determine an input.
    """
    if len(whitened) == 0 or whitened.shape[1] == 1:
        return np.full(len(whitened), np.inf)
    S, n, here = factors.singular_values, factors.right.shape[1], behind.at(as_tensor(whitened @ forward.T))
    slopes = [part.numpy() for part in here.slopes]
    residuals = [span.outside(y).numpy() for span, y in zip(behind.spans, here.activations, strict=True)]
    rounding, deviations = _rounding(behind, here, residuals)
    errors = np.full(len(whitened), np.inf)
    for index, p in enumerate(whitened):
        # A multiple of p fits as well, and the bias gradient fixes it.
        free = np.linalg.qr(p[:, None], mode="complete")[0][:, 1:]
        moved, free = _moved(behind, forward, [part[index] for part in slopes], free)
        information = squares = pull = 0.0
        for level, change in enumerate(moved):
            inside, precision = behind.spans[level].basis.numpy().T @ change, deviations[level, index] ** -2
            gram = change.T @ change
            information = information + precision * (gram - inside.T @ inside)
            squares = squares + precision * gram
            pull = pull + precision * (change.T @ residuals[level][index])
        if _has_a_double(slopes[0].T, index):
            information = _beyond_rounding(information, squares, rounding[:, index].max())
        known = np.isfinite(products[index]) & (products[index] > 0)
        constraints = columns[known] @ free / products[index, known, None]
        system = information + constraints.T @ constraints
        scale = np.sqrt(np.diag(system))
        if not scale.all():
            continue
        values, axes = np.linalg.eigh(system / np.outer(scale, scale))
        if values[0] <= len(values) * np.finfo(float).eps * values[-1]:
            continue
        root = axes / np.sqrt(values) / scale[:, None]
        step, to_input = root @ (root.T @ pull), free.T * S
        errors[index] = np.sqrt((np.sum((step @ to_input) ** 2) + np.sum((root.T @ to_input) ** 2)) / n)
    return errors


def _rounding(behind: SpansBehind, here: SpansAt, residuals: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return how far rounding explains each distance, relative, and how far it moved it, both of shape (levels, k).

    How far rounding moves each is known up to one factor a layer, which all inputs show together.
    """
    b = behind.spans[0].basis.shape[1]
    n_unknown = np.minimum(np.sum(here.slopes[0].numpy() != 0, axis=1), b - 1)
    rounding, deviations = [], []
    for span, y, residual in zip(behind.spans, here.activations, residuals, strict=True):
        n_equations = len(span.basis) - b
        freedom = np.maximum(n_equations * (1 - n_unknown / behind.n_equations), 1)
        rounding.append(span.rounding_of(y).numpy())
        sizes = np.linalg.norm(y.numpy(), axis=1) * rounding[-1]
        deviations.append(sizes * np.sqrt(np.mean(np.sum((residual / sizes[:, None]) ** 2, axis=1) / freedom)))
    return np.array(rounding), np.array(deviations)


def _moved(
    behind: SpansBehind, forward: np.ndarray, slopes: list[np.ndarray], free: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return how changes of an input move its activations in each layer, and these changes, as columns.

    In the first layer they are orthonormal, where that can be had.
    """
    is_on = slopes[0] != 0
    on, free = _orthonormal((forward[is_on] * slopes[0][is_on, None]) @ free, free)
    first = np.zeros((len(is_on), on.shape[1]))
    first[is_on] = on
    moved = [first]
    for (W, _), slope in zip(behind.layers, slopes[1:], strict=True):
        moved.append(slope[:, None] * (W.numpy() @ moved[-1]))
    return moved, free


def _orthonormal(moved: np.ndarray, free: np.ndarray, *, regular: float = 1e-10) -> tuple[np.ndarray, np.ndarray]:
    """Return orthonormal changes of the activations and what makes them, where changes are independent.

    They may differ in size by many orders of magnitude, and what the span says of them is a difference of squares.
    """
    if len(moved) < moved.shape[1]:
        return moved, free
    orthonormal, mixing = np.linalg.qr(moved)
    sizes = np.abs(np.diag(mixing))
    if sizes.min() <= regular * sizes.max():
        return moved, free
    return orthonormal, solve_triangular(mixing, free.T, trans="T").T


def _has_a_double(slopes: np.ndarray, index: int, *, few_inputs: int = 100, own_units: float = 0.1) -> bool:
    """Return whether another input may switch nearly the same units, all but a share of its own.

    With few inputs each is taken to: it costs little to look (a share of 0.1 was seen between the nearest of hundreds).
    """
    if slopes.shape[1] < few_inputs:
        return True
    is_on = slopes != 0
    alone = is_on[:, [index]] & ~np.delete(is_on, index, axis=1)
    return bool(alone.sum(axis=0).min() < own_units * is_on[:, index].sum())


def _beyond_rounding(
    information: np.ndarray, squares: np.ndarray, tolerance: float, *, ridge: float = 1e-12
) -> np.ndarray:
    """Leave out what the span says of directions that leave it by no more than rounding.

    Mixtures of two inputs that switch the same units lie in the span as well: nothing tells them apart there. The
    ridge keeps the comparison regular.
    """
    scale = np.sqrt(np.maximum(np.diag(squares), np.finfo(float).tiny))
    metric = squares / np.outer(scale, scale) + ridge * np.eye(len(scale))
    values, axes = eigh(information / np.outer(scale, scale), metric)
    kept = np.where(values > tolerance**2, values, 0.0)
    dual = metric @ axes * scale[:, None]
    return (dual * kept) @ dual.T


def errors_from_inputs(transposed: LowRankGradient, inputs: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Return the expected error of inputs that zeros of their own determine, each by itself.

    Parameters
    ----------
    transposed : LowRankGradient
        The factorised ``G^T``.
    inputs : ndarray of shape (k, n)
        Recovered inputs.
    zeros : ndarray of shape (n, k) of bool
        Where they are zero.
    """
    V, S, noise = transposed.left, transposed.singular_values, transposed.noise_level
    errors = np.empty(len(inputs))
    for index, x in enumerate(inputs):
        direction = V.T @ x
        rows, own = V[zeros[:, index]], direction / np.linalg.norm(direction)
        try:
            solver = cholesky(rows.T @ rows + np.outer(own, own), lower=True)
        except LinAlgError:
            errors[index] = np.inf
            continue
        amplified = noise[zeros[:, index]] * np.linalg.norm(direction / S)
        step = solve_triangular(solver, rows.T * amplified, lower=True)
        step = solve_triangular(solver.T, step, lower=False)
        errors[index] = np.sqrt(np.sum(step**2) / len(x))
    return errors

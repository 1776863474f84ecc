"""Expected errors from zeros, of the columns or of the inputs themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpstrf

from sparsedl.workers import mapped
from sparsedl_fl.lowrank.factors import LowRankGradient

if TYPE_CHECKING:
    from sparsedl_fl.certify.sent_back_columns import SentBackColumns
    from sparsedl_fl.certify.shared_zeros import SharedZeros

__all__ = ["errors_from_inputs", "errors_from_zeros"]

ROUNDING = 10.0
"""A pivot counts as zero up to this many times its rounding, ``b eps``: that of the products comes on top."""

SURE_END, SAMPLES_BEYOND = 1e3, 1.3
"""Gap from which on nothing but rounding follows the batch (1e5 and more at untrained networks); and the largest
singular value beyond it over that of white noise from which on weaker samples may be there, as `NearDuplicates` has it.
Their gradients lie along those of the others, as noise does not: the weakest of nine to fourteen digits behind trained
networks were off by 4 to 8 expected errors, in four of 60 batches, at gaps of 6 to 19. Neither is varied. Rounding of a
coarse format is larger than all that it hides."""

N_DRAWS, MOST_ENTRIES = 24, 10_000_000
"""Number of draws of the noise; fewer where they would have more entries than the second number: six at (400, 4000), of
which each input sees those of all other columns. Neither is varied."""

PRIOR_ROWS, UNDETERMINED = 8.0, 1e3
"""Number of rows that the noise of all columns together counts as, for each; and the share that a column which its
zeros do not determine mixes into the others."""


def errors_from_zeros(
    factors: LowRankGradient,
    inputs: np.ndarray,
    zeros: np.ndarray,
    determined: np.ndarray,
    sent_back: SentBackColumns | None = None,
    shared: tuple[SharedZeros, ...] = (),
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
        Which columns these determine; the others were estimated in another way, whose error is not known here.
    sent_back : SentBackColumns or None, default=None
        Those estimated by what the next layer sends back.
    shared : tuple of SharedZeros, default=()
        Groups of columns of which the zero rows determine the span alone: their own inputs stay open, and no other.

    Returns
    -------
    errors : ndarray of shape (b,)
        In the units of the inputs; infinite where a column that an input depends on is not determined by its zeros.
    products : ndarray of shape (b, b)
        Expected size of ``p_i dq_j``.
    direct : ndarray of shape (b,)
        The part ``D^+ N``, which remains for exact columns.
    """
    U, S, noise = factors.left, factors.singular_values, factors.noise_level
    b, n = inputs.shape
    P = inputs @ factors.right.T / S
    if np.linalg.matrix_rank(P) < b:  # two inputs are equal
        return np.full(b, np.inf), np.full((b, b), np.inf), np.zeros(b)
    Q = np.linalg.inv(P)
    moments = inputs @ inputs.T / n
    spread = (Q / S[:, None]).T @ (Q / S[:, None])
    spans = {j: group for group in shared for j in group.members}
    determined = determined | np.isin(np.arange(b), list(spans))
    wobble, excess = _wobble(U, Q, P, zeros & determined, noise, spread, sent_back, spans)
    duals = P @ U.T
    direct = np.sum((duals * noise) ** 2, axis=1) * excess * (1 + factors.bias_excess**2 * np.diag(moments))
    if not factors.is_coarse and factors.signal_to_noise < SURE_END and factors.excess > SAMPLES_BEYOND:
        # Of a weaker sample only what lies outside the space of the others shows; theirs says how little that is.
        hidden = max(1.0, np.median(np.diag(moments) * np.diag(np.linalg.pinv(moments, hermitian=True))))
        direct += hidden * (factors.beyond * np.linalg.norm(duals, axis=1)) ** 2 / n
    total = wobble.sum(axis=1)
    own = np.einsum("ijk,ij->ik", wobble, moments)
    each = np.einsum("ijk,ijk->ik", wobble, np.einsum("jl,ilk->ijk", moments, wobble, optimize=True))
    squares = direct + np.mean(each - 2 * total * own + total**2 * np.diag(moments)[:, None], axis=1)
    for group in shared:
        squares[group.members[0]] += group.radius**2
    errors = np.sqrt(np.where(np.isfinite(squares), np.maximum(squares, 0), np.inf))
    return errors, np.sqrt(np.mean(wobble**2, axis=2)), np.sqrt(direct)


def _wobble(
    U: np.ndarray,
    Q: np.ndarray,
    P: np.ndarray,
    zeros: np.ndarray,
    noise: np.ndarray,
    spread: np.ndarray,
    sent_back: SentBackColumns | None,
    spans: dict[int, SharedZeros],
) -> tuple[np.ndarray, float]:
    """Return ``p_i dq_j`` for draws of the noise, and by how much the zeros are noisier than that.

    The first has the shape (b, b, n_draws), with zeros where i = j; there are fewer draws where they would have more
    than `MOST_ENTRIES`. A column that its zeros do not determine mixes `UNDETERMINED` into the others. The noise at the
    zeros of one column counts with its rows, that of all columns together with `PRIOR_ROWS`.
    """
    m, b = zeros.shape
    n_draws = int(np.clip(MOST_ENTRIES // (m * b), 4, N_DRAWS))
    rng = np.random.default_rng(0)
    size, largest = np.trace(spread), noise.max()
    factor = cholesky(spread / size + 1e-14 * np.eye(b), lower=True).astype(np.float32)
    draws = rng.standard_normal((m, n_draws, b), dtype=np.float32) @ factor.T
    is_sent_back = np.zeros(b, dtype=bool) if sent_back is None else sent_back.is_proven
    draws *= (noise[:, None] / largest * (zeros | is_sent_back)).astype(np.float32)[:, None, :]
    pulls = (U.T.astype(np.float32) @ draws.reshape(m, -1)).reshape(b, n_draws, b) * (largest * np.sqrt(size))

    def of_column(j: int) -> tuple[np.ndarray | float, float, float, bool]:
        if is_sent_back[j]:
            of_noise = draws[:, :, j] * (largest * np.sqrt(size))
            change, residual, freedom = sent_back.change(j, U @ Q[:, j], of_noise)
            return P @ change, np.sum((residual / (noise * np.sqrt(spread[j, j]))) ** 2), freedom, False
        rows = U[zeros[:, j]]
        own = spans[j].space if j in spans else Q[:, [j]] / np.linalg.norm(Q[:, j])
        solver = None if len(rows) < b - own.shape[1] else _factor_of(rows, own)
        if solver is None:
            return 0.0, 0.0, 0.0, True
        deviations = noise[zeros[:, j]] * np.sqrt(spread[j, j])
        square = np.sum((rows @ Q[:, j] / deviations) ** 2)
        return P @ cho_solve((solver, True), pulls[:, :, j]), square, max(len(rows) - b + own.shape[1], 0), False

    wobble, columns = np.zeros((b, b, n_draws)), mapped(of_column, range(b))
    for j, (of_one, *_) in enumerate(columns):
        wobble[:, j] = of_one
    squares, freedom, is_open = (np.array(each) for each in list(zip(*columns, strict=True))[1:])
    pooled = squares.sum() / max(freedom.sum(), 1.0)
    each = (squares + PRIOR_ROWS * pooled) / (freedom + PRIOR_ROWS)
    wobble *= np.sqrt(each)[None, :, None]
    wobble[:, is_open] = UNDETERMINED
    for j, group in spans.items():
        wobble[group.members[int(np.isfinite(group.radius)) :], j] = UNDETERMINED  # the centre is off by the radius
    wobble[np.arange(b), np.arange(b)] = 0
    return wobble, max(1.0, pooled)


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

    Returns
    -------
    ndarray of shape (k,)
        Root mean square error due to the noise at the zeros alone; infinite where these do not determine an input.
    """
    V, S, noise = transposed.left, transposed.singular_values, transposed.noise_level
    errors = np.empty(len(inputs))
    for index, x in enumerate(inputs):
        direction = V.T @ x
        rows, own = V[zeros[:, index]], direction / np.linalg.norm(direction)
        solver = _factor_of(rows, own[:, None])
        if solver is None:
            errors[index] = np.inf
            continue
        amplified = noise[zeros[:, index]] * np.linalg.norm(direction / S)
        step = solve_triangular(solver, rows.T * amplified, lower=True)
        step = solve_triangular(solver.T, step, lower=False)
        errors[index] = np.sqrt(np.sum(step**2) / len(x))
    return errors


def _factor_of(rows: np.ndarray, own: np.ndarray) -> np.ndarray | None:
    """Return the lower Cholesky factor of ``rows^T rows + own own^T``, or None where it is singular.

    Rounding leaves the last pivot of a singular matrix above zero as often as below, and then Cholesky raises no error:
    inputs that their zeros do not determine got an expected error of 1e-7. Complete pivoting detects it.

    Parameters
    ----------
    rows : ndarray of shape (k, b)
        Equations.
    own : ndarray of shape (b, k)
        Orthonormal basis of their null space.
    """
    gram = rows.T @ rows + own @ own.T
    least = ROUNDING * len(gram) * np.finfo(float).eps * np.diag(gram).max()
    _, _, rank, _ = dpstrf(gram, tol=least, lower=1)
    return cholesky(gram, lower=True) if rank == len(gram) else None

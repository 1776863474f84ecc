"""The linear algebra that the searches share: weighted Gram matrices and their smallest eigenvectors, in stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from sparsedl.arrays import chunks
from sparsedl.workers import mapped

__all__ = [
    "in_other_units",
    "inverse_iteration",
    "least_squares",
    "normalized",
    "random_kernels",
    "reweight",
    "smallest_eigenvectors",
    "solve_weighted",
    "vanishing_vectors",
    "weighted_gram",
    "zero_gram",
]

LARGE, N_VECTORS, N_INVERSE_ITERATIONS = 48, 4, 8
"""Size from which on inverse iteration is faster than a decomposition, and how many vectors and steps it takes."""


def in_other_units(x: torch.Tensor, exponent: int) -> torch.Tensor:
    """Return ``2 ** exponent * x``, exact but where it leaves the range of numbers, in steps that stay within it."""
    half = exponent // 2
    return x * 2.0**half * 2.0 ** (exponent - half)


def normalized(x: torch.Tensor, dim: int = 1) -> torch.Tensor:
    """Return vectors along a dimension at unit length, whatever their own: there is no least length, as torch's has.

    A power of two is taken out first, which is exact, so that no square overflows or underflows: ``normalized(x)`` and
    ``normalized(2 ** n * x)`` are the same to the last bit. A vector of zeros has no direction and stays zero.

    Examples
    --------
    >>> normalized(torch.tensor([[0.0, 3e-300], [0.0, 0.0]], dtype=torch.float64)).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    if x.numel() == 0:
        return x
    peak = x.detach().abs().amax(dim=dim, keepdim=True)
    power = peak / (2 * torch.frexp(peak).mantissa)
    x = x / torch.where(peak == 0, 1.0, power)
    return x / torch.linalg.vector_norm(x, dim=dim, keepdim=True).clamp(min=1.0)  # it is at least one but for zeros


def least_squares(matrix: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    """Return the smallest ``x`` that minimises ``|matrix x - goal|``, for each column of ``goal``.

    By singular values: torch hands LAPACK's ``gelsy``, its default, pivots that nothing sets, and gets other last
    digits each time (23 different ones of 40, torch 2.13). A matrix that is not finite gives NaN.
    """
    if not torch.isfinite(matrix).all():
        return goal.new_full((matrix.shape[1], goal.shape[1]), torch.nan)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    rounding = max(matrix.shape) * torch.finfo(values.dtype).eps * values.amax() if len(values) else 0.0
    inverse = torch.where(values > rounding, 1 / values, 0.0)
    return right.mT @ (inverse[:, None] * (left.mT @ goal))


def weighted_gram(observations: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return ``L^T diag(w) L`` for each row ``w`` of ``weights``: shape (n_weights, n_components, n_components).

    No weight is negative.
    """
    transposed, k = observations.T, observations.shape[1]
    if k >= LARGE:
        gram = weights.new_empty((len(weights), k, k))
        for weight, product in zip(weights, gram, strict=True):
            _square(observations * weight.sqrt()[:, None], product)
        return gram
    parts = [weights[part] for part in chunks(len(weights), observations.numel())]
    return torch.cat(
        [weights.new_zeros((0, k, k)), *((transposed * part[:, None, :]) @ observations for part in parts)]
    )


def zero_gram(observations: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Return ``L_Z^T L_Z`` for each row of ``zeros``, of which rows ``Z`` to take: the same as `weighted_gram`.

    By what is left out where that is less, and there is enough of it to pay for gathering rows one direction at a time.
    """
    n_rows, k = observations.shape
    n_left_out = (~zeros).sum(dim=1)
    if k < LARGE or n_rows < 4 * k or not len(zeros):
        return weighted_gram(observations, zeros.to(observations.dtype))
    whole, gram = observations.T @ observations, observations.new_empty((len(zeros), k, k))
    for index, row in enumerate(zeros):
        by_rest = bool(2 * n_left_out[index] < n_rows)
        _square(observations.index_select(0, torch.nonzero(row != by_rest)[:, 0]), gram[index])
        if by_rest:
            torch.sub(whole, gram[index], out=gram[index])
    return gram


def _square(rows: torch.Tensor, product: torch.Tensor) -> None:
    """Write ``rows^T rows``; on the CPU by NumPy, which has one half of a symmetric product computed and torch both."""
    if rows.device.type == "cpu":
        np.matmul(rows.T.numpy(), rows.numpy(), out=product.numpy())
    else:
        torch.mm(rows.T, rows, out=product)


def reweight(
    directions: torch.Tensor,
    observations: torch.Tensor,
    scales: Iterable[float | torch.Tensor],
    weigh: Callable[[torch.Tensor, float | torch.Tensor], torch.Tensor],
    step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Reweight and estimate again, on one scale after the other: what all robust fits here have in common.

    Parameters
    ----------
    directions : torch.Tensor of shape (n_directions, n_components)
        Where to start, one a row.
    observations : torch.Tensor of shape (n_samples, n_components)
        ``L``.
    scales : iterable of float or torch.Tensor
        On which entries count as zeros, mostly shrinking.
    weigh : callable
        ``weigh(entries, scale)``, the weight of each entry of ``L q``.
    step : callable
        ``step(weights, directions)``, the next directions.
    """
    for scale in scales:
        directions = step(weigh(directions @ observations.T, scale), directions)
    return directions


def random_kernels(
    observations: torch.Tensor, weights: torch.Tensor, generator: torch.Generator, *, floor: float = 1e-3
) -> torch.Tensor:
    """Return unit vectors that vanish at ``n_components - 1`` random rows of ``L``, of shape (n_draws, n_components).

    Parameters
    ----------
    observations : torch.Tensor of shape (n_samples, n_components)
        ``L``.
    weights : torch.Tensor of shape (n_draws, n_samples)
        A row is drawn the likelier, the larger its weight; none is negative.
    generator : torch.Generator
        Source of randomness.
    floor : float, default=1e-3
        Least weight, relative to the mean: there may be fewer rows with any.
    """
    least = floor * weights.mean(dim=1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    rows = observations[torch.multinomial(weights + least, observations.shape[1] - 1, generator=generator)].double()
    return torch.linalg.eigh(rows.mT @ rows)[1][:, :, 0].to(observations.dtype)


def solve_weighted(observations: torch.Tensor, weights: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return unit vectors along ``(L^T diag(w) L)^-1 r``, for each row ``w`` of ``weights`` and ``r`` of ``right``."""
    gram = weighted_gram(observations, weights)
    scale = gram.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    ridge = torch.finfo(gram.dtype).eps * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    return normalized(torch.linalg.solve(gram / scale + ridge, right), dim=1)


def inverse_iteration(gram: torch.Tensor, start: torch.Tensor, n_iterations: int = 2) -> torch.Tensor:
    """Return approximate eigenvectors of the smallest eigenvalues, by a few steps from where the last search ended."""
    scale = gram.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    factor, _ = torch.linalg.cholesky_ex(gram + 1e-6 * scale * torch.eye(gram.shape[1], dtype=gram.dtype))
    vectors = start[..., None]
    for _ in range(n_iterations):
        vectors = normalized(torch.cholesky_solve(vectors, factor), dim=1)
    return vectors[..., 0].nan_to_num(nan=0.0)


def smallest_eigenvectors(gram: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two smallest eigenvalues and the eigenvector of the smallest, for a stack of semidefinite matrices.

    Where the smallest eigenvalue is well apart from the next, as that of a column is, a few steps of inverse subspace
    iteration find its vector; elsewhere, and for small matrices, a full decomposition does. The second value is rough
    where it is much larger than the first.
    """
    is_settled = torch.zeros(len(gram), dtype=torch.bool, device=gram.device)
    if gram.shape[1] >= LARGE:
        values, vectors, is_settled = _subspace_iteration(gram)
        if is_settled.all():
            return values, vectors
    decomposed, complete = torch.linalg.eigh(gram[~is_settled])
    if not is_settled.any():
        return decomposed[:, :2], complete[:, :, 0]
    values[~is_settled], vectors[~is_settled] = decomposed[:, :2], complete[:, :, 0]
    return values, vectors


def vanishing_vectors(observations: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the unit vector ``q`` with the smallest ``sum_r w_r (L q)_r^2`` for each row ``w`` of ``weights``.

    Boolean weights say which rows to take. Workers share parts of them: the Gram matrices of all columns of a large
    batch would take more memory than all else (240 at 2000: nine times the gradient).
    """
    gram_of, k = zero_gram if weights.dtype == torch.bool else weighted_gram, observations.shape[1]
    parts = [weights[part] for part in chunks(len(weights), k * k)]
    found = mapped(lambda part: smallest_eigenvectors(gram_of(observations, part))[1], parts)
    return torch.cat([observations.new_zeros((0, k)), *found])


def _subspace_iteration(gram: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the same, and which have settled down to rounding."""
    k, rounding = gram.shape[1], torch.finfo(gram.dtype).eps
    scale = gram.diagonal(dim1=1, dim2=2).mean(dim=1)
    ridge = 4 * k * rounding * torch.eye(k, dtype=gram.dtype, device=gram.device)
    factor, info = torch.linalg.cholesky_ex(gram + scale[:, None, None] * ridge)
    # What has no factor (no rows at all, or entries that overflow) is left to the decomposition.
    is_regular = (info == 0)[:, None, None] & torch.isfinite(factor).all(dim=(1, 2), keepdim=True)
    factor = torch.where(is_regular, factor, torch.eye(k, dtype=gram.dtype, device=gram.device))
    start = torch.randn((k, N_VECTORS), generator=torch.Generator().manual_seed(0), dtype=gram.dtype)
    basis = start.to(gram.device).expand(len(gram), -1, -1)
    for _ in range(N_INVERSE_ITERATIONS):
        basis = torch.linalg.qr(torch.cholesky_solve(basis, factor))[0]
        image = gram @ basis
        values, rotation = torch.linalg.eigh(basis.mT @ image)
        smallest = rotation[:, :, :1]
        vector = basis @ smallest
        residual = torch.linalg.vector_norm(image @ smallest - values[:, :1, None] * vector, dim=(1, 2))
        is_settled = is_regular[:, 0, 0] & (residual <= 2 * rounding * k**0.5 * scale)
        if is_settled.all():
            break
    return values[:, :2].clone(), vector[:, :, 0].clone(), is_settled

"""Whether the rows where a direction vanishes determine it: what tells a column from a mixture of columns."""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from sparsedl.arrays import chunks
from sparsedl.linalg import N_INVERSE_ITERATIONS, smallest_eigenvectors, weighted_gram

__all__ = ["KERNEL_RATIO", "zeros_determine"]

KERNEL_RATIO, FULL_LEVERAGE = 4.0, 1 - 1e-4
"""Ratio of the two smallest eigenvalues on the zero rows above which their kernel counts as one-dimensional; and the
leverage above which a zero row is the only one that says what it says."""

CHANCE_MULTIPLE, NO_CHANCE = 1.5, 0.1
"""Rows that exclude another kernel, over those expected to be zero by chance; fewer of these count as none."""

Noise = tuple[torch.Tensor, torch.Tensor]


def zeros_determine(
    observations: torch.Tensor,
    zeros: torch.Tensor,
    by_chance: torch.Tensor | None = None,
    noise: Noise | None = None,
) -> torch.Tensor:
    """Return whether the kernel of the zero rows is one-dimensional, and stays so without any one of them.

    This is what tells a column from a mixture of two. Their mixtures share the rows where both are zero, whose kernel
    is a plane, and any one row more can be made zero by the choice of the mixture: that row has leverage one. Where
    rows are zero by chance, these few would determine a mixture; what else the kernel could be has to be excluded by
    more rows than that.

    Where two columns are nearly parallel, their difference is a direction of much noise, and at the rows where both are
    zero that noise looks as if it excluded their mixtures. So what excludes a direction has to be more than its noise.

    Parameters
    ----------
    observations : torch.Tensor of shape (n_samples, n_components)
        ``L``, or any matrix whose columns have comparable size.
    zeros : torch.Tensor of shape (n_directions, n_samples) of bool
        Zero rows of each direction.
    by_chance : torch.Tensor of shape (n_directions,) or None, default=None
        How many of them are expected to be zero by chance; None for none.
    noise : (unmixing, noise_level) or None, default=None
        As of `sparsedl.zeros.ZeroTest`, where the noise is not the same in all directions.

    Returns
    -------
    torch.Tensor of shape (n_directions,) of bool
    """
    if len(zeros) == 0 or observations.shape[1] == 1:
        return torch.ones(len(zeros), dtype=torch.bool, device=zeros.device)
    by_chance = torch.zeros(len(zeros), device=zeros.device) if by_chance is None else by_chance
    parts = chunks(len(zeros), observations.numel())
    return torch.cat([_determine(observations, zeros[part], by_chance[part], noise) for part in parts])


def _determine(
    observations: torch.Tensor, zeros: torch.Tensor, by_chance: torch.Tensor, noise: Noise | None
) -> torch.Tensor:
    gram = weighted_gram(observations, zeros.to(observations.dtype))
    values, kernel = smallest_eigenvectors(gram)
    largest = torch.linalg.matrix_norm(gram)
    rounding = len(observations) * torch.finfo(gram.dtype).eps * largest
    one_dimensional = values[:, 1] > KERNEL_RATIO * values[:, 0].clamp(min=0) + rounding
    # Without its kernel the matrix has an inverse; on the kernel the rows are zero.
    factor, info = torch.linalg.cholesky_ex(gram + largest[:, None, None] * kernel[:, :, None] * kernel[:, None, :])
    identity = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    whitener = torch.linalg.solve_triangular(factor, identity.expand_as(gram), upper=False).mT
    leverages = (observations @ whitener).square().sum(dim=2) * zeros
    determined = one_dimensional & (info == 0) & (leverages.amax(dim=1) < FULL_LEVERAGE)
    if noise is None and (by_chance < NO_CHANCE).all():
        return determined
    # The direction that the zeros exclude least, and how many of them take part in that.
    other = torch.ones_like(kernel)[..., None]
    for _ in range(N_INVERSE_ITERATIONS):
        other = normalize(torch.cholesky_solve(other, factor), dim=1)
    energies = (observations @ other)[..., 0].square() * zeros
    if noise is not None:
        determined &= _is_more_than_noise(observations, zeros, energies.sum(dim=1), other[..., 0], noise)
    n_effective = energies.sum(dim=1).square() / energies.square().sum(dim=1).clamp(min=torch.finfo(gram.dtype).tiny)
    return determined & (n_effective > CHANCE_MULTIPLE * by_chance)


def _is_more_than_noise(
    observations: torch.Tensor, zeros: torch.Tensor, energies: torch.Tensor, other: torch.Tensor, noise: Noise
) -> torch.Tensor:
    """Return whether the zero rows exclude every other direction by more than its noise.

    The one that they exclude least is looked at by itself; under heavy noise, where that need not be the one with the
    most noise, so are all together, in units of the noise, as far as double precision tells their squares apart.
    """
    unmixing, noise_level = noise
    rows = zeros.to(observations.dtype) @ noise_level.square()
    expected = (other @ unmixing.T).square().sum(dim=1) * rows
    _, amplification, axes = torch.linalg.svd(unmixing, full_matrices=False)
    gram = weighted_gram(observations @ (axes.T / amplification), zeros.to(observations.dtype))
    values, _ = smallest_eigenvectors(gram)
    trace = gram.diagonal(dim1=1, dim2=2).sum(dim=1)
    is_rounding = values[:, 1] < len(observations) * torch.finfo(gram.dtype).eps * trace
    return (energies > KERNEL_RATIO * expected) & (is_rounding | (values[:, 1] > KERNEL_RATIO * rows))

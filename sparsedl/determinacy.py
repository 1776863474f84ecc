"""Whether the rows where a direction vanishes determine it: what tells a column from a mixture of columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from sparsedl.arrays import chunks
from sparsedl.linalg import LARGE, N_INVERSE_ITERATIONS, normalized, smallest_eigenvectors, weighted_gram, zero_gram
from sparsedl.workers import mapped

__all__ = ["Determinacy", "DirectionalNoise"]


@dataclass(frozen=True)
class DirectionalNoise:
    """The noise of ``L q``, where it is not the same in all directions: ``noise_level |unmixing q|``.

    Attributes
    ----------
    observations : torch.Tensor of shape (n_samples, n_components)
        ``L``.
    unmixing : torch.Tensor of shape (n_features, n_components)
        Whitening amplifies the noise of a direction by ``|unmixing q|``.
    noise_level : torch.Tensor of shape (n_samples,)
        Noise of each observation before whitening.
    """

    observations: torch.Tensor
    unmixing: torch.Tensor
    noise_level: torch.Tensor

    @cached_property
    def decomposition(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The amplifications of shape (k,), descending, and the directions of each as the columns of (k, k)."""
        _, amplification, axes = torch.linalg.svd(self.unmixing, full_matrices=False)
        return amplification, axes.T

    @cached_property
    def scaled_observations(self) -> torch.Tensor:
        """``L`` along directions of unit noise, of shape (n_samples, k)."""
        amplification, axes = self.decomposition
        return self.observations @ (axes / amplification)


@dataclass(frozen=True, kw_only=True)
class Determinacy:
    """Whether the kernel of the zero rows is one-dimensional, and stays so without any one of them.

    This is what tells a column from a mixture of two. Their mixtures share the rows where both are zero, whose kernel
    is a plane, and any one row more can be made zero by the choice of the mixture: that row has leverage one. Where
    rows are zero by chance, these few would determine a mixture; what else the kernel could be has to be excluded by
    more rows than that.

    Where two columns are nearly parallel, their difference is a direction of much noise, and at the rows where both are
    zero that noise looks as if it excluded their mixtures. So what excludes a direction has to be more than its noise.

    The numbers were not tuned one by one; the never-lies benchmarks of both packages measure what they let through.

    Parameters
    ----------
    kernel_ratio : float, default=4
        Ratio of the two smallest eigenvalues on the zero rows above which their kernel counts as one-dimensional, and
        of what excludes a direction to its noise.
    full_leverage : float, default=1 - 1e-4
        Leverage above which a zero row is the only one that says what it says.
    clearly : float, default=10
        Ratio to a threshold from which on an estimate of the second eigenvalue will do.
    """

    kernel_ratio: float = 4.0
    full_leverage: float = 1 - 1e-4
    clearly: float = 10.0

    def of(
        self,
        observations: torch.Tensor,
        zeros: torch.Tensor,
        by_chance: torch.Tensor | None = None,
        noise: DirectionalNoise | None = None,
        directions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return which directions their zeros determine, a boolean tensor of shape (n_directions,).

        Parameters
        ----------
        observations : torch.Tensor of shape (n_samples, n_components)
            ``L``, or any matrix whose columns have comparable size.
        zeros : torch.Tensor of shape (n_directions, n_samples) of bool
            Zero rows of each direction.
        by_chance : torch.Tensor of shape (n_directions,) or None, default=None
            How many of them may be zero by chance, at most; None for none.
        noise : DirectionalNoise or None, default=None
            Of these observations; None where it is the same in all directions.
        directions : torch.Tensor of shape (n_directions, n_components) or None, default=None
            Where they are known, and vanish at their zeros: what is clear is then shown at a fraction of the cost.
        """
        if len(zeros) == 0 or observations.shape[1] == 1:
            return torch.ones(len(zeros), dtype=torch.bool, device=zeros.device)
        by_chance = observations.new_zeros(len(zeros)) if by_chance is None else by_chance
        determined = torch.zeros(len(zeros), dtype=torch.bool, device=zeros.device)
        if directions is not None and observations.shape[1] >= LARGE:
            determined = self._clearly(observations, zeros, by_chance, noise, directions)
        rest = torch.nonzero(~determined)[:, 0]
        parts = [rest[part] for part in chunks(len(rest), observations.numel())]
        found = mapped(lambda part: self._determine(observations, zeros[part], by_chance[part], noise), parts)
        determined[rest] = torch.cat([determined[:0], *found])
        return determined

    def _clearly(
        self,
        observations: torch.Tensor,
        zeros: torch.Tensor,
        by_chance: torch.Tensor,
        noise: DirectionalNoise | None,
        directions: torch.Tensor,
    ) -> torch.Tensor:
        """Return which directions are determined so clearly that one number shows it, in single precision.

        Where the zero rows exclude all that is orthogonal to the direction by more than ``least`` (their squares sum to
        more), no row has full leverage, more than ``by_chance + 1`` take part, and it is more than noise: a row takes
        its length squared at most, and noise is that of the noisiest direction.
        """
        single, longest = observations.to(torch.float32), observations.square().sum(dim=1).max()
        least = longest * (by_chance + 1.5).clamp(min=1.01 / self.full_leverage)
        if noise is not None:
            of_noise = noise.decomposition[0][0].square() * (zeros.to(observations.dtype) @ noise.noise_level.square())
            least = torch.maximum(least, self.clearly * self.kernel_ratio * of_noise)

        def is_clear(part: slice) -> torch.Tensor:
            gram = zero_gram(single, zeros[part])
            trace = gram.diagonal(dim1=1, dim2=2).sum(dim=1)
            own = directions[part].to(torch.float32)
            gram += trace[:, None, None] * own[:, :, None] * own[:, None, :]
            # Rounding of the sums and of the factorisation, many times over.
            shift = least[part].to(torch.float32) + 16 * torch.finfo(torch.float32).eps * trace
            gram.diagonal(dim1=1, dim2=2).sub_(shift[:, None])
            return torch.linalg.cholesky_ex(gram)[1] == 0

        parts = chunks(len(zeros), max(observations.shape[1] ** 2, len(observations)))
        return torch.cat(mapped(is_clear, parts))

    def _determine(
        self,
        observations: torch.Tensor,
        zeros: torch.Tensor,
        by_chance: torch.Tensor,
        noise: DirectionalNoise | None,
    ) -> torch.Tensor:
        gram = zero_gram(observations, zeros)
        values, kernel = smallest_eigenvectors(gram)
        largest = torch.linalg.matrix_norm(gram)
        rounding = len(observations) * torch.finfo(gram.dtype).eps * largest
        one_dimensional = values[:, 1] > self.kernel_ratio * values[:, 0].clamp(min=0) + rounding
        # Without its kernel the matrix has an inverse; on the kernel the rows are zero.
        gram += largest[:, None, None] * kernel[:, :, None] * kernel[:, None, :]
        factor, info = torch.linalg.cholesky_ex(gram)
        determined = one_dimensional & (info == 0)
        determined[determined.clone()] = self._no_row_alone(
            observations, zeros[determined], gram[determined], factor[determined]
        )
        if noise is None and not by_chance.any():
            return determined
        # The direction that the zeros exclude least, and how many of them take part in that.
        other = torch.ones_like(kernel)[..., None]
        for _ in range(N_INVERSE_ITERATIONS):
            other = normalized(torch.cholesky_solve(other, factor), dim=1)
        energies = (observations @ other)[..., 0].square() * zeros
        if noise is not None:
            determined &= self._is_more_than_noise(zeros, energies.sum(dim=1), other[..., 0], values[:, 1], noise)
        n_effective = energies.sum(dim=1).square() / energies.square().sum(dim=1).clamp(
            min=torch.finfo(gram.dtype).tiny
        )
        return determined & (n_effective > by_chance + 1)  # one row more is zero by the choice of the mixture

    def _no_row_alone(
        self, observations: torch.Tensor, zeros: torch.Tensor, gram: torch.Tensor, factor: torch.Tensor
    ) -> torch.Tensor:
        """Return for which directions no zero row has full leverage, ``l^T gram^-1 l``.

        None has where ``gram`` exceeds the longest row's square in all directions, which one more factorisation shows.
        """
        longest = observations.square().sum(dim=1).max() / self.full_leverage
        identity = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
        fine = torch.linalg.cholesky_ex(gram - (1 + 1e-6) * longest * identity)[1] == 0
        unclear = torch.nonzero(~fine)[:, 0]
        for index in unclear.tolist():
            rows = observations[zeros[index]]
            whitened = torch.linalg.solve_triangular(factor[index], rows.T, upper=False)
            fine[index] = whitened.square().sum(dim=0).amax() < self.full_leverage
        return fine

    def _is_more_than_noise(
        self,
        zeros: torch.Tensor,
        energies: torch.Tensor,
        other: torch.Tensor,
        least: torch.Tensor,
        noise: DirectionalNoise,
    ) -> torch.Tensor:
        """Return whether the zero rows exclude every other direction by more than its noise.

        The one that they exclude least, by ``least``, is looked at by itself; under heavy noise, where that need not be
        the one with the most noise, so are all together, in units of the noise, as far as double precision tells their
        squares apart.
        """
        rows = zeros.to(other.dtype) @ noise.noise_level.square()
        expected = (other @ noise.unmixing.T).square().sum(dim=1) * rows
        is_more = energies > self.kernel_ratio * expected
        # No direction has more than the largest noise, and none is excluded by less than the least.
        in_question = is_more & (least <= self.clearly * self.kernel_ratio * noise.decomposition[0][0].square() * rows)
        if in_question.any():
            weights = zeros[in_question].to(other.dtype)
            gram = weighted_gram(noise.scaled_observations, weights)
            values, _ = smallest_eigenvectors(gram)
            trace = gram.diagonal(dim1=1, dim2=2).sum(dim=1)
            is_rounding = values[:, 1] < zeros.shape[1] * torch.finfo(gram.dtype).eps * trace
            is_more[in_question] = is_rounding | (values[:, 1] > self.kernel_ratio * rows[in_question])
        return is_more

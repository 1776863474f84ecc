"""SPEAR: candidate directions as the kernels of random rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits
from torch.nn.functional import normalize

from sparsedl.pools import CandidatePool, distinct
from sparsedl.progress import progress_bar
from sparsedl_fl.directions._base import Candidates, Directions
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.lowrank import LowRankGradient
from sparsedl_fl.theory import sparsity_threshold

NEAR_ZERO = 1e-3
"""What counts as zero of ``U q`` before the direction is estimated again, relative to its mean square."""


@dataclass(eq=False, repr=False, kw_only=True)
class KernelDirections(Directions):
    """Draws ``b - 1`` rows of ``U`` at a time; the kernel of rows that share a zero column of ``D`` is that column.

    The expected number of draws is about ``2^(b-1) H_b`` (`sparsedl_fl.theory.expected_samples`): a second at
    ``b = 10``, a quarter of a minute at 16, minutes at 20, hopeless beyond 25. For gradients without noise.

    Parameters
    ----------
    max_draws : int, default=2_000_000
        The budget.
    draws_per_batch : int, default=4096
        Kernels computed at once.
    false_rejection : float, default=1e-5
        Rate of true columns lost to the threshold on the share of zeros.

    References
    ----------
    Dimitrov et al., "SPEAR: Exact gradient inversion of batches in federated learning", NeurIPS 2024, Algorithm 1.
    """

    max_draws: int = 2_000_000
    draws_per_batch: int = 4096
    false_rejection: float = 1e-5

    def propose(
        self,
        layer_gradient: LayerGradient,
        factors: LowRankGradient,
        *,
        random_state: Any = None,
        verbose: bool = False,
    ) -> Candidates:
        """Draw until the columns found are a basis, or the budget is spent."""
        if self.max_draws < 1 or self.draws_per_batch < 1 or not 0 < self.false_rejection < 1:
            raise ValueError("max_draws and draws_per_batch must be positive and false_rejection in (0, 1)")
        test, b = factors.zero_test, factors.batch_size
        needed = sparsity_threshold(len(factors.left), self.false_rejection) * len(factors.left)
        generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))
        pool, n_found, spent, hits = CandidatePool.empty(b), 0, 0, 0
        # One thread: the factorisations are small, and spinning threads cost more than they bring.
        with threadpool_limits(limits=1), progress_bar(verbose, total=b, description="columns") as report:
            while n_found < b and spent < self.max_draws:
                n_draws = min(self.draws_per_batch, self.max_draws - spent)
                kernels, spent = draw_kernels(test.observations, n_draws, generator), spent + n_draws
                sparse = ((kernels @ test.observations.T).abs() < NEAR_ZERO).sum(dim=1) >= needed
                hits += int(sparse.sum())
                kernels = kernels[sparse]
                kernels = kernels[distinct(torch.cat([pool.directions, kernels]))[len(pool.directions) :]]
                if len(kernels):
                    kernels = test.refit(kernels)
                    proven, n_zeros = test.accept(kernels)
                    pool.add(kernels[proven], n_zeros[proven])
                    n_found = len(pool.selection().directions)
                report(n_found, f"{spent} draws, {hits} in a column")
        directions = pool.directions.numpy().T
        status = "complete" if n_found == b else f"the budget of {self.max_draws} draws is spent"
        return Candidates(directions, factors.zeros(directions).sum(axis=0), status, spent, hits)


def draw_kernels(observations: torch.Tensor, n_draws: int, generator: torch.Generator) -> torch.Tensor:
    """Return unit vectors that ``k - 1`` random rows of ``L`` send to zero, for many draws at once.

    A random further row that must not be zero makes each system square; the few singular ones are dropped.

    Parameters
    ----------
    observations : torch.Tensor of shape (n_rows, n_components)
        The matrix whose rows are drawn, without replacement within a draw.
    n_draws : int
        Number of draws.
    generator : torch.Generator
        Source of randomness.
    """
    n_rows, k = observations.shape
    if k == 1:
        return torch.ones((n_draws, 1), dtype=observations.dtype)
    rows = torch.rand((n_draws, n_rows), generator=generator).topk(k - 1, dim=1).indices
    last = torch.randn((n_draws, 1, k), generator=generator, dtype=observations.dtype)
    right = torch.zeros((n_draws, k), dtype=observations.dtype)
    right[:, -1] = 1
    kernels, info = torch.linalg.solve_ex(torch.cat([observations[rows], last], dim=1), right)
    kernels = normalize(kernels, dim=1)
    return kernels[(info == 0) & kernels.isfinite().all(dim=1)]

"""SPEAR: candidate directions as the kernels of random rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparsedl.arrays import check_device, draw_generator
from sparsedl.candidates import CandidatePool
from sparsedl.determinacy import Determinacy
from sparsedl.linalg import normalized, smallest_eigenvectors
from sparsedl.process import one_thread
from sparsedl.progress import progress_bar
from sparsedl_fl.certify.candidates import Candidates
from sparsedl_fl.certify.hypothesis import Hypothesis
from sparsedl_fl.certify.sparsity_matching import first_choice, greedy_filter
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions.strategy import Directions
from sparsedl_fl.theory import sparsity_threshold


@dataclass(eq=False, repr=False, kw_only=True)
class KernelDirections(Directions):
    """Draws ``b - 1`` rows of ``U`` at a time; the kernel of rows that share a zero column of ``D`` is that column.

    The expected number of draws is about ``2^(b-1) H_b`` (`sparsedl_fl.theory.expected_samples`): a second at ``b =
    10``, a quarter of a minute at 16, minutes at 20, hopeless beyond 25. Under noise ``b + 1`` rows are drawn, draws
    whose rank is not exactly ``b - 1`` are dropped, and entries within the noise count as zero.

    The draws end when the columns found are a basis whose sparsity matching coefficient is 1, or above 0.9 where a
    noisy gradient or a FedAvg update leaves it lower.

    Parameters
    ----------
    max_draws : int, default=2_000_000
        The budget.
    draws_per_batch : int, default=4096
        Kernels computed at once.
    false_rejection : float, default=1e-5
        Rate of true columns lost to the threshold on the share of zeros.
    device : str or torch.device, default="cpu"
        Where the kernels are computed: "cpu" or "cuda".
    near_zero : float, default=1e-3
        Size below which an entry of ``U q`` counts as zero before the direction is estimated again, relative to its
        root mean square.
    noisy_below : float, default=1e4
        Ratio of the smallest singular value kept to the largest dropped below which draws allow for noise; a float32
        client has 1e5 and more.
    served : float, default=0.8
        Share of zeros among a set of rows above which a column is the one that the set was made for.

    References
    ----------
    Dimitrov et al., "SPEAR: Exact gradient inversion of batches in federated learning", NeurIPS 2024, Algorithm 1 and
    Appendix E.6.
    """

    max_draws: int = 2_000_000
    draws_per_batch: int = 4096
    false_rejection: float = 1e-5
    device: Any = "cpu"
    near_zero: float = 1e-3
    noisy_below: float = 1e4
    served: float = 0.8

    def propose(self, problem: LayerProblem, *, random_state: Any = None, verbose: bool = False) -> Candidates:
        """Draw until the columns found are the batch's, or the budget is spent."""
        if self.max_draws < 1 or self.draws_per_batch < 1 or not 0 < self.false_rejection < 1:
            raise ValueError("max_draws and draws_per_batch must be positive and false_rejection in (0, 1)")
        device = check_device(self, self.device)
        factors = problem.factors
        test, b = factors.zero_test, factors.batch_size
        is_noisy = factors.signal_to_noise < self.noisy_below
        needed = sparsity_threshold(len(factors.left), self.false_rejection) * len(factors.left)
        rows, observations = self._rows(problem).to(device), test.observations.to(device)
        sets = rows
        generator = draw_generator(random_state, device)
        pool, found, spent, hits, is_done = CandidatePool.empty(b), Candidates.empty(b), 0, 0, False
        # One thread: the factorisations are small, and threads cost more than they gain.
        with one_thread(), progress_bar(verbose, total=b, description="columns") as report:
            while not is_done and spent < self.max_draws:
                n_draws = min(self.draws_per_batch, self.max_draws - spent)
                draw = draw_overdetermined_kernels if is_noisy else draw_kernels
                kernels, spent = draw(observations, sets, n_draws, generator), spent + n_draws
                widths = torch.full((len(kernels), 1), self.near_zero, dtype=kernels.dtype)
                widths = widths.maximum(test.tolerances(kernels.cpu())) if is_noisy else widths
                is_zero = (kernels @ observations.T).abs() < widths.to(device)
                kernels = kernels[is_zero.sum(dim=1) >= needed].cpu()
                hits += len(kernels)
                if pool.add_proven(kernels, test):
                    directions = pool.directions.numpy().T
                    found = Candidates(directions, factors.zeros(directions).sum(axis=0), "", spent, hits)
                    is_done = found.is_complete and _matches(problem, found)
                    sets = _favour_unserved(rows, factors.zeros(directions), self.served)
                report(found.selection().shape[1], f"{spent} draws, {hits} in a column")
        status = "complete" if is_done else f"the budget of {self.max_draws} draws is spent"
        return Candidates(found.directions, found.n_zeros, status, spent, hits)

    def _rows(self, problem: LayerProblem) -> torch.Tensor:
        """Return the sets of rows to draw from, one set a row: all of them, in one set."""
        return torch.arange(problem.width)[None]


def _matches(problem: LayerProblem, found: Candidates) -> bool:
    agreement = greedy_filter(first_choice(problem, found), found).agreement
    return bool(agreement.mean() >= Hypothesis.trusted_agreement)


def _favour_unserved(rows: torch.Tensor, zeros: np.ndarray, served: float) -> torch.Tensor:
    """Repeat the sets of rows at which no column found is mostly zero, so that half of the draws go there."""
    shares = torch.from_numpy(zeros).to(rows.device)[rows].double().mean(dim=1)
    unserved = rows[shares.amax(dim=1) < served]
    return torch.cat([rows, unserved.repeat(len(rows) // max(len(unserved), 1), 1)])


def _draw_rows(rows: torch.Tensor, n_draws: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """Draw ``size`` rows without replacement, each time from the next set: indices of shape (n_draws, size)."""
    sets = rows[torch.arange(n_draws, device=rows.device) % len(rows)]
    keys = torch.rand(sets.shape, generator=generator, device=rows.device, dtype=torch.float32)
    return sets.gather(1, keys.topk(min(size, sets.shape[1]), dim=1).indices)


def draw_kernels(
    observations: torch.Tensor, rows: torch.Tensor, n_draws: int, generator: torch.Generator
) -> torch.Tensor:
    """Return unit vectors that ``k - 1`` random rows of ``L`` send to zero, for many draws at once.

    A random further row that must not be zero makes each system square; the few singular ones are dropped.

    Parameters
    ----------
    observations : torch.Tensor of shape (n_rows, n_components)
        The matrix whose rows are drawn, without replacement within a draw.
    rows : torch.Tensor of shape (n_sets, n_allowed) of int
        Sets of rows; the draws take them in turn.
    n_draws : int
        Number of draws.
    generator : torch.Generator
        Source of randomness, on the device of the observations.
    """
    k = observations.shape[1]
    if k == 1:
        return observations.new_ones((n_draws, 1))
    drawn = _draw_rows(rows, n_draws, k - 1, generator)
    last = observations.new_empty((n_draws, 1, k)).normal_(generator=generator)
    right = observations.new_zeros((n_draws, k))
    right[:, -1] = 1
    kernels, info = torch.linalg.solve_ex(torch.cat([observations[drawn], last], dim=1), right)
    kernels = normalized(kernels, dim=1)
    return kernels[(info == 0) & kernels.isfinite().all(dim=1)]


def draw_overdetermined_kernels(
    observations: torch.Tensor, rows: torch.Tensor, n_draws: int, generator: torch.Generator
) -> torch.Tensor:
    """Return unit vectors that ``k + 1`` random rows of ``L`` map nearest to zero, for many draws at once.

    Only draws of rank ``k - 1`` are kept, with a single small singular value: that of a true column.

    Parameters
    ----------
    observations, rows, n_draws, generator
        As in `draw_kernels`.
    """
    chosen = observations[_draw_rows(rows, n_draws, observations.shape[1] + 1, generator)]
    values, kernels = smallest_eigenvectors(chosen.mT @ chosen)
    if observations.shape[1] == 1:
        return kernels
    return kernels[values[:, 1] > Determinacy.kernel_ratio**2 * values[:, 0]]

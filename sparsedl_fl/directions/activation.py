"""Our own search: the forward pass says where the gradient vanishes, while searching and not only afterwards."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from sparsedl.pools import CandidatePool, distinct
from sparsedl.progress import progress_bar
from sparsedl.zeros import ZeroTest
from sparsedl_fl.candidates import Candidates
from sparsedl_fl.directions._alternation import TwoViews, alternate
from sparsedl_fl.directions._base import Directions
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.lowrank import LowRankGradient
from sparsedl_fl.matching import ForwardView

NEAR_ZERO = 1e-2
"""What counts as zero of ``U q`` before a direction is estimated again, relative to its mean square."""

RIDGES = (0.02, 0.005, 0.05)
"""Regression noise of successive rounds: some samples show under a small one, some under a large one."""


@dataclass(eq=False, repr=False, kw_only=True)
class ActivationDirections(Directions):
    """Searches for each sample's pre-activations and gradients together: one is positive where the other is not zero.

    Each column found takes one dimension from the forward view, exactly, and one from the column view, as its own
    sample becomes determined; the search speeds up as it goes. It needs the weights and the bias at which the gradient
    was taken, and a ReLU behind the layer. A direction is accepted by its zeros alone (see `sparsedl.zeros.ZeroTest`):
    wrong weights cost time and never the truth.

    Parameters
    ----------
    starts_per_round : int or None, default=None
        Starts that run at once; None takes 64 up to a width of 400, and 16 beyond.
    max_seconds : float, default=300
        The budget.
    patience : int, default=80
        Rounds without a new column after which the search gives up.
    fallback : Directions or None, default=None
        What looks for the rest when the batch is not complete.

    References
    ----------
    SPEAR (2024), Theorems 3.1 to 3.5, for the two views. The search is this project's own.
    """

    starts_per_round: int | None = None
    max_seconds: float = 300.0
    patience: int = 80
    fallback: Directions | None = None

    def propose(
        self,
        layer_gradient: LayerGradient,
        factors: LowRankGradient,
        *,
        random_state: Any = None,
        verbose: bool = False,
    ) -> Candidates:
        """Search until the columns found are a basis, or the budget is spent."""
        for name in ("starts_per_round", "max_seconds", "patience"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")
        random_state = check_random_state(random_state)
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        test, forward = factors.zero_test, torch.from_numpy(ForwardView.of(layer_gradient, factors).regressors)
        views, pool = TwoViews.of(test.observations, forward), CandidatePool.empty(factors.batch_size)
        width, b = test.observations.shape
        n_starts = self.starts_per_round or (64 if width <= 400 else 16)
        deadline, idle, n_rounds, hits = time.monotonic() + self.max_seconds, 0, 0, 0
        # One thread: the matrices are small, and spinning threads cost more than they bring.
        with threadpool_limits(limits=1), progress_bar(verbose, total=b, description="columns") as report:
            while len(views.found) < b and idle < self.patience and time.monotonic() < deadline:
                ends = alternate(views, n_starts, RIDGES[n_rounds % len(RIDGES)], generator)
                n_rounds, idle = n_rounds + 1, idle + 1
                hits += accept(pool, test, ends)
                found = pool.selection().directions
                if len(found) > len(views.found):
                    views, idle = views.knowing(found), 0
                report(len(views.found), f"{n_rounds * n_starts} starts, {hits} in a column")
        directions = pool.directions.numpy().T
        status = self._status(len(views.found) == b, idle)
        found = Candidates(directions, factors.zeros(directions).sum(axis=0), status, n_rounds * n_starts, hits)
        if found.is_complete or self.fallback is None:
            return found
        rest = self.fallback.propose(layer_gradient, factors, random_state=random_state, verbose=verbose)
        return found.joined(rest.directions, factors, rest)

    def _status(self, is_complete: bool, idle: int) -> str:
        if is_complete:
            return "complete"
        if idle >= self.patience:
            return f"nothing new in {self.patience} rounds"
        return f"the budget of {self.max_seconds:g} seconds is spent"


def accept(pool: CandidatePool, test: ZeroTest, ends: torch.Tensor) -> int:
    """Add the ends that are proven columns to the pool; return how many ends were near one, new or not."""
    widths = test.tolerances(ends).clamp(min=NEAR_ZERO)
    is_near = ((ends @ test.observations.T).abs() < widths).sum(dim=1) > ends.shape[1]
    ends = ends[is_near]
    new = ends[distinct(torch.cat([pool.directions, ends]))[len(pool.directions) :]]
    if len(new):
        new = test.refit(new)
        is_proven, n_zeros = test.accept(new)
        pool.add(new[is_proven], n_zeros[is_proven])
    return len(ends)

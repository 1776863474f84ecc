"""What happens to a set of starts: down to a sparse direction each, and the look at which of them are worth more."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sparsedl.candidates import distinct
from sparsedl.chance import required_zeros
from sparsedl.linalg import normalized
from sparsedl.optimizers import Optimizer
from sparsedl.surrogates import Surrogate
from sparsedl.workers import Share, in_turn, shared_rows
from sparsedl.zeros import ZeroTest

__all__ = ["Descent", "Ends"]

CROWDING, HALF_NORMAL_DENSITY, FALSE_LOOK = 4.0, 0.8, 0.01
"""How much denser entries are near zero at spurious minima than those of a Gaussian are, whose density that is; and the
probability at which a spurious end passes the look."""

NEAR_FOUND = 0.9
"""Cosine to a column found, or to a better end, from which on an end is left out before it has converged."""

FEWEST, ENTRIES = 32, 50_000
"""Starts, and their entries, of one block on the CPU at least: 32 starts take a quarter of the time of 128 at 1,500
rows, and at 200 rows all of them are one block."""


@dataclass(frozen=True)
class Ends:
    """Where a set of starts ended.

    Attributes
    ----------
    directions : torch.Tensor of shape (n_ends, n_components)
        Unit rows in double precision; not those that were left out.
    n_starts : int
        Starts spent.
    n_found : int
        Starts left out because they ended near a column found before.
    """

    directions: torch.Tensor
    n_starts: int
    n_found: int = 0


@dataclass(frozen=True, kw_only=True)
class Descent:
    """One way down, and the look at where it ended.

    Parameters
    ----------
    optimizer, surrogate : Optimizer, Surrogate
        What goes down, on the stretched sphere, and what on.
    finish : (Optimizer, Surrogate) or None, default=None
        Where starts are many, only the best ends are made to converge, on the sphere itself, by these; None takes all
        as they are.
    least_finished : int, default=4
        How many of the ends are, at least.
    share_finished : float, default=0.1
        Share of the ends that are: hits were among the best 7 % in nine of ten sets (two problems of 20 components, 80
        samples, `GemanMcClure`).
    look : float, default=0.02
        Entries below this are counted to find the best ends.
    near_zero : float, default=0.02
        Entries below this are counted to see which of them may be a column.
    """

    optimizer: Optimizer
    surrogate: Surrogate
    finish: tuple[Optimizer, Surrogate] | None = None
    least_finished: int = 4
    share_finished: float = 0.1
    look: float = 0.02
    near_zero: float = 0.02

    def run(
        self,
        observations: torch.Tensor,
        starts: torch.Tensor,
        found: torch.Tensor,
        stretching: torch.Tensor | None,
        device: torch.device,
        share: Share = in_turn,
    ) -> Ends:
        """Run starts, unit rows in the precision of the optimiser as the observations are, and return their ends."""
        if starts.shape[1] == 1:  # a sphere of two points
            return Ends(starts.double(), len(starts))
        observations, starts = observations.to(device), starts.to(device)
        if stretching is None:
            ends = self._down(observations, starts, share)
        else:
            stretching = stretching.to(device)
            inside = normalized(torch.linalg.solve(stretching, starts.double().T).T).to(starts)
            stretching = stretching.to(starts)
            ends = self._down(observations @ stretching, inside, share)
            ends = normalized(ends @ stretching.T)
        n_found = 0
        if self.finish is not None:
            best, n_found = self._best(observations, ends, found.to(starts))
            optimizer, surrogate = self.finish
            ends = optimizer.minimize(observations, ends[best], surrogate).directions
        return Ends(normalized(ends.cpu().double()), len(starts), n_found)

    def _down(self, observations: torch.Tensor, starts: torch.Tensor, share: Share) -> torch.Tensor:
        def run(part: torch.Tensor) -> torch.Tensor:
            return self.optimizer.minimize(observations, part, self.surrogate).directions

        size = max(FEWEST, ENTRIES // len(observations)) if self.optimizer.starts_are_apart else len(starts)
        return shared_rows(share, run, starts, size if observations.device.type == "cpu" else len(starts))

    def _best(self, observations: torch.Tensor, ends: torch.Tensor, found: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return which ends are the best, and how many were left out for being near a column found."""
        n_zeros = ((ends @ observations.T).abs() < self.look).sum(dim=1)
        is_found = ((ends @ found.T).abs() > NEAR_FOUND).any(dim=1)
        n_found = int(is_found.sum())
        order = torch.argsort(n_zeros.masked_fill(is_found, -1), descending=True, stable=True)[: len(ends) - n_found]
        # The most attractive columns draw many starts: one of each is enough.
        n_best = max(self.least_finished, math.ceil(self.share_finished * len(ends)))
        return order[distinct(ends[order], NEAR_FOUND)][:n_best], n_found

    def promising(self, ends: torch.Tensor, found: torch.Tensor, test: ZeroTest) -> torch.Tensor:
        """Return the ends that differ from each other and from what was found, those with the most zeros first.

        Where entries that will vanish should show, by the optimiser or by the surrogate, more have to be near zero than
        chance brings. They pile up there at spurious minima too.
        """
        n_rows, n_components = test.observations.shape
        near_zero = ((ends @ test.observations.T).abs() < self.near_zero).sum(dim=1)
        order = torch.argsort(near_zero, descending=True, stable=True)
        ends, near_zero = ends[order], near_zero[order]
        keep = distinct(torch.cat([found, ends]))[len(found) :]
        if self.optimizer.ends_at_zeros or not self.surrogate.smooth:
            chance = CROWDING * HALF_NORMAL_DENSITY * self.near_zero
            keep &= near_zero >= required_zeros(n_rows, n_components, chance, FALSE_LOOK)
        return ends[keep]

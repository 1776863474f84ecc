"""What a search is made of: stages, each a way of looking for columns, and what they have found so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from sparsedl.candidates import CandidatePool, UnprovenPool
from sparsedl.descents import Descent
from sparsedl.rounding import Rounding
from sparsedl.starts import Starts

__all__ = ["Outcome", "SearchEnd", "SearchResult", "Stage"]

AGAIN = 0.9
"""Share of the columns missing that may still be missing when an earlier stage has its turn again. With 1, two thirds
of the time at (150, 10, .5) went into symmetric starts that brought nothing."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One way of looking for columns, a round of which is a set of starts.

    Parameters
    ----------
    starts : Starts
        Where they begin.
    descents : sequence of Descent
        How they go on; each task of a round takes the next one.
    n_starts : int
        How many, in the long run.
    first_starts : int
        How many in a round behind a new column: twice as many with every round that brings none.
    starts_per_task : int, default=128
        Starts in one task of the parallel back end; fixed, so that results do not depend on the number of workers.
    prices : tuple of float, default=(1.0,)
        Prices of the columns found; each task of a round takes the next one. 1 is none.
    draws_price : bool, default=False
        Whether each task draws its price instead, log-uniformly between the least and the largest.
    patience : int or None
        Of the last stage: rounds without a new column after which the search ends; None for none.
    first_patience : int or None, default=None
        The same while there is no column at all; None is ``patience``.
    least_gain : float, default=0
        Share of the missing columns that a round has to bring for another one; else the next stage has its turn.
    fewest_open : int, default=0
        Missing columns below which the stage is passed over.
    rounding : Rounding or None, default=None
        What makes ends sparser that polishing does not prove; None leaves them.
    n_anchors : int, default=0
        Regressions a round for the last columns, once half of them are found; counted as starts.
    """

    starts: Starts
    descents: Sequence[Descent]
    n_starts: int
    first_starts: int = 2**30
    starts_per_task: int = 128
    prices: tuple[float, ...] = (1.0,)
    draws_price: bool = False
    patience: int | None = None
    first_patience: int | None = None
    least_gain: float = 0.0
    fewest_open: int = 0
    rounding: Rounding | None = None
    n_anchors: int = 0

    def patience_with(self, n_found: int) -> int | None:
        """Return the rounds without a new column after which the search ends."""
        return self.patience if n_found or self.first_patience is None else self.first_patience

    def price(self, index: int, generator: torch.Generator) -> float:
        """Return the price of a task."""
        if not self.draws_price:
            return self.prices[index % len(self.prices)]
        least, largest = min(self.prices), max(self.prices)
        return least * (largest / least) ** float(torch.rand((), generator=generator, dtype=torch.float64))


class SearchEnd(StrEnum):
    """How a search ended."""

    COMPLETE = "complete"
    """With everything found."""

    EXHAUSTED = "exhausted"
    """By its own count of starts without anything new."""

    CUT = "cut short"
    """By a budget or a cap of the caller."""

    INTERRUPTED = "interrupted"
    """By Ctrl-C."""

    @classmethod
    def worst(cls, *ends: SearchEnd) -> SearchEnd:
        """Return the end that leaves most untried."""
        return max(ends, key=list(cls).index)


@dataclass
class SearchResult:
    """What the search has found so far, and what it took.

    Attributes
    ----------
    pool : CandidatePool
        All distinct proven candidates.
    unproven : UnprovenPool
        The best ends that prove nothing, for a basis that the proven ones do not complete.
    found : torch.Tensor of shape (n_found, n_components)
        The sparsest independent candidates, behind what is known beforehand.
    end : SearchEnd or None
        How it ended; None before.
    status : str
        The same in words, with numbers.
    n_starts : int
        Starts spent.
    n_rounds : int
        Rounds of starts.
    n_successes : int
        Starts that ended in a proven column, found before or not.
    stage, idle, last_gain, n_open_then : int
        The stage whose turn it is, its rounds since the last new column, what the last round brought, and how many
        columns were missing when the last stage took over.
    """

    pool: CandidatePool
    unproven: UnprovenPool
    found: torch.Tensor
    end: SearchEnd | None = None
    status: str = ""
    n_starts: int = 0
    n_rounds: int = 0
    n_successes: int = 0
    stage: int = 0
    idle: int = 0
    last_gain: int = 0
    n_open_then: int = 0

    def take(self, outcomes: Sequence[Outcome], known: torch.Tensor) -> None:
        """Add what a round brought."""
        for outcome in outcomes:
            self.pool.add(outcome.directions, outcome.n_zeros)
            self.unproven.add(outcome.unproven.directions, outcome.unproven.values)
            self.n_starts += outcome.n_starts
            self.n_successes += outcome.n_successes
        n_before, self.n_rounds = len(self.found), self.n_rounds + 1
        self.found = torch.cat([known, self.pool.selection(known).directions])
        self.last_gain = len(self.found) - n_before
        self.idle = 0 if self.last_gain > 0 else self.idle + 1

    def choose(self, stages: Sequence[Stage], n_open: int) -> None:
        """Let the next stage have its turn where one brings little, and the first one again where a column is new."""
        stage = stages[self.stage]
        if self.stage < len(stages) - 1:
            if self.last_gain < stage.least_gain * (n_open + self.last_gain) or n_open < stage.fewest_open:
                self.stage, self.idle, self.n_open_then = self.stage + 1, 0, n_open
        elif self.last_gain > 0 and n_open <= AGAIN * self.n_open_then:
            self.stage = next((i for i, stage in enumerate(stages) if n_open >= stage.fewest_open), self.stage)


@dataclass(frozen=True)
class Outcome:
    """What one task of a round found: proven directions, the best ends that prove nothing, and the starts it took."""

    directions: torch.Tensor
    n_zeros: torch.Tensor
    unproven: UnprovenPool
    n_starts: int
    n_successes: int

"""Which stage runs next, and with how many starts: counted in finds, never by the clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sparsedl_fl.search.stage import Stage, State

__all__ = ["Scheduler"]


class Scheduler:
    """Chooses the next stage: the one with most finds for its cost, with some optimism for the others.

    Parameters
    ----------
    stages : sequence of Stage
        The first has the first turn.
    last_resort : Stage or None
        The stage that has a round now and then, where the others find nothing new.
    state : State
        The state of the search.
    """

    def __init__(self, stages: Sequence[Stage], last_resort: Stage | None, state: State) -> None:
        self.stages, self.last_resort, self.state, self.schedule = stages, last_resort, state, state.schedule
        self.gains = [math.inf, *[0.0] * (len(stages) - 1)]
        self.adapted: dict[str, int] = {}
        self.n_rounds = 0

    @property
    def leader(self) -> Stage:
        """The stage whose turn it is."""
        worth = [gain / stage.cost[self.state.is_wide] for gain, stage in zip(self.gains, self.stages, strict=True)]
        return self.stages[worth.index(max(worth))]

    def round(self) -> Iterator[tuple[Stage, int]]:
        """Yield the stages of the next round with their starts; the second runs only if the first finds nothing."""
        self.n_rounds += 1
        leader = self.leader
        yield leader, self.adapted.get(leader.name, leader.n_starts(self.state))
        if self.last_resort is not None and self.n_rounds % self.schedule.alternation_every == 0:
            yield self.last_resort, self.last_resort.n_starts(self.state)

    def learn(self, stage: Stage, n_new: int, n_starts: int) -> None:
        """Update the expected finds of the stages by what one found."""
        if stage not in self.stages:
            return
        index, most = self.stages.index(stage), 2 * self.state.n_starts
        self.gains = [gain + self.schedule.optimism for gain in self.gains]
        self.gains[index] = n_new * (most / n_starts if stage.adapts else 1.0)
        if stage.adapts and not self.state.is_flat:
            self.adapted[stage.name] = self.schedule.n_descents(n_new, n_starts, most)
        for number, other in enumerate(self.stages):
            if other.draws:
                continue
            if number == index and n_new == 0:  # it finds the same again until another sample is known
                self.gains[number] = -math.inf
            elif number != index and n_new > 0:
                self.gains[number] = max(self.gains[number], self.schedule.optimism)

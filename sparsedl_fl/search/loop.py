"""The search: stages propose, what is proven is taken in, and leaves the others fewer dimensions."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparsedl.process import one_thread
from sparsedl_fl.certify.candidates import Candidates, SearchEnd
from sparsedl_fl.search.budget import Budget
from sparsedl_fl.search.recipes import recipe_for
from sparsedl_fl.search.scheduler import Scheduler
from sparsedl_fl.search.settling import settle
from sparsedl_fl.search.state import SearchState

__all__ = ["search"]

Report = Callable[[int, str], None]


def search(
    state: SearchState, patience: int, is_determined: bool, budget: Budget, generator: torch.Generator, report: Report
) -> Candidates:
    """Search until the columns or the samples found are a basis, or the patience or a budget is spent.

    Parameters
    ----------
    state : SearchState
        With nothing known, or something.
    patience : int
        Rounds without anything new after which to give up (see `Schedule.patience`).
    is_determined : bool
        Whether there are equations enough for the batch.
    budget : Budget
        Of starts.
    generator : torch.Generator
        Source of randomness.
    report : callable
        Told how many columns are found, and a line of text.
    """
    knowledge, schedule, idle = state.knowledge, state.numerics.schedule, 0
    scheduler = Scheduler(schedule, *recipe_for(state), state)
    try:
        # One thread: the matrices are small, and spinning threads cost more than they bring.
        with one_thread():
            while (
                not knowledge.is_complete
                and idle < schedule.patience(patience, knowledge, is_determined, state.is_beyond_half)
                and not budget.ended()
            ):
                is_new = run_round(state, scheduler, budget, generator)
                idle = 0 if is_new else idle + 1
                report(knowledge.n_found, f"{budget.spent} starts, {knowledge.n_hits} in a column")
            settle(state, generator)
        ended = SearchEnd.CUT if budget.cut else SearchEnd.EXHAUSTED
        end = SearchEnd.COMPLETE if knowledge.is_complete else ended
        status = end.value if knowledge.is_complete else budget.cut or f"nothing new in {idle} rounds"
    except KeyboardInterrupt:
        status, end = SearchEnd.INTERRUPTED.value, SearchEnd.INTERRUPTED
    return state.candidates(f"{status} (views: {state.views_in_words})", end, budget.spent)


def run_round(state: SearchState, scheduler: Scheduler, budget: Budget, generator: torch.Generator) -> bool:
    """Give a stage its turn, and another one if it brings nothing; return whether anything is new."""
    knowledge = state.knowledge
    if state.deflate():
        return True
    for stage, n_starts in scheduler.round():
        n_before = knowledge.n_known
        proposals = stage.propose(state, n_starts, generator)
        is_new = knowledge.add(proposals.inputs, proposals.is_determined, proposals.columns)
        budget.spend(n_starts)
        scheduler.learn(stage, knowledge.n_known - n_before, n_starts)
        if is_new:
            return True
    return False

"""The loop of a search: stages propose candidates, certified ones are kept, and the others are deflated by them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparsedl.process import one_thread, undisturbed
from sparsedl.workers import Share, Workers, workers
from sparsedl_fl.certify.candidates import Candidates, SearchEnd
from sparsedl_fl.search.budget import Budget
from sparsedl_fl.search.recipes import recipe_for
from sparsedl_fl.search.scheduler import Scheduler
from sparsedl_fl.search.stage import Proposals, S, Stage, State

__all__ = ["search"]

N_BLOCKS, FEWEST_STARTS = 2, 8
"""Blocks into which the starts of a round are divided, whatever the number of workers, and the fewest starts of one."""

Report = Callable[[int, str], None]


def search(
    state: S,
    budget: Budget,
    generator: torch.Generator,
    report: Report,
    settle: Callable[[S, torch.Generator], None] | None = None,
) -> Candidates:
    """Search until all samples are found, or the patience or a budget is spent.

    Parameters
    ----------
    state : State
        The state to start from.
    budget : Budget
        Of starts.
    generator : torch.Generator
        Source of randomness.
    report : callable
        Called with the number of samples found, and a line of text.
    settle : callable or None, default=None
        Fits what was found to the last digit, once the search is over.
    """
    scheduler, idle = Scheduler(*recipe_for(state), state), 0
    try:
        # One thread: the matrices are small, and spinning threads cost more than they bring.
        with one_thread(), workers(None) as those:
            while not state.is_complete and idle < state.patience and not budget.ended():
                is_new = run_round(state, scheduler, budget, generator, those)
                idle = 0 if is_new else idle + 1
                report(state.n_found, f"{budget.spent} starts, {state.n_hits} at a sample")
            if settle is not None:
                settle(state, generator)
        ended = SearchEnd.CUT if budget.cut else SearchEnd.EXHAUSTED
        end = SearchEnd.COMPLETE if state.is_complete else ended
        status = end.value if state.is_complete else budget.cut or f"nothing new in {idle} rounds"
    except KeyboardInterrupt:
        status, end = SearchEnd.INTERRUPTED.value, SearchEnd.INTERRUPTED
    return state.candidates(f"{status} (used: {state.used_in_words})", end, budget.spent)


def run_round(state: State, scheduler: Scheduler, budget: Budget, generator: torch.Generator, those: Workers) -> bool:
    """Run a stage, and another one if that finds nothing; return whether anything is new."""
    if state.deflate():
        return True
    for stage, n_starts in scheduler.round():
        n_before = state.n_known
        is_new = state.take(proposed(stage, state, n_starts, generator, those))
        budget.spend(n_starts)
        scheduler.learn(stage, state.n_known - n_before, n_starts)
        if is_new:
            return True
    return False


def proposed(stage: Stage, state: State, n_starts: int, generator: torch.Generator, those: Workers) -> Proposals:
    """Return the candidates of a round of a stage, whose starts workers share in blocks of the same size for all."""
    n_blocks = min(N_BLOCKS, n_starts // FEWEST_STARTS) if stage.shares and state.is_shared else 1
    if n_blocks < 2:
        return stage.propose(state, n_starts, generator)
    state = state.prepared()
    seeds = torch.randint(2**62, (n_blocks,), generator=generator).tolist()
    sizes = [len(range(index, n_starts, n_blocks)) for index in range(n_blocks)]
    tasks = [(_block, stage, state, size, seed) for size, seed in zip(sizes, seeds, strict=True)]
    return Proposals.joined(those.run(tasks))


def _block(stage: Stage, state: State, n_starts: int, seed: int, share: Share) -> Proposals:
    with undisturbed():  # this may be another process, or another thread of Python
        return stage.propose(state, n_starts, torch.Generator().manual_seed(seed))

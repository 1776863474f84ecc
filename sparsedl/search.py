"""The search: rounds of starts, a pool of distinct proven candidates, and when to stop.

A few attractive columns draw most starts, so plain restarts hardly ever complete a basis. Starts are drawn away from
the columns already found (see `sparsedl.starts`), and the sphere is stretched along their span, which puts a price on
them: with ``q = T w``, ``T = [complement, price * span]`` and ``|w| = 1``, a found column costs ``price`` times what it
did. What is tried in which order is a list of stages, from `sparsedl.recipes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from sparsedl.anchoring import anchored_directions, draw_anchors
from sparsedl.candidates import SAME_COSINE, CandidatePool, UnprovenPool, distinct
from sparsedl.descents import Descent, Ends
from sparsedl.polishing import polish
from sparsedl.process import undisturbed
from sparsedl.rounding import Rounding
from sparsedl.stages import Outcome, SearchEnd, SearchResult, Stage
from sparsedl.surrogates import Surrogate
from sparsedl.workers import Share, Task, Workers, workers
from sparsedl.zeros import ZeroTest

FEWEST_POLISHED, POLISHED, REFITTED = 16, 4_000_000, 400_000
"""Candidates that are polished in one block at least; and numbers, of the observations for each, that one block of them
is polished and is refitted from: 17 and one at (150, 10, .5), all at (20, 10, .5)."""


def stretch(found: torch.Tensor, price: float) -> torch.Tensor | None:
    """Return ``T = [complement, price * span]`` of the columns found, (n_components, n_components), or None for 1."""
    n_found, n_components = found.shape
    if price == 1 or not 0 < n_found < n_components:
        return None
    basis = torch.linalg.qr(found.T, mode="complete")[0]
    return torch.cat([basis[:, n_found:], price * basis[:, :n_found]], dim=1)


@dataclass(frozen=True)
class Search:
    """Runs rounds of starts until the basis is complete and stable, or patience or budget are spent.

    Parameters
    ----------
    zero_test : ZeroTest
        Holds the whitened observations and says which directions are proven.
    surrogate : Surrogate
        What says which unproven ends are the best.
    rounding : Rounding
        What makes ends sparser under noise, whatever the stage.
    stages : sequence of Stage
        In the order in which they are tried.
    max_rounds : int or None
        The budget; None for none.
    n_jobs : int or None
        Workers, as joblib counts them; None follows ``joblib.parallel_config``.
    device : torch.device
        Where the starts run.
    known : torch.Tensor of shape (n_known, n_components)
        Directions of the basis that are known beforehand, and not sparse: the constant one of an offset.
    """

    zero_test: ZeroTest
    surrogate: Surrogate
    rounding: Rounding
    stages: Sequence[Stage]
    max_rounds: int | None
    n_jobs: int | None
    device: torch.device
    known: torch.Tensor

    def run(self, generator: torch.Generator, report: Callable[[int, str], None]) -> SearchResult:
        """Search; a KeyboardInterrupt ends it with what was found so far."""
        known = self.known
        result = SearchResult(CandidatePool.empty(known.shape[1]), UnprovenPool(known[:0], known[:0, 0]), known)
        try:
            with workers(self.n_jobs) as those:
                while result.end is None:
                    before = result.found
                    result.take(self._round(result, generator, those), known)
                    n_found = len(result.found) - len(known)
                    report(n_found, f"{result.n_starts} starts, {result.n_successes} in a column")
                    result.end, result.status = self._ending(result, before)
        except KeyboardInterrupt:
            result.end = SearchEnd.INTERRUPTED
            result.status = result.end.value
        return result

    def _ending(self, result: SearchResult, before: torch.Tensor) -> tuple[SearchEnd | None, str]:
        """Return why the search is over, or nothing; where a stage has spent its patience, the next one goes on."""
        is_complete = len(result.found) == self.zero_test.observations.shape[1]
        if is_complete and (self.zero_test.is_precise or _same_columns(before, result.found)):
            return SearchEnd.COMPLETE, "complete"
        n_open = self.zero_test.observations.shape[1] - len(result.found)
        patience = self.stages[-1].patience_with(len(result.pool.directions))
        if result.stage == len(self.stages) - 1 and patience is not None and result.idle >= patience:
            return SearchEnd.EXHAUSTED, f"nothing new in {result.idle} rounds of {self.stages[-1].n_starts} starts"
        result.choose(self.stages, n_open)
        if self.max_rounds is not None and result.n_rounds >= self.max_rounds:
            return SearchEnd.CUT, f"the budget of {self.max_rounds} rounds, {result.n_starts} starts, is spent"
        return None, ""

    @cached_property
    def _in_single(self) -> torch.Tensor:
        return self.zero_test.observations.to(torch.float32)

    def observations_in(self, precision: torch.dtype) -> torch.Tensor:
        """Return the whitened observations in a precision."""
        return self.zero_test.observations if precision == torch.float64 else self._in_single

    def _round(self, result: SearchResult, generator: torch.Generator, workers: Workers) -> list[Outcome]:
        stage, found, n_components = self.stages[result.stage], result.found, result.found.shape[1]
        observations = self.observations_in(stage.descents[0].optimizer.precision)
        n_starts = min(stage.n_starts, stage.first_starts * 2 ** min(result.idle, 30))
        starts = workers.run([(stage.starts.draw, observations, found, n_starts, generator)])[0]
        parts = starts.split(stage.starts_per_task)
        seeds = torch.randint(2**31 - 1, (len(parts) + 1,), generator=generator).tolist()
        tasks: list[Task[Outcome]] = [
            (_run_starts, self, stage, part, found, result.n_rounds + index, seed)
            for index, (part, seed) in enumerate(zip(parts, seeds[1:], strict=True))
        ]
        if stage.n_anchors and n_components / 2 <= len(found) < n_components:
            tasks.append((_run_anchors, self, stage, found, seeds[0]))
        return workers.run(tasks)


def _same_columns(before: torch.Tensor, after: torch.Tensor) -> bool:
    if len(before) != len(after):
        return False
    return bool(((before @ after.T).abs().amax(dim=1) > SAME_COSINE).all())


def _run_starts(
    search: Search, stage: Stage, starts: torch.Tensor, found: torch.Tensor, index: int, seed: int, share: Share
) -> Outcome:
    with undisturbed():  # this may be another process, or another thread of Python
        descent, generator = stage.descents[index % len(stage.descents)], torch.Generator().manual_seed(seed)
        price = 1.0 if descent.optimizer.wants_white else stage.price(index, generator)
        observations = search.observations_in(descent.optimizer.precision)
        ends = descent.run(observations, starts, found, stretch(found, price), search.device, share)
        return _prove(search, stage, descent, ends, found, generator, share)


def _run_anchors(search: Search, stage: Stage, found: torch.Tensor, seed: int, share: Share) -> Outcome:
    with undisturbed():
        generator, descent = torch.Generator().manual_seed(seed), stage.descents[0]
        anchors = draw_anchors(found, stage.n_anchors, generator)
        ends = anchored_directions(search.zero_test.observations, anchors, descent.surrogate, generator)
        return _prove(search, stage, descent, Ends(ends, len(ends)), found, generator, share)


def _prove(
    search: Search,
    stage: Stage,
    descent: Descent,
    ends: Ends,
    found: torch.Tensor,
    generator: torch.Generator,
    share: Share,
) -> Outcome:
    """Estimate ends that may be a column from all zero rows, and keep what is proven."""
    test = search.zero_test
    unproven = UnprovenPool(ends.directions[:0], ends.directions[:0, 0])
    unproven.add(ends.directions, _mean_surrogate(search, ends.directions))
    candidates = descent.promising(ends.directions, found, test)
    proven, n_zeros = candidates[:0], torch.zeros(0, dtype=torch.int64)
    if len(candidates) and descent.optimizer.ends_at_zeros and search.zero_test.is_precise:
        size = max(FEWEST_POLISHED, POLISHED // test.observations.numel())
        polished, accepted, counts = _accepted(test, lambda part: polish(part, test), candidates, size, share)
        proven, n_zeros, candidates = polished[accepted], counts[accepted], candidates[~accepted]
        candidates = candidates[distinct(torch.cat([proven, candidates]))[len(proven) :]]
    rounding = stage.rounding if search.zero_test.is_precise else search.rounding
    if len(candidates) and rounding is not None:
        if rounding.draws:  # in turn, whoever does what follows
            candidates = rounding.round(test.observations, candidates, generator)

        def refit(part: torch.Tensor) -> torch.Tensor:
            return test.refit(part if rounding.draws else rounding.round(test.observations, part, generator))

        size = max(1, REFITTED // test.observations.numel())
        candidates, accepted, counts = _accepted(test, refit, candidates, size, share)
        proven, n_zeros = torch.cat([proven, candidates[accepted]]), torch.cat([n_zeros, counts[accepted]])
        unproven.add(candidates[~accepted], _mean_surrogate(search, candidates[~accepted]))
    n_successes = ends.n_found + _count_close(ends.directions, torch.cat([found, proven]))
    return Outcome(proven, n_zeros, unproven, ends.n_starts, n_successes)


def _accepted(
    test: ZeroTest,
    estimate: Callable[[torch.Tensor], torch.Tensor],
    candidates: torch.Tensor,
    size: int,
    share: Share,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Estimate candidates, so many at once, and return them, which are accepted, and their zeros."""

    def run(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        part = estimate(part)
        return part, *test.accept(part)

    directions, accepted, counts = zip(*share(run, candidates.split(size)), strict=True)
    return torch.cat(directions), torch.cat(accepted), torch.cat(counts)


def _mean_surrogate(search: Search, directions: torch.Tensor) -> torch.Tensor:
    return search.surrogate.value(directions @ search.zero_test.observations.T).mean(dim=1)


def _count_close(ends: torch.Tensor, columns: torch.Tensor) -> int:
    return int(((ends @ columns.T).abs() > SAME_COSINE).any(dim=1).sum())

"""The search: rounds of starts, a pool of distinct proven candidates, and when to stop.

A few attractive columns draw most starts, so plain restarts hardly ever complete a basis. Starts are drawn away from
the columns already found (see `sparsedl.starts`), and the sphere is stretched along their span, which puts a price on
them: with ``q = T w``, ``T = [complement, price * span]`` and ``|w| = 1``, a found column costs ``price`` times what it
did. What is tried in which order is a list of stages, from `sparsedl.recipes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from joblib import Parallel, delayed

from sparsedl.anchoring import anchored_directions, draw_anchors
from sparsedl.candidates import SAME_COSINE, CandidatePool, UnprovenPool, distinct
from sparsedl.linalg import normalized
from sparsedl.optimizers import Optimizer
from sparsedl.polishing import polish
from sparsedl.process import undisturbed
from sparsedl.rounding import Rounding
from sparsedl.stages import Outcome, SearchResult, Stage
from sparsedl.surrogates import Surrogate
from sparsedl.zeros import ZeroTest, required_zeros

INTERRUPTED = "interrupted"


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
    surrogate, rounding : Surrogate, Rounding
        The strategies.
    stages : sequence of Stage
        In the order in which they are tried.
    max_rounds : int or None, default=None
        The budget; None for none.
    n_jobs : int or None
        Workers for joblib; None follows ``joblib.parallel_config``.
    device : torch.device
        Where the starts run.
    known : torch.Tensor of shape (n_known, n_components) or None
        Directions of the basis that are known beforehand, and not sparse: the constant one of an offset.
    starts_per_task : int, default=128
        Starts in one task of the parallel back end; fixed, so that results do not depend on the number of workers.
    near_zero, near_zero_chance, near_zero_acceptance : float, default=0.02, 0.08 and 0.01
        A first look at where a start ended, before any eigenvalue problem, where it should show: more entries have to
        be this near to zero than chance brings. They pile up there at spurious minima too, at about four times the
        density of a Gaussian.
    negligible : float, default=1e-3
        Width of zero below which noise does not matter for the estimation.
    """

    zero_test: ZeroTest
    surrogate: Surrogate
    rounding: Rounding
    stages: Sequence[Stage]
    max_rounds: int | None = None
    n_jobs: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    known: torch.Tensor | None = None
    starts_per_task: int = 128
    near_zero: float = 0.02
    near_zero_chance: float = 0.08
    near_zero_acceptance: float = 0.01
    negligible: float = 1e-3

    def run(self, generator: torch.Generator, report: Callable[[int, str], None]) -> SearchResult:
        """Search; a KeyboardInterrupt ends it with what was found so far."""
        n_components = self.zero_test.observations.shape[1]
        known = torch.zeros((0, n_components), dtype=torch.float64) if self.known is None else self.known
        result = SearchResult(CandidatePool.empty(n_components), UnprovenPool(known[:0], known[:0, 0]), known)
        try:
            while not result.status:
                before = result.found
                result.take(self._round(result, generator), known)
                report(len(result.found) - len(known), f"{result.n_starts} starts, {result.n_successes} in a column")
                result.status = self._ending(result, before)
        except KeyboardInterrupt:
            result.status = INTERRUPTED
        return result

    def _ending(self, result: SearchResult, before: torch.Tensor) -> str:
        """Return why the search is over, or nothing; where a stage has spent its patience, the next one goes on."""
        is_complete = len(result.found) == self.zero_test.observations.shape[1]
        if is_complete and (self._is_precise or _same_columns(before, result.found)):
            return "complete"
        n_open = self.zero_test.observations.shape[1] - len(result.found)
        patience = self.stages[-1].patience
        if result.stage == len(self.stages) - 1 and patience is not None and result.idle >= patience:
            return f"nothing new in {result.idle} rounds of {self.stages[-1].n_starts} starts"
        result.choose(self.stages, n_open)
        if self.max_rounds is not None and result.n_rounds >= self.max_rounds:
            return f"the budget of {self.max_rounds} rounds, {result.n_starts} starts, is spent"
        return ""

    @cached_property
    def _is_precise(self) -> bool:
        """Whether noise is so small that what is proven once is so for good, and its zeros need no weights."""
        axes = torch.eye(self.zero_test.observations.shape[1], dtype=torch.float64)
        return bool(self.zero_test.tolerances(axes).amax() < self.negligible)

    @cached_property
    def _in_single(self) -> torch.Tensor:
        return self.zero_test.observations.to(torch.float32)

    def observations_in(self, precision: torch.dtype) -> torch.Tensor:
        """Return the whitened observations in a precision."""
        return self.zero_test.observations if precision == torch.float64 else self._in_single

    def _round(self, result: SearchResult, generator: torch.Generator) -> list[Outcome]:
        stage, found, n_components = self.stages[result.stage], result.found, result.found.shape[1]
        observations = self.observations_in(stage.optimizers[0].precision)
        n_starts = min(stage.n_starts, stage.first_starts * 2 ** min(result.idle, 30))
        starts = stage.starts.draw(observations, found, n_starts, generator)
        parts = starts.split(self.starts_per_task)
        seeds = torch.randint(2**31 - 1, (len(parts) + 1,), generator=generator).tolist()
        tasks = [
            (_run_starts, self, stage, part, found, result.n_rounds + index, seed)
            for index, (part, seed) in enumerate(zip(parts, seeds[1:], strict=True))
        ]
        if stage.n_anchors and n_components / 2 <= len(found) < n_components:
            tasks.append((_run_anchors, self, stage, found, seeds[0]))
        if len(tasks) == 1:
            return [tasks[0][0](*tasks[0][1:])]
        return Parallel(n_jobs=self.n_jobs)(delayed(task)(*arguments) for task, *arguments in tasks)


def _same_columns(before: torch.Tensor, after: torch.Tensor) -> bool:
    if len(before) != len(after):
        return False
    return bool(((before @ after.T).abs().amax(dim=1) > SAME_COSINE).all())


def _run_starts(
    search: Search, stage: Stage, starts: torch.Tensor, found: torch.Tensor, index: int, seed: int
) -> Outcome:
    with undisturbed():  # this may be another process, or another thread of Python
        optimizer = stage.optimizers[index % len(stage.optimizers)]
        price = 1.0 if optimizer.wants_white else stage.prices[index % len(stage.prices)]
        ends = _optimize(search, optimizer, starts, stretch(found, price))
        return _prove(search, stage, optimizer, ends, found, torch.Generator().manual_seed(seed))


def _run_anchors(search: Search, stage: Stage, found: torch.Tensor, seed: int) -> Outcome:
    with undisturbed():
        generator = torch.Generator().manual_seed(seed)
        anchors = draw_anchors(found, stage.n_anchors, generator)
        ends = anchored_directions(search.zero_test.observations, anchors, search.surrogate, generator)
        return _prove(search, stage, stage.optimizers[0], ends, found, generator)


def _optimize(
    search: Search, optimizer: Optimizer, starts: torch.Tensor, stretching: torch.Tensor | None
) -> torch.Tensor:
    if starts.shape[1] == 1:  # a sphere of two points
        return starts.double()
    observations = search.observations_in(optimizer.precision)
    starts = starts.to(observations.dtype)
    if stretching is None:
        ends = optimizer.minimize(observations.to(search.device), starts.to(search.device), search.surrogate).directions
        return normalized(ends.cpu().double())
    observations = observations @ stretching.to(observations.dtype)
    starts = normalized(torch.linalg.solve(stretching, starts.double().T).T).to(observations.dtype)
    ends = optimizer.minimize(observations.to(search.device), starts.to(search.device), search.surrogate).directions
    return normalized(ends.cpu().double() @ stretching.T)


def _prove(
    search: Search,
    stage: Stage,
    optimizer: Optimizer,
    ends: torch.Tensor,
    found: torch.Tensor,
    generator: torch.Generator,
) -> Outcome:
    """Drop duplicates and hopeless ends, estimate the others from all zero rows, and keep what is proven."""
    test = search.zero_test
    unproven = UnprovenPool(ends[:0], ends[:0, 0])
    unproven.add(ends, _mean_surrogate(search, ends))
    candidates = _promising(search, optimizer, ends, found)
    proven, n_zeros = candidates[:0], torch.zeros(0, dtype=torch.int64)
    if len(candidates) and optimizer.ends_at_zeros and search._is_precise:
        polished = polish(candidates, test)
        accepted, counts = test.accept(polished)
        proven, n_zeros, candidates = polished[accepted], counts[accepted], candidates[~accepted]
        candidates = candidates[distinct(torch.cat([proven, candidates]))[len(proven) :]]
    if len(candidates) and (stage.rounds_all or not search._is_precise):
        candidates = test.refit(search.rounding.round(test.observations, candidates, generator))
        accepted, counts = test.accept(candidates)
        proven, n_zeros = torch.cat([proven, candidates[accepted]]), torch.cat([n_zeros, counts[accepted]])
        unproven.add(candidates[~accepted], _mean_surrogate(search, candidates[~accepted]))
    successes = _count_successes(ends, torch.cat([found, proven]))
    return Outcome(proven, n_zeros, unproven, len(ends), successes)


def _promising(search: Search, optimizer: Optimizer, ends: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Return the ends that differ from each other and from what was found, those with the most zeros first."""
    n_rows, n_components = search.zero_test.observations.shape
    near_zero = ((ends @ search.zero_test.observations.T).abs() < search.near_zero).sum(dim=1)
    order = torch.argsort(near_zero, descending=True, stable=True)
    ends, near_zero = ends[order], near_zero[order]
    keep = distinct(torch.cat([found, ends]))[len(found) :]
    if optimizer.ends_at_zeros or not search.surrogate.smooth:
        chance, acceptance = search.near_zero_chance, search.near_zero_acceptance
        keep &= near_zero >= required_zeros(n_rows, n_components, chance, acceptance)
    return ends[keep]


def _mean_surrogate(search: Search, directions: torch.Tensor) -> torch.Tensor:
    return search.surrogate.value(directions @ search.zero_test.observations.T).mean(dim=1)


def _count_successes(ends: torch.Tensor, columns: torch.Tensor) -> int:
    return int(((ends @ columns.T).abs() > SAME_COSINE).any(dim=1).sum())

"""The search: rounds of starts, a pool of distinct proven candidates, and when to stop.

A few attractive columns draw most starts, so plain restarts hardly ever complete a basis. Three things do. A start is a
row of ``L``, less its part in the span of the columns already found: in whitened coordinates columns are nearly
orthogonal, so what remains leads to a new one. The sphere is stretched along that span, which puts a price on the
columns in it: with ``q = T w``, ``T = [complement, strength * span]`` and ``|w| = 1``, a found column costs
``strength`` times what it did. And the last columns come from `sparsedl.anchoring`, by regression on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from joblib import Parallel, delayed

from sparsedl.anchoring import anchored_directions, draw_anchors
from sparsedl.linalg import normalized
from sparsedl.optimizers import Optimizer
from sparsedl.pools import SAME_COSINE, CandidatePool, UnprovenPool, distinct
from sparsedl.process import undisturbed
from sparsedl.rounding import Rounding
from sparsedl.surrogates import Surrogate
from sparsedl.zeros import ZeroTest, required_zeros

INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class SearchResult:
    """What the search found and what it took.

    Attributes
    ----------
    pool : CandidatePool
        All distinct proven candidates.
    unproven : UnprovenPool
        The best ends that prove nothing, for a basis that the proven ones do not complete.
    status : str
        ``"complete"``, or in words why not.
    n_starts : int
        Starts spent.
    n_rounds : int
        Rounds of starts.
    n_successes : int
        Starts that ended in a proven column, found before or not.
    """

    pool: CandidatePool
    unproven: UnprovenPool
    status: str
    n_starts: int
    n_rounds: int
    n_successes: int


@dataclass(frozen=True)
class _RoundOutcome:
    directions: torch.Tensor
    n_zeros: torch.Tensor
    unproven: UnprovenPool
    n_starts: int
    n_successes: int


def draw_starts(
    observations: torch.Tensor, found: torch.Tensor, n_starts: int, generator: torch.Generator
) -> torch.Tensor:
    """Draw rows of ``L``, less a random share of their part in the span of the columns found.

    Parameters
    ----------
    observations : torch.Tensor of shape (n_samples, n_components)
        Whitened observations.
    found : torch.Tensor of shape (n_found, n_components)
        Independent columns found so far.
    n_starts : int
        Number of starts.
    generator : torch.Generator
        Source of randomness.
    """
    n_rows, n_components = observations.shape
    starts = observations[torch.randint(n_rows, (n_starts,), generator=generator)]
    # A random perturbation keeps repeated rows apart, and replaces a row that is zero.
    starts = starts + 0.1 * torch.randn((n_starts, n_components), generator=generator, dtype=starts.dtype)
    share = torch.rand((n_starts, 1), generator=generator, dtype=starts.dtype).sqrt()
    if 0 < len(found) < n_components:
        basis = torch.linalg.qr(found.T)[0]
        starts = starts - share * (starts @ basis) @ basis.T
    return normalized(starts, dim=1)


def stretch(found: torch.Tensor, strength: float) -> torch.Tensor:
    """Return ``T = [complement, strength * span]`` of the columns found, of shape (n_components, n_components)."""
    n_found, n_components = found.shape
    if not 0 < n_found < n_components:
        return torch.eye(n_components, dtype=found.dtype)
    basis = torch.linalg.qr(found.T, mode="complete")[0]
    return torch.cat([basis[:, n_found:], strength * basis[:, :n_found]], dim=1)


@dataclass(frozen=True)
class Search:
    """Runs rounds of starts until the basis is complete and stable, or the budget is spent.

    Parameters
    ----------
    zero_test : ZeroTest
        Holds the whitened observations and says which directions are proven.
    surrogate, optimizer, rounding : Surrogate, Optimizer, Rounding
        The strategies.
    n_starts : int
        Starts a round.
    max_rounds : int
        The budget.
    patience : int or None
        Rounds without a new column after which the search gives up; None goes on to the end of the budget.
    deflation : tuple of float or None
        Strengths of the stretch, used in turn; None draws every start at random and knows nothing of what was found.
    n_jobs : int or None
        Workers for joblib; None follows ``joblib.parallel_config``.
    device : torch.device
        Where the starts run.
    known : torch.Tensor of shape (n_known, n_components) or None
        Directions of the basis that are known beforehand, and not sparse: the constant one of an offset.
    starts_per_task : int, default=128
        Starts in one task of the parallel back end; fixed, so that results do not depend on the number of workers.
    n_anchors : int, default=16
        Regressions a round for the last columns, once half of them are found; counted as starts.
    near_zero, near_zero_chance, near_zero_acceptance : float, default=0.02, 0.08 and 0.01
        A first look at where a start ended, before any eigenvalue problem, behind a surrogate that is not smooth: more
        entries have to be this near to zero than chance brings. They pile up there at spurious minima too, at about
        four times the density of a Gaussian.
    """

    zero_test: ZeroTest
    surrogate: Surrogate
    optimizer: Optimizer
    rounding: Rounding
    n_starts: int
    max_rounds: int
    patience: int | None = None
    deflation: tuple[float, ...] | None = (1.0, 2.0)
    n_jobs: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    known: torch.Tensor | None = None
    starts_per_task: int = 128
    n_anchors: int = 16
    near_zero: float = 0.02
    near_zero_chance: float = 0.08
    near_zero_acceptance: float = 0.01

    def run(self, generator: torch.Generator, report: Callable[[int, str], None]) -> SearchResult:
        """Search; a KeyboardInterrupt ends it with what was found so far."""
        n_components = self.zero_test.observations.shape[1]
        pool = CandidatePool.empty(n_components)
        known = torch.zeros((0, n_components), dtype=torch.float64) if self.known is None else self.known
        found = known
        unproven = UnprovenPool(known[:0], known[:0, 0])
        spent = rounds = successes = idle = 0
        status = f"the budget of {self.max_rounds} rounds of {self.n_starts} starts is spent"
        try:
            while rounds < self.max_rounds:
                outcomes = self._round(rounds, found, generator)
                rounds, spent = rounds + 1, spent + sum(outcome.n_starts for outcome in outcomes)
                successes += sum(outcome.n_successes for outcome in outcomes)
                for outcome in outcomes:
                    pool.add(outcome.directions, outcome.n_zeros)
                    unproven.add(outcome.unproven.directions, outcome.unproven.values)
                before, found = found, torch.cat([known, pool.selection(known).directions])
                report(len(found) - len(known), f"{spent} starts, {successes} in a column")
                if len(found) == n_components and _same_columns(before, found):
                    status = "complete"
                    break
                idle = 0 if len(found) > len(before) else idle + 1
                if self.patience is not None and idle >= self.patience:
                    status = f"nothing new in {idle} rounds of {self.n_starts} starts"
                    break
        except KeyboardInterrupt:
            status = INTERRUPTED
        return SearchResult(pool, unproven, status, spent, rounds, successes)

    def _round(self, index: int, found: torch.Tensor, generator: torch.Generator) -> list[_RoundOutcome]:
        observations = self.zero_test.observations
        n_components = observations.shape[1]
        if self.deflation is None:
            starts = torch.randn((self.n_starts, n_components), generator=generator, dtype=torch.float64)
            starts, stretching = normalized(starts, dim=1), torch.eye(n_components, dtype=torch.float64)
        else:
            starts = draw_starts(observations, found, self.n_starts, generator)
            strength = 1.0 if self.optimizer.wants_white else self.deflation[index % len(self.deflation)]
            stretching = stretch(found, strength)
        parts = starts.split(self.starts_per_task)
        seeds = torch.randint(2**31 - 1, (len(parts) + 1,), generator=generator).tolist()
        tasks = [
            delayed(_run_starts)(self, part, found, stretching, seed)
            for part, seed in zip(parts, seeds[1:], strict=True)
        ]
        if self.deflation is not None and n_components / 2 <= len(found) < n_components:
            tasks.append(delayed(_run_anchors)(self, found, seeds[0]))
        return Parallel(n_jobs=self.n_jobs)(tasks)


def _same_columns(before: torch.Tensor, after: torch.Tensor) -> bool:
    if len(before) != len(after):
        return False
    return bool(((before @ after.T).abs().amax(dim=1) > SAME_COSINE).all())


def _run_starts(
    search: Search, starts: torch.Tensor, found: torch.Tensor, stretching: torch.Tensor, seed: int
) -> _RoundOutcome:
    with undisturbed():  # this may be another process, or another thread of Python
        return _prove(search, _optimize(search, starts, stretching), found, torch.Generator().manual_seed(seed))


def _run_anchors(search: Search, found: torch.Tensor, seed: int) -> _RoundOutcome:
    with undisturbed():
        generator = torch.Generator().manual_seed(seed)
        anchors = draw_anchors(found, search.n_anchors, generator)
        ends = anchored_directions(search.zero_test.observations, anchors, search.surrogate, generator)
        return _prove(search, ends, found, generator)


def _prove(search: Search, ends: torch.Tensor, found: torch.Tensor, generator: torch.Generator) -> _RoundOutcome:
    """Drop duplicates and hopeless ends, round, estimate from all zero rows, and keep what is proven."""
    test = search.zero_test
    unproven = UnprovenPool(ends[:0], ends[:0, 0])
    unproven.add(ends, _mean_surrogate(search, ends))
    near_zero = ((ends @ test.observations.T).abs() < search.near_zero).sum(dim=1)
    order = torch.argsort(near_zero, descending=True, stable=True)
    ends, near_zero = ends[order], near_zero[order]
    keep = distinct(torch.cat([found, ends]))[len(found) :]
    if not search.surrogate.smooth:
        n_rows, n_components = test.observations.shape
        chance, acceptance = search.near_zero_chance, search.near_zero_acceptance
        keep &= near_zero >= required_zeros(n_rows, n_components, chance, acceptance)
    if not keep.any():
        return _RoundOutcome(ends[:0], near_zero[:0], unproven, len(ends), _count_successes(ends, found))
    candidates = test.refit(search.rounding.round(test.observations, ends[keep], generator))
    accepted, n_zeros = test.accept(candidates)
    proven = candidates[accepted]
    unproven.add(candidates[~accepted], _mean_surrogate(search, candidates[~accepted]))
    successes = _count_successes(ends, torch.cat([found, proven]))
    return _RoundOutcome(proven, n_zeros[accepted], unproven, len(ends), successes)


def _mean_surrogate(search: Search, directions: torch.Tensor) -> torch.Tensor:
    return search.surrogate.value(directions @ search.zero_test.observations.T).mean(dim=1)


def _optimize(search: Search, starts: torch.Tensor, stretching: torch.Tensor) -> torch.Tensor:
    if starts.shape[1] == 1:  # a sphere of two points
        return starts
    stretched = (search.zero_test.observations @ stretching).to(search.device)
    starts = normalized(torch.linalg.solve(stretching, starts.T).T, dim=1).to(search.device)
    ends = search.optimizer.minimize(stretched, starts, search.surrogate).directions.cpu()
    return normalized(ends @ stretching.T, dim=1)


def _count_successes(ends: torch.Tensor, columns: torch.Tensor) -> int:
    return int(((ends @ columns.T).abs() > SAME_COSINE).any(dim=1).sum())

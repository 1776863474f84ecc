"""The activation search as a strategy: stages, one after the other, until the columns found are a basis."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from sklearn.base import clone
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from sparsedl.arrays import draw_generator
from sparsedl.progress import progress_bar
from sparsedl_fl.candidates import Candidates
from sparsedl_fl.directions._base import Directions
from sparsedl_fl.directions.activation.alternation import Alternation
from sparsedl_fl.directions.activation.descent import Descent, NaturalForward
from sparsedl_fl.directions.activation.knowledge import Knowledge
from sparsedl_fl.directions.activation.projection import Projection
from sparsedl_fl.directions.activation.reflection import Reflection
from sparsedl_fl.directions.activation.scaled import ScaledReflection
from sparsedl_fl.directions.activation.schedule import Lead, Schedule
from sparsedl_fl.directions.activation.two_views import ScaledForward, TwoViews
from sparsedl_fl.matching import first_choice
from sparsedl_fl.problem import LayerProblem
from sparsedl_fl.theory import expect
from sparsedl_fl.views import SpansBehind

INTERRUPTED = "interrupted"

INEXACT_COLUMN = 0.03
"""Overlap of an input with the column of another one up to which that will do to lead starts elsewhere; chosen on one
batch of 50 behind 200 sigmoids, not varied."""

N_TYPICAL = 16
"""Draws that show how large activations are."""


@dataclass(eq=False, repr=False, kw_only=True)
class ActivationDirections(Directions):
    """Searches for each input's pre-activations and gradients together: a unit is on where the other is not zero.

    Each column found takes one dimension from the forward view, exactly, and one from the column view, as its own
    input becomes determined; the search speeds up as it goes. It needs the weights and the bias at which the gradient
    was taken, and an activation with a flat part behind the layer. A direction is accepted by its zeros alone (see
    `sparsedl.zeros.ZeroTest`): wrong weights cost time and never the truth.

    Parameters
    ----------
    use_next_layer : bool, default=True
        Whether to use ``next_weight_grad`` where the gradient has it: a third view, with which batches come back that
        are too large for one layer.
    patience : int, default=120
        Rounds without a new column or input after which the search gives up. The schedule takes a share of it for
        small batches, as long as nothing is found at all, and for the last columns.
    max_starts : int or None, default=None
        Budget of starts; None sets none, and the patience ends the search.
    max_seconds : float or None, default=None
        A cap on the time; what it cuts short depends on the machine, and the status says so.
    schedule : Schedule or None, default=None
        The order of the stages; None takes its defaults.
    alternation, reflection, projection, scaled, descent : default=None
        The stages, an `Alternation`, `Reflection`, `Projection`, `ScaledReflection` and `Descent`; None takes their
        defaults.
    fallback_reach : float, default=0.25
        Share of the width up to which the fallback may find a batch of which this search found less than half.
    fallback : Directions or None, default=None
        What looks for the rest, on its own budget, when this search gives up before its budget is spent. Not for a last
        column, which follows from the others.

    References
    ----------
    SPEAR (2024), Theorems 3.1 to 3.5, for the two views. The search is this project's own.
    """

    use_next_layer: bool = True
    patience: int = 120
    max_starts: int | None = None
    max_seconds: float | None = None
    schedule: Schedule | None = None
    alternation: Alternation | None = None
    reflection: Reflection | None = None
    projection: Projection | None = None
    scaled: ScaledReflection | None = None
    descent: Descent | None = None
    fallback_reach: float = 0.25
    fallback: Directions | None = None

    def propose(self, problem: LayerProblem, *, random_state: Any = None, verbose: bool = False) -> Candidates:
        """Search until the columns found are a basis, or the patience or a budget is spent."""
        for name in ("patience", "max_starts", "max_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")
        random_state = check_random_state(random_state)
        generator = draw_generator(random_state)
        behind = problem.behind if self.use_next_layer else None
        if behind is None and not problem.activation.has_flat_part:
            return Candidates.empty(problem.batch_size)
        budget = _Budget(self.max_starts, self.max_seconds)
        with progress_bar(verbose, total=problem.batch_size, description="columns") as report:
            found = self._search(problem, behind, budget, generator, report)
            if behind is not None and found.is_complete and self._may_be_mixtures(problem, found):
                alone = self._search(problem, None, budget, generator, report)
                n_fitting = first_choice(problem, found).fits.sum()
                is_better = alone.is_complete and first_choice(problem, alone).fits.sum() > n_fitting
                found = replace(alone if is_better else found, n_starts=budget.spent)
        # A last column without enough zeros for a proof follows from the others, and from no other search.
        is_over = found.status.startswith(INTERRUPTED) or budget.ended
        b = problem.batch_size
        is_hopeless = not problem.activation.has_flat_part or (
            b > self.fallback_reach * problem.width and found.n_missing > b / 2
        )
        if is_over or found.n_missing <= 1 or self.fallback is None or is_hopeless:
            return found
        rest = self.fallback.propose(problem, random_state=random_state, verbose=verbose)
        return found.joined(rest.directions, problem.factors, rest)

    def _may_be_mixtures(self, problem: LayerProblem, found: Candidates) -> bool:
        """Return whether a basis may hold mixtures of inputs that switch the same units: these are in the span too."""
        if INTERRUPTED in found.status or not problem.activation.has_flat_part:
            return False
        if first_choice(problem, found).fits.all():
            return False
        # The patterns of inputs with much in common say nothing without the span.
        return not _stage(self.scaled, ScaledReflection()).applies(TwoViews.of_problem(problem))

    def _search(
        self,
        problem: LayerProblem,
        behind: SpansBehind | None,
        budget: _Budget,
        generator: torch.Generator,
        report: Callable[[int, str], None],
    ) -> Candidates:
        """Search two views, or more where there are spans behind."""
        factors, idle = problem.factors, 0
        rounds = _Rounds(self, problem, behind, generator)
        knowledge, is_determined = rounds.knowledge, _is_determined(problem, behind)
        try:
            # One thread: the matrices are small, and spinning threads cost more than they bring.
            with threadpool_limits(limits=1):
                while (
                    not knowledge.is_complete
                    and not budget.ended
                    and idle < rounds.schedule.patience(self.patience, knowledge, is_determined)
                ):
                    is_new, n_starts = rounds.run_next()
                    budget.spend(n_starts)
                    idle = 0 if is_new else idle + 1
                    report(knowledge.n_found, f"{budget.spent} starts, {knowledge.n_hits} in a column")
                knowledge.settle()
            status = "complete" if knowledge.is_complete else budget.ended or f"nothing new in {idle} rounds"
        except KeyboardInterrupt:
            status = INTERRUPTED
        views = _views_in_words(behind)
        directions = knowledge.pool.directions.numpy().T
        return Candidates(
            directions=directions,
            n_zeros=factors.zeros(directions).sum(axis=0),
            status=f"{status} (views: {views})",
            n_starts=budget.spent,
            n_successes=knowledge.n_hits,
            inputs=knowledge.inputs.numpy(),
        )


class _Rounds:
    """One round after the other, on the knowledge of all before."""

    def __init__(
        self,
        search: ActivationDirections,
        problem: LayerProblem,
        behind: SpansBehind | None,
        generator: torch.Generator,
    ) -> None:
        has_flat_part = problem.activation.has_flat_part
        self.schedule = _stage(search.schedule, Schedule())
        self.alternation = _stage(search.alternation, Alternation())
        self.reflection = _stage(search.reflection, Reflection())
        self.projection = _stage(search.projection, Projection() if has_flat_part else Projection.for_two_slopes())
        is_straight = problem.activation.is_piecewise_linear
        self.scaled = _stage(search.scaled, ScaledReflection() if is_straight else ScaledReflection.for_smooth())
        self.descent = _stage(search.descent, Descent())
        self.activation, self.behind, self.generator = problem.activation, behind, generator
        views, self.whole = TwoViews.of_problem(problem), None
        if behind is not None and not self.activation.has_flat_part:
            forward = ScaledForward.of(views)
            self.behind = behind.scaled_to(forward.preactivations(forward.draw(N_TYPICAL, generator)))
            self.whole = NaturalForward.of(forward, self.behind, generator, self.descent.n_probes)
        # Where ends are polished without what is known, columns need not be exact.
        precision = {} if self.whole is None else {"own_product": INEXACT_COLUMN}
        self.knowledge = Knowledge(problem.factors.zero_test, views, problem.column, **precision)
        self.lead = None if behind is None else Lead(self._ways(views), self.schedule.optimism)
        self.ridges = self.schedule.cycle_of_ridges()
        self.is_wide, self.n_starts = self.schedule.is_wide(problem.width), self.schedule.n_starts(problem.width)
        self.n_rounds, self.n_descents = 0, self.n_starts

    def _ways(self, views: TwoViews) -> list[str]:
        """Return which stages the spans behind have for this activation, the likeliest first."""
        if not self.activation.is_piecewise_linear:
            return ["descent", "scale"]
        if self.behind.spans[0].up_to_scale() is None:
            return ["scale", "descent"]
        without_scale = ["span", "columns"] if self.activation.has_flat_part else ["span"]
        return ["scale", *without_scale] if self.scaled.applies(views) else without_scale

    def run_next(self) -> tuple[bool, int]:
        """Run a round; return whether it brought anything new, and the starts it took."""
        knowledge, spent, is_new = self.knowledge, 0, False
        self.n_rounds += 1
        if not self.activation.has_flat_part:
            n_before, n_starts = knowledge.n_known, self.n_descents
            is_new = self._by_spans()
            self.n_descents = self.schedule.n_descents(knowledge.n_known - n_before, 2 * self.n_starts)
            return is_new, n_starts
        knowledge.deflate_columns()
        if self.behind is not None:
            is_new, spent = self._by_spans(), 2 * self.n_starts
        elif self.is_wide:
            is_new, spent = self._by_reflections(), 2 * self.n_starts
        if not is_new and (spent == 0 or self.n_rounds % self.schedule.alternation_every == 0):
            ends = self.alternation.run(knowledge.views, self.n_starts, next(self.ridges), self.generator)
            is_new, spent = knowledge.add_columns(ends), spent + self.n_starts
        return is_new, spent

    def _by_spans(self) -> bool:
        knowledge, n_starts, span = self.knowledge, 2 * self.n_starts, self.behind.spans[0]
        n_before, views = knowledge.n_known, knowledge.views
        if self.lead.leader == "descent":
            found = self.descent.run(views, self.behind, self.n_descents, self.generator, whole=self.whole)
        elif self.lead.leader == "scale":
            n_starts = n_starts if self.activation.is_piecewise_linear else self.n_starts
            found = self.descent.run(views, self.behind, n_starts, self.generator, self.scaled, self.whole)
        else:
            leader = self.reflection if self.lead.leader == "columns" else None
            found = self.projection.run(views, span.up_to_scale(), n_starts, self.generator, leader)
        is_new = knowledge.add_inputs(*found)
        self.lead.learn(knowledge.n_known - n_before)
        return is_new

    def _by_reflections(self) -> bool:
        ends = self.reflection.run(self.knowledge.views, 2 * self.n_starts, self.generator)
        return self.knowledge.add_columns(ends)


def _stage(given: Any, default: Any) -> Any:
    return default if given is None else clone(given)


class _Budget:
    """Starts, and an optional cap on the time."""

    def __init__(self, max_starts: int | None, max_seconds: float | None) -> None:
        self.max_starts, self.max_seconds, self.spent = max_starts, max_seconds, 0
        self.deadline = None if max_seconds is None else time.monotonic() + max_seconds

    def spend(self, n_starts: int) -> None:
        """Count starts."""
        self.spent += n_starts

    @property
    def ended(self) -> str:
        """What has ended the search, in words, or nothing."""
        if self.max_starts is not None and self.spent >= self.max_starts:
            return f"the budget of {self.max_starts} starts is spent"
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return f"cut short by the cap of {self.max_seconds:g} seconds"
        return ""


def _is_determined(problem: LayerProblem, behind: SpansBehind | None) -> bool:
    """Return whether there are equations enough for the batch, if half of the units are off."""
    if not problem.activation.has_flat_part:
        return behind.identifies
    n_live = int(problem.factors.zero_test.distinct_rows.sum())
    return expect(problem.batch_size, n_live, behind is not None and behind.identifies).is_determined


def _views_in_words(behind: SpansBehind | None) -> str:
    if behind is None:
        return "gradient and weights"
    n_spans = len(behind.spans)
    return "gradient, weights and " + (
        "the next layer's gradient" if n_spans == 1 else f"the gradients of {n_spans} layers behind"
    )

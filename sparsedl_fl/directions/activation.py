"""The activation search as a strategy: stages, one after the other, until the columns found are a basis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from sklearn.base import clone
from sklearn.utils import check_random_state

from sparsedl.arrays import draw_generator
from sparsedl.progress import progress_bar
from sparsedl_fl.certify.candidates import Candidates, SearchEnd
from sparsedl_fl.certify.sparsity_matching import first_choice
from sparsedl_fl.constraints import Constraint, DownstreamSubspaces, Stacked
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions._base import Directions
from sparsedl_fl.search import (
    SampleCoordinates,
    ScaledReflection,
)
from sparsedl_fl.search.budget import Budget, effort
from sparsedl_fl.search.loop import search
from sparsedl_fl.search.settings import SearchSettings
from sparsedl_fl.search.settling import settle
from sparsedl_fl.search.state import SearchState
from sparsedl_fl.search.withheld.withheld_state import WithheldSearch, WithheldState


@dataclass(eq=False, repr=False, kw_only=True)
class ActivationDirections(SearchSettings, Directions):
    """Searches for each input's pre-activations and gradients together: a unit is on where the other is not zero.

    Each column found takes one dimension from the forward view, exactly, and one from the column view, as its own
    input becomes determined; the search speeds up as it goes. It needs the weights and the bias at which the gradient
    was taken, and an activation with a flat part; without one it goes by the gradients of the layers behind, or by the
    rest of the network, and what fulfils more equations than chance explains is an input. A direction is accepted by
    its zeros alone (see `sparsedl.zeros.ZeroTest`): wrong weights cost time and never the truth.

    Parameters
    ----------
    use_next_layer : bool, default=True
        Whether to use ``next_weight_grad`` where the gradient has it: a third view, with which batches come back that
        are too large for one layer.
    use_rest : bool, default=True
        Whether to use the rest of the network where the gradient has it and the activation has no flat part: behind
        those, no other gradient is needed.
    patience : int, default=120
        Rounds without a new column or input after which the search gives up. The schedule takes a share of it for
        small batches, as long as nothing is found at all, and for the last columns.
    max_starts : int or None, default=None
        Budget of starts; None sets none, and the patience ends the search.
    max_effort : float or None, default=None
        Budget of starts by what they cost (see `sparsedl_fl.search.budget`): about seconds on one core,
        counted from sizes, so that it ends the search at the same start everywhere.
    max_seconds : float or None, default=None
        A cap on the time; what it cuts short depends on the machine, and the status says so.
    schedule : Schedule or None, default=None
        The order of the stages; None takes its defaults.
    alternation, reflection, projection, scaled, paired, class_starts, descent : default=None
    joint_refinement, input_zeros : default=None
        The numerics: `Alternation`, `Reflection`, `Projection`, `ScaledReflection`, `PairedReflection`, `ClassStarts`,
        `Descent`, `JointRefinement` and `InputZeros`; None takes their defaults.
    withheld : WithheldSearch or None, default=None
        What goes first behind activations that are straight around zero; None takes its defaults.
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
    max_effort: float | None = None
    max_seconds: float | None = None
    withheld: WithheldSearch | None = None
    fallback_reach: float = 0.25
    fallback: Directions | None = None

    def propose(self, problem: LayerProblem, *, random_state: Any = None, verbose: bool = False) -> Candidates:
        """Search until the columns found are a basis, or the patience or a budget is spent."""
        for name in ("patience", "max_starts", "max_effort", "max_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")
        random_state = check_random_state(random_state)
        generator = draw_generator(random_state)
        behind = problem.subspaces if self.use_next_layer else None
        equations = self._equations(problem, behind)
        if equations is None and not problem.activation.has_flat_part:
            return Candidates.empty(problem.batch_size)
        price = effort(1, problem.batch_size, problem.width, problem.activation)
        budget = Budget(price, self.max_starts, self.max_effort, self.max_seconds)
        with progress_bar(verbose, total=problem.batch_size, description="columns") as report:
            found = self._by_withheld(problem, budget, generator, report)
            if found is not None and found.inputs is not None:  # whole, though columns of one label are nearly parallel
                return _with_its_end(found, budget)
            found = self._search(problem, behind, equations, budget, generator, report)
            if behind is not None and found.is_complete and self._may_be_mixtures(problem, found):
                alone = self._search(problem, None, None, budget, generator, report)
                n_fitting = first_choice(problem, found).fits.sum()
                is_better = alone.is_complete and first_choice(problem, alone).fits.sum() > n_fitting
                found = replace(alone if is_better else found, n_starts=budget.spent)
        # A last column without enough zeros for a proof follows from the others, and from no other search.
        found = _with_its_end(found, budget)
        is_over = found.end in (SearchEnd.INTERRUPTED, SearchEnd.CUT)
        b = problem.batch_size
        is_hopeless = not problem.activation.has_flat_part or (
            b > self.fallback_reach * problem.width and found.n_missing > b / 2
        )
        if is_over or found.n_missing <= 1 or self.fallback is None or is_hopeless:
            return found
        rest = self.fallback.propose(problem, random_state=random_state, verbose=verbose)
        return found.joined(rest.directions, problem.factors, rest)

    def _by_withheld(
        self, problem: LayerProblem, budget: Budget, generator: torch.Generator, report: Callable[[int, str], None]
    ) -> Candidates | None:
        """Return what is found by what units withhold, or None where that does not apply."""
        share = self.patience / ActivationDirections.patience
        default = WithheldSearch(patience=max(1, round(WithheldSearch.patience * share)))
        withheld = default if self.withheld is None else clone(self.withheld)
        if not (self.use_next_layer and self.use_rest and withheld.applies(problem)):
            return None
        return search(
            WithheldState(withheld, problem, budget.ended, generator), budget, generator, report, WithheldState.settle
        )

    def _equations(self, problem: LayerProblem, behind: DownstreamSubspaces | None) -> Constraint | None:
        """Return what pre-activations of inputs fulfil, beside zeros: spans cost less than the rest of the network."""
        if problem.activation.has_flat_part or not self.use_rest or (behind is not None and behind.identifies):
            return behind
        return Stacked.of(behind, problem.tail)

    def _may_be_mixtures(self, problem: LayerProblem, found: Candidates) -> bool:
        """Return whether a basis may hold mixtures of inputs that switch the same units: these are in the span too."""
        if found.end is SearchEnd.INTERRUPTED or not problem.activation.has_flat_part:
            return False
        if first_choice(problem, found).fits.all():
            return False
        # The patterns of inputs with much in common say nothing without the span.
        return not (self.scaled or ScaledReflection()).applies(SampleCoordinates.of_problem(problem))

    def _state(
        self,
        problem: LayerProblem,
        behind: DownstreamSubspaces | None,
        equations: Constraint | None,
        generator: torch.Generator,
    ) -> SearchState:
        """Return the state of a search with nothing known."""
        return SearchState(self, problem, behind, equations, generator, self.patience)

    def _search(
        self,
        problem: LayerProblem,
        behind: DownstreamSubspaces | None,
        equations: Constraint | None,
        budget: Budget,
        generator: torch.Generator,
        report: Callable[[int, str], None],
    ) -> Candidates:
        """Search two views, or more where there are further equations."""
        state = self._state(problem, behind, equations, generator)
        return search(state, budget, generator, report, settle)


def _with_its_end(found: Candidates, budget: Budget) -> Candidates:
    """Return candidates that say what cut the search, or a part of it, short."""
    if not budget.cut or found.end is SearchEnd.CUT:
        return found
    status = f"{found.status}, {budget.cut} before all was tried"
    return replace(found, status=status, end=SearchEnd.worst(found.end, SearchEnd.CUT))

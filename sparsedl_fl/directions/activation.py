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
from sparsedl_fl.directions.strategy import Directions
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
    """Searches for each input's pre-activations and gradient together: the gradient is zero at inactive units.

    Each column found takes one dimension from the unknowns of the other columns, and, once its input is determined, one
    from those of the other inputs (deflation), so that the search becomes faster. It needs the weights and the bias at
    which the gradient was taken, and an activation with a zero-slope region. For other activations it uses the
    gradients of downstream layers or the network tail; a candidate that fulfils more equations than chance explains is
    an input. Directions are accepted by their zeros (see `sparsedl.zeros.ZeroTest`), or by these and what the next
    layer's weights send back (see `SentBackGradients`): with wrong weights less is found, and nothing wrong certified.

    Parameters
    ----------
    use_next_layer : bool, default=True
        Whether to use ``next_weight_grad`` and ``next_weight`` where they are given: further constraints, with which
        batches are recovered that are too large for one layer.
    use_rest : bool, default=True
        Whether to use the network tail where it is given and the activation has no zero-slope region: it needs no other
        gradient.
    patience : int, default=120
        Rounds without a new column or input after which the search gives up. The schedule uses a share of it for small
        batches, while nothing is found yet, and for the last columns.
    max_starts : int or None, default=None
        Budget of starts; None sets none, and the patience ends the search.
    max_effort : float or None, default=None
        Budget of starts by their cost (see `sparsedl_fl.search.budget`): about seconds on one core, but computed from
        sizes, so that the search ends at the same start on any machine.
    max_seconds : float or None, default=None
        Cap on the time; where it ends the search depends on the machine, and the status says so.
    schedule : Schedule or None, default=None
        The order of the stages; None takes its defaults.
    dictionary, alternation, reflection, sent_back, projection, scaled, paired, class_starts, descent : default=None
    joint_refinement, input_zeros : default=None
        The numerics: `DictionaryDescent`, `Alternation`, `Reflection`, `SentBackReflection`, `Projection`,
        `ScaledReflection`, `PairedReflection`, `ClassStarts`, `Descent`, `JointRefinement` and `InputZeros`; None takes
        their defaults.
    withheld : WithheldSearch or None, default=None
        The first search for activations that are linear around zero, such as Hardtanh; None takes its defaults.
    fallback_reach : float, default=0.25
        Share of the width up to which the fallback may find a batch of which this search found less than half.
    fallback : Directions or None, default=None
        What searches for missing columns, on its own budget, when this search gives up before its budget is spent. Not
        used for a last column, which follows from the others.

    References
    ----------
    SPEAR (2024), Theorems 3.1 to 3.5, for zeros and low rank. The search is this project's own.
    """

    patience: int = 120
    max_starts: int | None = None
    max_effort: float | None = None
    max_seconds: float | None = None
    withheld: WithheldSearch | None = None
    fallback_reach: float = 0.25
    fallback: Directions | None = None

    def propose(self, problem: LayerProblem, *, random_state: Any = None, verbose: bool = False) -> Candidates:
        """Search until the columns found are a basis, or the patience or a budget is used up."""
        for name in ("patience", "max_starts", "max_effort", "max_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")
        random_state = check_random_state(random_state)
        generator = draw_generator(random_state)
        subspaces = problem.subspaces if self.use_next_layer else None
        equations = self._equations(problem, subspaces)
        if equations is None and not problem.activation.has_flat_part:
            return Candidates.empty(problem.batch_size)
        price = effort(1, problem.batch_size, problem.width, problem.activation)
        budget = Budget(price, self.max_starts, self.max_effort, self.max_seconds)
        with progress_bar(verbose, total=problem.batch_size, description="columns") as report:
            found = self._by_withheld(problem, budget, generator, report)
            if (
                found is not None and found.inputs is not None
            ):  # the whole batch, although columns of one label are nearly parallel
                return _with_its_end(found, budget)
            found = self._search(problem, subspaces, equations, budget, generator, report)
            if subspaces is not None and found.is_complete and self._may_be_mixtures(problem, found):
                alone = self._search(problem, None, None, budget, generator, report)
                n_fitting = first_choice(problem, found).fits.sum()
                is_better = alone.is_complete and first_choice(problem, alone).fits.sum() > n_fitting
                found = replace(alone if is_better else found, n_starts=budget.spent)
        # A last column with too few zeros to be certified follows from the others, and no other search would find it.
        found = _with_its_end(found, budget)
        is_over = found.end in (SearchEnd.INTERRUPTED, SearchEnd.CUT)
        b = problem.batch_size
        is_hopeless = not problem.activation.has_flat_part or (
            b > self.fallback_reach * problem.width and found.n_missing > b / 2
        )
        if is_over or found.n_missing <= 1 or self.fallback is None or is_hopeless:
            return found
        further = self.fallback.propose(problem, random_state=random_state, verbose=verbose)
        return found.joined(further.directions, problem.factors, further)

    def _by_withheld(
        self, problem: LayerProblem, budget: Budget, generator: torch.Generator, report: Callable[[int, str], None]
    ) -> Candidates | None:
        """Return candidates of the search by units without a gradient, or None where it does not apply."""
        share = self.patience / ActivationDirections.patience
        default = WithheldSearch(patience=max(1, round(WithheldSearch.patience * share)))
        withheld = default if self.withheld is None else clone(self.withheld)
        if not (self.use_next_layer and self.use_rest and withheld.applies(problem)):
            return None
        return search(
            WithheldState(withheld, problem, budget.ended, generator), budget, generator, report, WithheldState.settle
        )

    def _equations(self, problem: LayerProblem, subspaces: DownstreamSubspaces | None) -> Constraint | None:
        """Return constraints besides zeros: activation subspaces cost less than the network tail."""
        if problem.activation.has_flat_part or not self.use_rest or (subspaces is not None and subspaces.identifies):
            return subspaces
        return Stacked.of(subspaces, problem.tail)

    def _may_be_mixtures(self, problem: LayerProblem, found: Candidates) -> bool:
        """Return whether a basis may hold mixtures of inputs with the same active units, as the subspace does."""
        if found.end is SearchEnd.INTERRUPTED or not problem.activation.has_flat_part:
            return False
        if first_choice(problem, found).fits.all():
            return False
        # Without the activation subspace the active units of inputs with much in common say nothing.
        return not (self.scaled or ScaledReflection()).applies(SampleCoordinates.of_problem(problem))

    def _state(
        self,
        problem: LayerProblem,
        subspaces: DownstreamSubspaces | None,
        equations: Constraint | None,
        generator: torch.Generator,
    ) -> SearchState:
        """Return the state of a search without known samples."""
        return SearchState(self, problem, subspaces, equations, generator, self.patience)

    def _search(
        self,
        problem: LayerProblem,
        subspaces: DownstreamSubspaces | None,
        equations: Constraint | None,
        budget: Budget,
        generator: torch.Generator,
        report: Callable[[int, str], None],
    ) -> Candidates:
        """Search by zeros and low rank, and by further equations where there are any."""
        state = self._state(problem, subspaces, equations, generator)
        return search(state, budget, generator, report, settle)


def _with_its_end(found: Candidates, budget: Budget) -> Candidates:
    """Return candidates whose status says what ended the search, or a part of it, early."""
    if not budget.cut or found.end is SearchEnd.CUT:
        return found
    status = f"{found.status}, {budget.cut} before the search was complete"
    return replace(found, status=status, end=SearchEnd.worst(found.end, SearchEnd.CUT))

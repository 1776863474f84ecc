"""Starts, descents and deflation, until all inputs of a crowded batch are there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from sparsedl.arrays import as_tensor, draw_generator
from sparsedl.process import one_thread
from sparsedl.progress import progress_bar
from sparsedl_fl.certify.candidates import SearchEnd
from sparsedl_fl.constraints import ActivationSubspace, DownstreamSubspaces
from sparsedl_fl.crowded.columns import NextColumns
from sparsedl_fl.crowded.problem import CrowdedProblem
from sparsedl_fl.search import Descent, JointRefinement, SampleCoordinates, ScaledReflection
from sparsedl_fl.search.budget import Budget, effort
from sparsedl_fl.search.columns_and_forward_pass import ScaledForward, leaders
from sparsedl_fl.search.natural_coordinates import NaturalCoordinates

__all__ = ["CrowdedSearch", "Found"]


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes
    ----------
    whitened : ndarray of shape (k, r)
        Rows ``p`` at their true scale.
    status : str
        How it ended, in words.
    n_starts, n_successes : int
        Starts spent, and those that ended at an input, new or not.
    end : SearchEnd, default=EXHAUSTED
        How it ended.
    """

    whitened: np.ndarray
    status: str
    n_starts: int
    n_successes: int
    end: SearchEnd = SearchEnd.EXHAUSTED


@dataclass(eq=False, repr=False, kw_only=True)
class CrowdedSearch(BaseEstimator):
    """Searches for the few numbers of an input whose activations lie in the span of the next layer's gradient.

    Reflections lead starts near to inputs, a descent takes them there. Each one found whose column in the next layer is
    determined takes a dimension from the span: without that most starts end at the same inputs, those that have least
    in common with the others.

    Parameters
    ----------
    n_starts : int, default=64
        Starts of a round.
    patience : int, default=40
        Rounds without a new input after which the search gives up; a round without the span of the others deflated, of
        every ``whole_every``.
    whole_every : int, default=4
        Since a column that is not exact hides inputs.
    same : float, default=1e-4
        Relative distance of two inputs, by their activations, up to which they are one.
    max_effort, max_seconds : float or None, default=None
        Budget of starts by what they cost, and a cap on the time, as of `ActivationDirections`.
    """

    n_starts: int = 64
    patience: int = 40
    whole_every: int = 4
    same: float = 1e-4
    max_effort: float | None = None
    max_seconds: float | None = None

    def run(self, problem: CrowdedProblem, *, random_state: Any = None, verbose: bool = False) -> Found:
        """Search until all inputs are found, or the patience or the time is spent."""
        generator = draw_generator(check_random_state(random_state))
        rounds, b, idle, status = _Rounds(self, problem, generator), problem.batch_size, 0, ""
        end = SearchEnd.COMPLETE
        width, activation = problem.layer.layer_gradient.shape[0], problem.layer.activation
        budget = Budget(effort(1, b, width, activation), None, self.max_effort, self.max_seconds)
        # One thread: the matrices are small, and spinning threads cost more than they bring.
        with progress_bar(verbose, total=b, description="inputs") as report, one_thread():
            try:
                while len(rounds.found) < b and not status:
                    idle = 0 if rounds.run_next(is_whole=idle % self.whole_every == self.whole_every - 1) else idle + 1
                    report(len(rounds.found), f"{rounds.n_starts} starts, {rounds.n_successes} at an input")
                    if idle >= self.patience:
                        status, end = f"nothing new in {idle} rounds", SearchEnd.EXHAUSTED
                    elif len(rounds.found) < b:
                        status = budget.ended(rounds.n_starts)
                        end = SearchEnd.CUT if status else end
            except KeyboardInterrupt:
                status, end = SearchEnd.INTERRUPTED.value, SearchEnd.INTERRUPTED
        views = "weights and the next layer's gradient, more inputs than features have dimensions"
        status = f"{status or 'complete'} (views: {views})"
        return Found(rounds.found.numpy(), status, rounds.n_starts, rounds.n_successes, end)

    def confirm(self, problem: CrowdedProblem, inputs: np.ndarray) -> Found:
        """Return inputs of shape (k, n) that are known, fitted to the views."""
        n = problem.layer.layer_gradient.shape[1]
        inputs = np.asarray([] if inputs is None else inputs, dtype=np.float64)
        if inputs.ndim != 2 or inputs.shape[1] != n or not np.isfinite(inputs).all():
            raise ValueError(f"inputs must be finite and of shape (any number, {n}), got shape {inputs.shape}")
        rounds = _Rounds(self, problem, torch.Generator().manual_seed(0))
        with one_thread():
            rounds.add(as_tensor(problem.whitened(inputs)))
        return Found(rounds.found.numpy(), "not needed (inputs given)", len(inputs), len(rounds.found))


class _Rounds:
    """One round after the other, on what is known."""

    def __init__(self, search: CrowdedSearch, problem: CrowdedProblem, generator: torch.Generator) -> None:
        activation = problem.layer.activation
        self.search, self.problem, self.generator = search, problem, generator
        self.reflection = ScaledReflection() if activation.is_piecewise_linear else ScaledReflection.for_smooth()
        self.descent, self.joint_refinement, self.columns = Descent(), JointRefinement(), NextColumns(problem)
        self.views, self.subspaces = SampleCoordinates.of_problem(problem.layer), problem.layer.subspaces
        forward = ScaledForward.of(self.views)
        typical = forward.preactivations(forward.draw(search.n_starts, generator))
        self.equations = self.subspaces.scaled_to(typical)
        self.natural = NaturalCoordinates.of(forward, self.equations, generator, self.descent.n_probes)
        self.found = torch.zeros((0, problem.layer.batch_size), dtype=torch.float64)
        self.n_starts = self.n_successes = 0
        self.others: DownstreamSubspaces = self.equations

    def run_next(self, is_whole: bool) -> bool:
        """Run a round, in the whole span or in that of the others; return whether it brought anything new."""
        equations = self.equations if is_whole else self.others
        starts = self.reflection.inputs(self.views, equations.first, self.search.n_starts, self.generator)
        self.n_starts += self.search.n_starts
        if len(starts) == 0:
            return False
        whole = self.natural
        ends, is_determined = self.descent.run(self.views, self.equations, starts, self.generator, whole, equations)
        ends = ends[is_determined]
        if len(ends) == 0 or not self.add(ends / (ends @ self.views.scale)[:, None]):
            return False
        self.others = self._without_those_found()
        return True

    def add(self, ends: torch.Tensor) -> bool:
        """Take in ends, at their true scale, that are proven once they are fitted; return whether any is new."""
        ends = self.joint_refinement.alone(self.natural, self.equations, ends)
        proven = self.subspaces.at(self.problem.preactivations(ends.numpy())).is_proof
        ends = ends[proven & ends.isfinite().all(dim=1)]
        self.n_successes += len(ends)
        together = torch.cat([self.found, ends])
        activations = self.problem.activations(together.numpy())
        own = torch.arange(len(together))
        is_new = leaders(activations, 1 - self.search.same**2 / 2) == own
        n_before, self.found = len(self.found), together[is_new][: self.problem.batch_size]
        return len(self.found) > n_before

    def _without_those_found(self) -> DownstreamSubspaces:
        """Return the equations with the first span left to the inputs that are not known."""
        first: ActivationSubspace = self.equations.spans[0]
        basis = self.columns.span_without(self.found)
        if basis.shape[1] == 0:
            return self.equations
        deflated = replace(first, basis=basis, duals=None)
        return replace(self.equations, spans=(deflated, *self.equations.spans[1:]))

"""The search for more samples than features: reflections, descents, and the next layer's columns for deflation."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl.process import one_thread
from sparsedl_fl.certify.candidates import Candidates, SearchEnd
from sparsedl_fl.constraints import DownstreamSubspaces
from sparsedl_fl.constraints.many_samples import ManySamplesProblem
from sparsedl_fl.constraints.next_columns import NextColumns
from sparsedl_fl.search.columns_and_forward_pass import SampleCoordinates, ScaledForward, leaders
from sparsedl_fl.search.descent import Descent
from sparsedl_fl.search.joint_refinement import JointRefinement
from sparsedl_fl.search.natural_coordinates import NaturalCoordinates
from sparsedl_fl.search.scaled_reflection import ScaledReflection
from sparsedl_fl.search.schedule import Schedule
from sparsedl_fl.search.stage import Proposals, Stage, State

__all__ = ["MANY_SAMPLES_STAGES", "ManySamplesState", "confirm_many_samples"]

PATIENCE = 40
"""Rounds without a new sample after which the search gives up; not varied."""

SAME = 1e-4
"""Relative distance of two samples, by their activations, up to which they are one; not varied."""


class ManySamplesState(State):
    """The state of a search for samples whose activations lie in the next layer's activation subspace.

    Each one found whose column in the next layer is determined takes a dimension from the subspace: without that most
    starts lead to the same samples, those that have least in common with the others.

    Parameters
    ----------
    problem : ManySamplesProblem
        The layer, and the next one.
    generator : torch.Generator
        Source of randomness.

    Attributes
    ----------
    found : torch.Tensor of shape (k, r)
        Rows ``p`` of samples, at their true scale.
    equations, others : DownstreamSubspaces
        Constraints of all samples, and of those that are not known yet.
    """

    def __init__(self, problem: ManySamplesProblem, generator: torch.Generator) -> None:
        layer, self.problem = problem.layer, problem
        self.schedule, self.is_wide, self.is_flat = Schedule(), False, layer.activation.has_flat_part
        self.n_starts = self.schedule.n_starts(0)
        is_piecewise = layer.activation.is_piecewise_linear
        self.reflection = ScaledReflection() if is_piecewise else ScaledReflection.for_smooth()
        self.descent, self.joint_refinement, self.columns = Descent(), JointRefinement(), NextColumns(problem)
        self.coordinates, self.subspaces = SampleCoordinates.of_problem(layer), layer.subspaces
        forward = ScaledForward.of(self.coordinates)
        typical = forward.preactivations(forward.draw(self.n_starts, generator))
        self.equations: DownstreamSubspaces = self.subspaces.scaled_to(typical)
        self.natural = NaturalCoordinates.of(forward, self.equations, generator, self.descent.n_probes)
        self.found = torch.zeros((0, layer.batch_size), dtype=torch.float64)
        self.others, self._n_hits = self.equations, 0

    patience = property(lambda self: PATIENCE)
    n_known = n_found = property(lambda self: len(self.found))
    n_hits = property(lambda self: self._n_hits)
    is_complete = property(lambda self: len(self.found) == self.problem.batch_size)
    used_in_words = "weights and the next layer's gradient, for more records than features"

    def take(self, proposals: Proposals) -> bool:
        """Add samples, at their true scale, that are certified once they are fitted; return whether any is new."""
        if len(proposals.inputs) == 0:
            return False
        fitted = self.joint_refinement.alone(self.natural, self.equations, proposals.inputs)
        certified = self.subspaces.at(self.problem.preactivations(fitted.numpy())).is_proof
        fitted = fitted[certified & fitted.isfinite().all(dim=1)]
        self._n_hits += len(fitted)
        together = torch.cat([self.found, fitted])
        activations = self.problem.activations(together.numpy())
        is_first = leaders(activations, 1 - SAME**2 / 2) == torch.arange(len(together))
        n_before, self.found = len(self.found), together[is_first][: self.problem.batch_size]
        if len(self.found) == n_before:
            return False
        basis = self.columns.subspace_without(self.found)
        if basis.shape[1]:
            first, *further = self.equations.levels
            self.others = replace(self.equations, levels=(replace(first, basis=basis, duals=None), *further))
        return True

    def candidates(self, status: str, end: SearchEnd, n_starts: int) -> Candidates:
        """Return the samples found, without columns."""
        found = Candidates.empty(self.found.shape[1])
        counts = {"n_starts": n_starts, "n_successes": self.n_hits}
        return replace(found, inputs=self.found.numpy(), status=status, end=end, **counts)


class OthersReflection(Stage[ManySamplesState]):
    """Douglas-Rachford and descents by the activation subspaces of those that are not known yet."""

    name: ClassVar[str] = "reflection of the others"

    def requires(self, state: ManySamplesState) -> str | None:
        """Require nothing: the problem has it all."""
        return None

    def n_starts(self, state: ManySamplesState) -> int:
        """Return the starts of a round."""
        return state.n_starts

    def equations(self, state: ManySamplesState) -> DownstreamSubspaces:
        """Return the constraint of the starts."""
        return state.others

    def propose(self, state: ManySamplesState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run random starts."""
        equations, coordinates = self.equations(state), state.coordinates
        starts = state.reflection.inputs(coordinates, equations.first, n_starts, generator)
        if len(starts) == 0:
            return Proposals(inputs=starts)
        given = coordinates, state.equations, starts, generator, state.natural, equations
        inputs, is_determined = state.descent.run(*given)
        inputs = inputs[is_determined]
        return Proposals(inputs=inputs / (inputs @ coordinates.scale)[:, None])


class WholeReflection(OthersReflection):
    """The same by the subspaces of all, without deflation: an inexact column hides samples."""

    name: ClassVar[str] = "reflection of all"

    def equations(self, state: ManySamplesState) -> DownstreamSubspaces:
        """Return the constraint of all samples."""
        return state.equations


MANY_SAMPLES_STAGES: dict[str, Stage[ManySamplesState]] = {
    stage.name: stage for stage in (OthersReflection(), WholeReflection())
}
"""The stages of that search by name."""


def confirm_many_samples(problem: ManySamplesProblem, inputs: np.ndarray) -> Candidates:
    """Return given samples, of shape (k, n), fitted to the constraints.

    Raises
    ------
    ValueError
        If they are not finite, or of another shape.
    """
    n = problem.layer.layer_gradient.shape[1]
    inputs = np.asarray([] if inputs is None else inputs, dtype=np.float64)
    if inputs.ndim != 2 or inputs.shape[1] != n or not np.isfinite(inputs).all():
        raise ValueError(f"inputs must be finite and of shape (any number, {n}), got shape {inputs.shape}")
    state = ManySamplesState(problem, torch.Generator().manual_seed(0))
    with one_thread():
        state.take(Proposals(inputs=as_tensor(problem.whitened(inputs))))
    return state.candidates("not needed (inputs given)", SearchEnd.EXHAUSTED, len(inputs))

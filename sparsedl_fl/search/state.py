"""The state of a search: the constraints of a layer's samples, known samples, and fits of single ones."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.certify.candidates import Candidates, SearchEnd
from sparsedl_fl.constraints import Constraint, DownstreamSubspaces, Stacked, TailGradient
from sparsedl_fl.constraints.label_terms import likely_labels
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.search.columns_and_forward_pass import SampleCoordinates, ScaledForward
from sparsedl_fl.search.exchanged_columns import add_last_column
from sparsedl_fl.search.knowledge import Knowledge
from sparsedl_fl.search.natural_coordinates import NaturalCoordinates
from sparsedl_fl.search.remaining import Remaining
from sparsedl_fl.search.settings import SearchSettings
from sparsedl_fl.search.single_fits import SingleFits
from sparsedl_fl.search.stage import Proposals, State
from sparsedl_fl.theory import Attack, is_determined

__all__ = ["SearchState"]

INEXACT_COLUMN = 0.03
"""Overlap of an input with the column of another one up to which deflation by that column still leads starts to other
samples; chosen on one batch of 50 at 200 sigmoids, not varied."""

N_TYPICAL = 16
"""Number of prior draws that give the scale of activations."""

Minimisers = tuple[torch.Tensor, torch.Tensor]


class SearchState(State):
    """The state of one search, which its stages read and its loop changes.

    Parameters
    ----------
    settings : SearchSettings
        The numerics.
    problem : LayerProblem
        The layer's gradient.
    subspaces : DownstreamSubspaces or None
        The activation subspaces of the downstream layers, where these are used.
    equations : Constraint or None
        All constraints of samples other than zeros; None where there are zeros alone.
    generator : torch.Generator
        Source of randomness.
    patience : int
        Rounds without anything new after which to give up on a large batch (see `Schedule.patience`).

    Attributes
    ----------
    knowledge : Knowledge
        Columns and samples found.
    remaining : Remaining
        The constraints by name, deflated by known samples: "first" is the next layer's activation subspace,
        "subspaces" the constraint of descents, "tail" the network tail alone, "everything" both.
    undeflated : SampleCoordinates
        The unknowns without deflation.
    all_levels : DownstreamSubspaces or None
        All activation subspaces, where the first has too few equations.
    tail, sent_back : TailGradient or None, SentBackGradients or None
        The constraint of the network tail; and what the next layer can send back, where there are no subspaces.
    natural : NaturalCoordinates or None
        The unknowns without deflation, in which candidates are polished.
    fits : SingleFits
        Fits of single samples.
    """

    def __init__(
        self,
        settings: SearchSettings,
        problem: LayerProblem,
        subspaces: DownstreamSubspaces | None,
        equations: Constraint | None,
        generator: torch.Generator,
        patience: int,
    ) -> None:
        self.problem, self.activation, self.subspaces = problem, problem.activation, subspaces
        self.numerics = numerics = settings.resolved(problem, subspaces is not None)
        self.schedule, self.whole_patience = numerics.schedule, patience
        self.is_flat = problem.activation.has_flat_part
        self.is_wide = numerics.schedule.is_wide(problem.width)
        self.n_starts = numerics.schedule.n_starts(problem.width)
        self.undeflated = coordinates = SampleCoordinates.of_problem(problem)
        # Beyond half of the width neither the first subspace nor zeros determine a sample.
        self.is_beyond_half = subspaces is not None and problem.is_beyond_half
        self.all_levels = problem.all_subspaces if self.is_beyond_half or (self.is_flat and self.is_alike) else None
        self.tail = problem.tail if numerics.use_tail and (self.all_levels is not None or not self.is_flat) else None
        self.natural: NaturalCoordinates | None = None
        self.sent_back = problem.sent_back if numerics.use_next_layer and subspaces is None else None
        self.uses_tail, everything = equations is not subspaces, None
        if equations is not None and not self.is_flat:
            forward = ScaledForward.of(coordinates)
            equations = _at_typical_scale(equations, forward, generator)
            self.natural = NaturalCoordinates.of(forward, equations, generator, numerics.descent.n_probes)
            if subspaces is not None and self.tail is not None:
                everything = Stacked((_at_typical_scale(subspaces, forward, generator), self.tail))
        self.equations = equations
        by_name = {
            "first": None if subspaces is None else subspaces.first,
            "subspaces": equations,
            "tail": self.tail if subspaces is not None and self.tail is not None and self.tail.identifies else None,
            "everything": everything,
        }
        self.remaining = Remaining(by_name, as_tensor(problem.factors.left))
        self.knowledge = self._nothing_known(coordinates)
        self.is_head = problem.layer_gradient.tail.is_of_head
        is_small = problem.width <= numerics.joint_refinement.widest or self.is_head
        self.is_exact = equations is not None and problem.batch_size > 1 and is_small
        by_subspaces = equations if self.all_levels is None else self.all_levels
        self.last = by_subspaces if self.is_exact and everything is None else everything
        natural = self.natural
        if self.is_exact and natural is None:
            forward = ScaledForward.of(coordinates)
            natural = NaturalCoordinates.of(forward, equations, generator, numerics.descent.n_probes)
        given = coordinates, numerics.joint_refinement, numerics.descent, natural, self.last, subspaces, self.all_levels
        self.fits = SingleFits(*given, is_exact=self.is_exact)
        self.errors: torch.Tensor | None = None
        self.ridges = numerics.schedule.cycle_of_ridges()

    def _nothing_known(self, coordinates: SampleCoordinates) -> Knowledge:
        precision: dict[str, float] = {}
        if self.natural is not None:  # candidates are polished without deflation: columns need not be exact
            precision = {"own_product": INEXACT_COLUMN}
        if self.numerics.input_zeros is not None:
            precision = {"own_product": INEXACT_COLUMN, "surely_off": self.numerics.input_zeros.margins[0]}
        columns = tuple(constraint for constraint in (self.tail, self.problem.column) if constraint is not None)
        return Knowledge(
            self.problem.factors.zero_test, coordinates, columns, trusts_downstream=self.is_beyond_half, **precision
        )

    @cached_property
    def is_alike(self) -> bool:
        """Whether there are activation subspaces, and samples with so much in common that zeros determine little."""
        return self.subspaces is not None and self.numerics.scaled.applies(self.undeflated)

    @property
    def coordinates(self) -> SampleCoordinates:
        """The unknowns, deflated by known columns and, with a zero-slope region, by estimates of their samples."""
        if self.is_flat:
            self.knowledge.deflate_columns()
        return self.knowledge.coordinates

    @property
    def is_shared(self) -> bool:
        """Whether the layer is wide, and stages leave the state as it is: with stored weights they add columns."""
        return self.is_wide and self.numerics.input_zeros is None

    def prepared(self) -> SearchState:
        """Return it with the samples of known columns estimated."""
        assert self.coordinates is self.knowledge.coordinates  # asked for here, before several ask at once
        return self

    @property
    def is_ample(self) -> bool:
        """Whether the next layer's activation subspace has enough equations for a descent by it alone."""
        return self.subspaces is not None and self.numerics.scaled.is_ample(self.remaining.first.levels[0])

    @property
    def n_known(self) -> int:
        """Number of known columns and samples."""
        return self.knowledge.n_known

    @property
    def n_found(self) -> int:
        """Number of columns."""
        return self.knowledge.n_found

    @property
    def n_hits(self) -> int:
        """Number of starts that found one."""
        return self.knowledge.n_hits

    @property
    def is_complete(self) -> bool:
        """Whether the columns or the samples are a basis."""
        return self.knowledge.is_complete

    @property
    def patience(self) -> int:
        """Fewer rounds where little is known, or hardly anything is left."""
        by_weights, given = self.sent_back is not None, (self.whole_patience, self.knowledge)
        return self.schedule.patience(*given, self._is_determined, self.is_beyond_half, by_weights)

    @cached_property
    def _is_determined(self) -> bool:
        """Whether the batch is in range, if half of the units are inactive."""
        if not self.is_flat or self.sent_back is not None:
            return (self.sent_back or self.equations).identifies
        has_subspace = self.equations is not None and self.equations.identifies
        n_live = int(self.problem.factors.zero_test.distinct_rows.sum())
        return is_determined(self.problem.batch_size, n_live, Attack.SPAN if has_subspace else Attack.ZEROS)

    def take(self, proposals: Proposals) -> bool:
        """Add columns that their zeros certify, and samples."""
        return self.knowledge.add(proposals.inputs, proposals.is_determined, proposals.columns, proposals.proven)

    @property
    def used_in_words(self) -> str:
        """What the search uses, in words."""
        subspaces, words = self.all_levels or self.subspaces, ["gradient", "weights"]
        if subspaces is not None:
            words.append(subspaces.in_words)
        elif self.sent_back is not None:
            words.append("the next layer's weights")
        if self.uses_tail:
            words.append("the model up to its loss")
        return " and ".join([", ".join(words[:-1]), words[-1]])

    def candidates(self, status: str, end: SearchEnd, n_starts: int) -> Candidates:
        """Return the columns and samples found."""
        directions, knowledge = self.knowledge.columns.numpy().T, self.knowledge
        return Candidates(
            directions=directions,
            n_zeros=self.problem.factors.zeros(directions).sum(axis=0),
            status=status,
            n_starts=n_starts,
            n_successes=knowledge.n_hits,
            inputs=knowledge.inputs.numpy(),
            errors=None if self.errors is None else self.errors.numpy(),
            end=end,
        )

    @property
    def tail_of_head(self) -> TailGradient:
        """The constraint of the samples of a head."""
        assert isinstance(self.equations, TailGradient)
        return self.equations

    @cached_property
    def is_linked(self) -> bool:
        """Whether gradients can be backpropagated through all downstream layers, from a label to this one."""
        if not (self.is_beyond_half and self.numerics.use_tail and self.problem.tail is not None):
            return False
        is_whole = len((self.all_levels or self.subspaces).levels) >= len(self.problem.layer_gradient.layers) - 1
        return is_whole and self.problem.backward is not None and self.problem.backward.is_two_pieces

    @cached_property
    def likely_labels(self) -> TailGradient:
        """The network tail with the label likelihood, which takes a pass through the loss for each label."""
        forward = ScaledForward.of(self.undeflated)
        drawn = forward.preactivations(forward.draw(N_TYPICAL, torch.Generator().manual_seed(0)))
        tail, b = self.problem.tail, self.problem.batch_size
        mean = as_tensor(self.problem.factors.left @ self.problem.forward.scale)
        return replace(tail, shares=likely_labels(tail.rest, tail.terms, drawn, mean, b))

    def deflate(self) -> bool:
        """Deflate the constraints by known samples; return whether that alone found the last column."""
        knowledge = self.knowledge
        is_last = add_last_column(knowledge, self.sent_back)
        if self.equations is not None and not is_last:
            self.remaining.leave_out(knowledge, self.fits)
        return is_last

    def descended(self, starts: torch.Tensor, at_first: Constraint, generator: torch.Generator) -> Minimisers:
        """Return the minimisers of descents from some ``p`` at their true scale, and which are isolated."""
        if len(starts) == 0:
            return starts, torch.zeros(0, dtype=torch.bool)
        return self.numerics.descent.run(self.coordinates, self.equations, starts, generator, self.natural, at_first)

    def settled(self, minimisers: Minimisers, *, is_fitted: bool = False) -> Minimisers:
        """Fit candidates of an activation without a zero-slope region to all constraints, and keep plausible ones.

        Columns are as exact as their samples; ``is_fitted`` says that a stage has fitted them already.
        """
        inputs, is_determined = minimisers
        if not (is_fitted or self.is_ample):
            inputs = self.fits.fitted(inputs)
            if self.is_head:
                near = self.fits.near_columns(inputs, self.tail_of_head)
                inputs, is_determined = inputs[near], is_determined[near]
        # One in a wrong linear piece spoils all fits.
        if self.subspaces is not None and self.activation.is_piecewise_linear:
            kept = self.fits.near_subspaces(inputs, self.knowledge.inputs, math.inf)
            inputs, is_determined = inputs[kept], is_determined[kept]
        return inputs, is_determined

    def confirmed(self, minimisers: Minimisers, generator: torch.Generator) -> Minimisers:
        """Keep candidates of a zero-slope region that subspaces confirm; with stored weights, refine by zeros first."""
        if not self.is_exact:
            return minimisers
        inputs, is_determined = self.fits.fitted(minimisers[0]), minimisers[1]
        input_zeros, knowledge = self.numerics.input_zeros, self.knowledge
        if input_zeros is None:
            kept = self.fits.near_subspaces(inputs, knowledge.inputs) | ~is_determined
            return inputs[kept], is_determined[kept]
        exact, rough = input_zeros.run(self.problem.zeros_of_inputs, knowledge, inputs, generator)
        is_near = self.fits.near_subspaces(rough, knowledge.inputs)
        knowledge.add_trusted(input_zeros.columns(knowledge, rough[~is_near]))
        return torch.cat([exact, rough[is_near]]), torch.ones(len(exact) + int(is_near.sum()), dtype=torch.bool)


def _at_typical_scale(constraint: Constraint, forward: ScaledForward, generator: torch.Generator) -> Constraint:
    return constraint.scaled_to(forward.preactivations(forward.draw(N_TYPICAL, generator)))

"""One round of the activation search after the other, on the knowledge of all before."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from functools import cached_property

import torch

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl_fl.activations import Identity
from sparsedl_fl.constraints import RestView, SpansBehind, Together, View
from sparsedl_fl.constraints.label_terms import likely_labels
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.search.alternation import Alternation
from sparsedl_fl.search.class_starts import ClassStarts
from sparsedl_fl.search.columns_and_forward_pass import ScaledForward, TwoViews
from sparsedl_fl.search.deflation import Others
from sparsedl_fl.search.descent import Descent
from sparsedl_fl.search.input_zeros import OwnZeros
from sparsedl_fl.search.joint_refinement import LastFit
from sparsedl_fl.search.natural_coordinates import NaturalForward
from sparsedl_fl.search.paired_reflection import PairedReflection
from sparsedl_fl.search.projection import Projection
from sparsedl_fl.search.reflection import Reflection
from sparsedl_fl.search.scaled_reflection import ScaledReflection
from sparsedl_fl.search.scheduler import Schedule
from sparsedl_fl.search.settings import SearchSettings, stage
from sparsedl_fl.search.single_fits import InputFits
from sparsedl_fl.search.state import Knowledge

__all__ = ["Rounds"]

INEXACT_COLUMN = 0.03
"""Overlap of an input with the column of another one up to which that will do to lead starts elsewhere; chosen on one
batch of 50 behind 200 sigmoids, not varied."""

N_TYPICAL = 16
"""Draws that show how large activations are."""


class Rounds:
    """The stages on one problem.

    Parameters
    ----------
    search : SearchSettings
        The stages and the schedule.
    problem : LayerProblem
        What is known from the start.
    behind : SpansBehind or None
        The spans behind the layer, where these are used.
    equations : View or None
        All that pre-activations of inputs fulfil beside zeros; None where there are zeros alone.
    generator : torch.Generator
        Source of randomness.
    """

    def __init__(
        self,
        search: SearchSettings,
        problem: LayerProblem,
        behind: SpansBehind | None,
        equations: View | None,
        generator: torch.Generator,
    ) -> None:
        has_flat_part = problem.activation.has_flat_part
        self.schedule = stage(search.schedule, Schedule())
        self.is_wide = self.schedule.is_wide(problem.width)
        self.alternation = stage(search.alternation, Alternation())
        self.reflection = stage(search.reflection, Reflection())
        self.projection = stage(search.projection, Projection() if has_flat_part else Projection.for_two_slopes())
        is_straight = problem.activation.is_piecewise_linear
        self.scaled = stage(search.scaled, ScaledReflection() if is_straight else ScaledReflection.for_smooth())
        self.paired = stage(search.paired, PairedReflection())
        self.class_starts = stage(search.class_starts, ClassStarts())
        self.descent = stage(search.descent, Descent.for_rest() if behind is None else Descent())
        self.activation, self.behind, self.equations, self.generator = problem.activation, behind, equations, generator
        # Beyond half of the width neither the first span nor zeros say enough of an input.
        self.is_beyond = behind is not None and problem.is_beyond
        views, self.whole, self.everything = TwoViews.of_problem(problem), None, None
        is_alike = has_flat_part and behind is not None and self.scaled.applies(views)
        self.chain = problem.chain if self.is_beyond or is_alike else None
        self.problem, spans = problem, self.chain or behind
        uses_rest = self.is_beyond and search.use_rest and problem.rest is not None
        is_linked = uses_rest and len(spans.spans) >= len(problem.layer_gradient.layers) - 1
        self.has_way_back = is_linked and problem.backward is not None and problem.backward.is_two_pieces
        rest = problem.rest if search.use_rest and (self.chain is not None or not has_flat_part) else None
        if equations is not None and not has_flat_part:
            forward = ScaledForward.of(views)
            self.equations = equations.scaled_to(forward.preactivations(forward.draw(N_TYPICAL, generator)))
            self.whole = NaturalForward.of(forward, self.equations, generator, self.descent.n_probes)
            if behind is not None and rest is not None:
                spans = behind.scaled_to(forward.preactivations(forward.draw(N_TYPICAL, generator)))
                self.everything = Together((spans, rest))
        # Where ends are polished without what is known, columns need not be exact.
        precision = {} if self.whole is None else {"own_product": INEXACT_COLUMN}
        self.own_zeros = stage(search.own_zeros, OwnZeros()) if problem.is_stored and has_flat_part else None
        if self.own_zeros is not None:
            precision = {"own_product": INEXACT_COLUMN, "surely_off": self.own_zeros.margins[0]}
        columns = tuple(view for view in (rest, problem.column) if view is not None)
        self.knowledge = Knowledge(problem.factors.zero_test, views, columns, trusts_behind=self.is_beyond, **precision)
        by_rest = rest if behind is not None and rest is not None and rest.identifies else None
        self.descended = {
            "descent": self.equations,
            "smoothed": self.equations,
            "rest": by_rest,
            "all": self.everything,
        }
        self.others = Others(self.descended, behind, as_tensor(problem.factors.left))
        self.last_fit = stage(search.last_fit, LastFit())
        is_small = problem.width <= self.last_fit.widest or isinstance(problem.activation, Identity)
        self.is_exact = equations is not None and problem.batch_size > 1 and is_small
        by_spans = self.equations if self.chain is None else self.chain
        self.last = by_spans if self.is_exact and self.everything is None else self.everything
        natural = self.whole
        if self.is_exact and natural is None:
            natural = NaturalForward.of(ScaledForward.of(views), self.equations, generator, self.descent.n_probes)
        given = views, self.last_fit, self.descent, natural, self.last, behind, self.chain
        self.fits = InputFits(*given, is_exact=self.is_exact)
        self.rest, self.left, self.errors = None if has_flat_part else rest, as_tensor(problem.factors.left), None
        self.n_inputs = problem.layer_gradient.shape[1]
        self.lead = None if equations is None else self.schedule.lead(self._ways(views), problem.width)
        self.ridges, self.n_starts = self.schedule.cycle_of_ridges(), self.schedule.n_starts(problem.width)
        self.n_rounds, self.n_descents = 0, defaultdict(lambda: self.n_starts)

    @cached_property
    def likely_labels(self) -> RestView:
        """The labels that the batch seems to have: a way through the loss for each that there is."""
        forward = ScaledForward.of(TwoViews.of_problem(self.problem))
        places = forward.preactivations(forward.draw(N_TYPICAL, torch.Generator().manual_seed(0)))
        rest, b = self.problem.rest, self.problem.batch_size
        mean = as_tensor(self.problem.factors.left @ self.problem.forward.scale)
        return replace(rest, shares=likely_labels(rest.rest, rest.terms, places, mean, b))

    def _ways(self, views: TwoViews) -> list[str]:
        """Return which stages the equations have for this activation, the likeliest first."""
        if self.behind is None:
            first = ["classes"] if isinstance(self.activation, Identity) else []
            # Between kinks of straight pieces hardly anything tells where an input is: no descent ends there.
            has_kinks = self.equations.has_kinks and not self.activation.is_piecewise_linear
            return [*first, "descent", *(["smoothed"] if has_kinks else [])]
        if not self.activation.is_piecewise_linear:
            # The rest of the network costs more than the spans, and says more where these say little: behind wide
            # layers nearly every start by it ends at an input, and most by the spans at the same few.
            with_rest = [] if self.everything is None else ["all"]
            if not self.behind.first.identifies:
                return [*with_rest, "descent", "scale"]
            alone = [] if self.descended["rest"] is None else ["rest"]
            narrow = ["descent", *alone, *with_rest, "scale"]
            return ["scale", *alone, "descent", *with_rest] if self.is_wide else narrow
        if self.is_beyond:
            return [*(["pairs"] if self.has_way_back else []), "scale" if self.chain is None else "chain"]
        if self.behind.spans[0].up_to_scale() is None:
            return ["scale", "descent"]
        if not self.activation.has_flat_part:
            return ["scale", "span"] if self.scaled.applies(views) else ["span", "scale", "descent"]
        chain = [] if self.chain is None else ["chain"]
        return ["scale", *chain, "span", "columns"] if self.scaled.applies(views) else ["span", "columns"]

    def run_next(self) -> tuple[bool, int]:
        """Run a round; return whether it brought anything new, and the starts it took."""
        knowledge, spent, is_new = self.knowledge, 0, False
        self.n_rounds += 1
        if not self.activation.has_flat_part:
            leader = self.lead.leader
            n_before, n_starts = knowledge.n_known, self.n_descents[leader]
            is_new = self._by_equations()
            n_new = knowledge.n_known - n_before
            self.n_descents[leader] = self.schedule.n_descents(n_new, n_starts, 2 * self.n_starts)
            return is_new, n_starts
        if knowledge.trusts_behind and knowledge.n_found == knowledge.inputs.shape[1] - 1 and knowledge.repeat_behind():
            return True, 0
        knowledge.deflate_columns()
        if self.equations is not None:
            is_new, spent = self._by_equations(), 2 * self.n_starts
        elif self.is_wide:
            is_new, spent = self._by_reflections(), 2 * self.n_starts
        if not is_new and not self.is_beyond and (spent == 0 or self.n_rounds % self.schedule.alternation_every == 0):
            ends = self.alternation.run(knowledge.views, self.n_starts, next(self.ridges), self.generator)
            is_new, spent = knowledge.add_columns(ends), spent + len(ends)
        return is_new, spent

    def settle(self) -> None:
        """Fit the inputs once more to all that is known, and their columns to their zeros."""
        knowledge = self.knowledge
        is_whole = knowledge.n_found == knowledge.inputs.shape[1]
        if knowledge.trusts_behind and is_whole:  # zeros are hardly enough for any column, and would blur it
            knowledge.repeat_behind()
            return
        if not self.activation.has_flat_part:
            knowledge.inputs = self.fits.fitted(knowledge.inputs)
        elif self.own_zeros is not None and self.own_zeros.settle(self.problem.zeros_of_inputs, knowledge):
            return
        elif self.is_exact and is_whole:
            self.fits.fit_inputs_of_columns(knowledge)
        if self.rest is not None and self.is_exact and len(knowledge.inputs) == knowledge.inputs.shape[1]:
            self._fit_together()
        knowledge.settle()

    def _fit_together(self) -> None:
        """Fit a whole batch at once, and draw how exact it is then."""
        knowledge = self.knowledge
        inputs = self.fits.at_scale(knowledge.inputs)
        together = self.last_fit.together(self.whole, self.last, self.rest, self.left, inputs)
        if not self.last.at(self.fits.preactivations(together.inputs)).is_inside.all():
            return
        knowledge.inputs = normalized(together.inputs, dim=1)
        # Of a head few rows hold nearly all of the noise: draws of a common size were up to 20 times too small.
        is_head = isinstance(self.activation, Identity)
        changes = None if is_head else self.last_fit.errors(together, self.generator)
        if changes is not None:
            squares = (changes * knowledge.views.sizes).square().sum(dim=2).mean(dim=0)
            self.errors = (squares / self.n_inputs).sqrt()

    def _by_equations(self) -> bool:
        knowledge, leader = self.knowledge, self.lead.leader
        views, n_before, n_starts, share = knowledge.views, knowledge.n_known, 2 * self.n_starts, 1.0
        self.others.leave_out(knowledge, self.fits)
        is_ample = self.behind is not None and self.scaled.is_ample(self.others["first"].spans[0])
        if leader in self.descended:
            n_descents = self.n_descents[leader]
            share = n_descents / n_starts
            given = views, self.descended[leader], n_descents, self.generator, self.whole, self.others[leader]
            inputs, is_determined = self.descent.run(*given, is_smoothed=leader == "smoothed")
        elif leader == "classes":
            starts, labels = self.class_starts.run(views, self.equations, self.fits.at_scale(knowledge.inputs))
            is_last = views.free.shape[1] <= 1  # it follows from the others, whichever its label is
            of_labels = self.equations if is_last else replace(self.equations, labels=labels)
            inputs, is_determined = self._descended(starts, of_labels)
        elif leader == "scale":
            n_starts = self.scaled.n_starts or n_starts
            starts = self.scaled.inputs(views, self.others["first"], n_starts, self.generator)
            inputs, is_determined = self._descended(starts, self.others["first" if is_ample else "descent"])
        elif leader in ("chain", "pairs"):
            if leader == "pairs":
                n_starts, given = self.paired.n_starts, (self.fits.spans, self.problem.backward)
                likely = self.likely_labels.without_labels(self.fits.preactivations(knowledge.inputs))
                labels = likely.weighted(n_starts, 0.0, self.generator).labels
                starts = self.paired.inputs(views, *given, labels, self.generator)
            else:
                n_starts = self.scaled.n_starts_of_chain
                starts = self.scaled.inputs(views, self.chain, n_starts, self.generator)
            if self.is_exact:
                inputs, is_determined = self.fits.fitted_to_spans(starts)
            else:
                inputs, is_determined = self._descended(starts, self.fits.spans)
        else:
            reflection = self.reflection if leader == "columns" else None
            span = self.others["first"].spans[0].up_to_scale()
            inputs, is_determined = self.projection.run(views, span, n_starts, self.generator, reflection)
            if not self.activation.has_flat_part:  # with two slopes an end may be in the first span by a wrong one
                inputs, is_determined = self._descended(self.fits.at_scale(inputs), self.others["descent"])
        if not self.activation.has_flat_part:
            if not is_ample and leader not in ("rest", "all"):  # columns are as exact as their inputs
                inputs = self.fits.fitted(inputs)
                if isinstance(self.activation, Identity):
                    near = self.fits.near_columns(inputs, self.equations)
                    inputs, is_determined = inputs[near], is_determined[near]
            if self.behind is not None and self.activation.is_piecewise_linear:  # one in a wrong piece spoils all fits
                kept = self.fits.near_spans(inputs, knowledge.inputs, math.inf)
                inputs, is_determined = inputs[kept], is_determined[kept]
        elif leader in ("span", "columns") and views.free.shape[1] > 1:  # a last one follows from all columns
            is_determined &= self.fits.near_spans(inputs, knowledge.inputs)
        elif leader in ("scale", "chain", "pairs") and self.is_exact:
            inputs, is_determined = self._confirmed(self.fits.fitted(inputs), is_determined)
        is_new = knowledge.add_inputs(inputs, is_determined)
        self.lead.learn((knowledge.n_known - n_before) / share)
        return is_new

    def _confirmed(self, inputs: torch.Tensor, is_determined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ends that the spans confirm; of stored weights those that zeros confirm come first."""
        if self.own_zeros is None:
            kept = self.fits.near_spans(inputs, self.knowledge.inputs) | ~is_determined
            return inputs[kept], is_determined[kept]
        exact, rough = self.own_zeros.run(self.problem.zeros_of_inputs, self.knowledge, inputs, self.generator)
        is_near = self.fits.near_spans(rough, self.knowledge.inputs)
        self.knowledge.add_trusted(self.own_zeros.columns(self.knowledge, rough[~is_near]))
        return torch.cat([exact, rough[is_near]]), torch.ones(len(exact) + int(is_near.sum()), dtype=torch.bool)

    def _descended(self, starts: torch.Tensor, at_first: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs that descents from some ``p`` at their true scale end at, and which are determined."""
        if len(starts) == 0:
            return starts, torch.zeros(0, dtype=torch.bool)
        return self.descent.run(self.knowledge.views, self.equations, starts, self.generator, self.whole, at_first)

    def _by_reflections(self) -> bool:
        return self.knowledge.add_columns(self.reflection.run(self.knowledge.views, 2 * self.n_starts, self.generator))

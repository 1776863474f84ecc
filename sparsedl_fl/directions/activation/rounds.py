"""One round of the activation search after the other, on the knowledge of all before."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from sklearn.base import clone
from torch.nn.functional import normalize

from sparsedl.arrays import as_tensor
from sparsedl_fl.activations import Identity
from sparsedl_fl.directions.activation.alternation import Alternation
from sparsedl_fl.directions.activation.by_classes import ClassStarts
from sparsedl_fl.directions.activation.descent import Descent
from sparsedl_fl.directions.activation.knowledge import Knowledge
from sparsedl_fl.directions.activation.last_fit import LastFit
from sparsedl_fl.directions.activation.natural import NaturalForward
from sparsedl_fl.directions.activation.projection import Projection
from sparsedl_fl.directions.activation.reflection import Reflection
from sparsedl_fl.directions.activation.scaled import ScaledReflection
from sparsedl_fl.directions.activation.schedule import Schedule
from sparsedl_fl.directions.activation.two_views import ScaledForward, TwoViews
from sparsedl_fl.problem import LayerProblem
from sparsedl_fl.views import FAR, SpansBehind, Together, View
from sparsedl_fl.views.span import ROUNDING_SHARE

if TYPE_CHECKING:
    from sparsedl_fl.directions.activation.search import ActivationDirections

__all__ = ["Rounds", "stage"]

INEXACT_COLUMN = 0.03
"""Overlap of an input with the column of another one up to which that will do to lead starts elsewhere; chosen on one
batch of 50 behind 200 sigmoids, not varied."""

N_TYPICAL = 16
"""Draws that show how large activations are."""


def stage(given: Any, default: Any) -> Any:
    """Return a copy of the stage given, or the default."""
    return default if given is None else clone(given)


class Rounds:
    """The stages on one problem.

    Parameters
    ----------
    search : ActivationDirections
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
        search: ActivationDirections,
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
        self.class_starts = stage(search.class_starts, ClassStarts())
        self.descent = stage(search.descent, Descent())
        self.activation, self.behind, self.equations, self.generator = problem.activation, behind, equations, generator
        self.is_ample = behind is not None and self.scaled.is_ample(behind.spans[0])
        # Beyond half of the width neither the first span nor zeros say enough of an input.
        self.is_beyond = has_flat_part and behind is not None and not behind.first.identifies
        views, self.whole, self.everything = TwoViews.of_problem(problem), None, None
        is_alike = has_flat_part and behind is not None and self.scaled.applies(views)
        self.chain = problem.chain if self.is_beyond or is_alike else None
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
        columns = tuple(view for view in (rest, problem.column) if view is not None)
        self.knowledge = Knowledge(problem.factors.zero_test, views, columns, trusts_behind=self.is_beyond, **precision)
        by_rest = rest if behind is not None and rest is not None and rest.identifies else None
        self.descended = {"descent": self.equations, "rest": by_rest, "all": self.everything}
        self.last_fit = stage(search.last_fit, LastFit())
        is_small = problem.width <= self.last_fit.widest or isinstance(problem.activation, Identity)
        self.is_exact = equations is not None and problem.batch_size > 1 and is_small
        by_spans = self.equations if self.chain is None else self.chain
        self.last = by_spans if self.is_exact and self.everything is None else self.everything
        self.natural = self.whole
        if self.is_exact and self.whole is None:
            forward = ScaledForward.of(views)
            self.natural = NaturalForward.of(forward, self.equations, generator, self.descent.n_probes)
        self.rest, self.left, self.errors = None if has_flat_part else rest, as_tensor(problem.factors.left), None
        self.n_inputs = problem.layer_gradient.shape[1]
        self.lead = None if equations is None else self.schedule.lead(self._ways(views), problem.width)
        self.ridges, self.n_starts = self.schedule.cycle_of_ridges(), self.schedule.n_starts(problem.width)
        self.n_rounds, self.n_descents = 0, defaultdict(lambda: self.n_starts)

    def _ways(self, views: TwoViews) -> list[str]:
        """Return which stages the equations have for this activation, the likeliest first."""
        if self.behind is None:
            return ["classes", "descent"] if isinstance(self.activation, Identity) else ["descent"]
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
            return ["chain"] if self.chain is not None else ["scale"]
        if self.behind.spans[0].up_to_scale() is None:
            return ["scale", "descent"]
        if not self.activation.has_flat_part:
            return ["scale", "span"] if self.scaled.applies(views) else ["span", "descent"]
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
        if not self.activation.has_flat_part:
            knowledge.inputs = self._refined(knowledge.inputs)
        elif self.is_exact and knowledge.n_found == knowledge.inputs.shape[1]:
            self._fit_inputs_of_columns()
        if self.rest is not None and self.is_exact and len(knowledge.inputs) == knowledge.inputs.shape[1]:
            self._fit_together()
        knowledge.settle()

    def _fit_inputs_of_columns(self) -> None:
        """Fit the inputs that all columns together make to the spans, where they lie beside these.

        One column that is a little of another takes some inputs away, and all the others stay. Where zeros determine
        all columns their inputs are more exact than the spans alone would have them.
        """
        inputs = normalize(torch.linalg.inv(self.knowledge.views.found.T), dim=1)
        is_beside = self.behind.at(self._preactivations(self._at_scale(inputs))).beyond_noise > FAR
        if is_beside.any():
            fitted = self._exact(inputs[is_beside], torch.ones(int(is_beside.sum()), dtype=torch.bool))
            self.knowledge.add_inputs(*fitted)

    def _fit_together(self) -> None:
        """Fit a whole batch at once, and draw how exact it is then."""
        knowledge = self.knowledge
        given = self.whole, self.last, self.rest, self.left
        together = self.last_fit.together(*given, self._at_scale(knowledge.inputs))
        if not self.last.at(self._preactivations(together)).is_inside.all():
            return
        knowledge.inputs = normalize(together, dim=1)
        # Of a head few rows hold nearly all of the noise: draws of a common size were up to 20 times too small.
        is_head = isinstance(self.activation, Identity)
        changes = None if is_head else self.last_fit.errors(*given, together, self.generator)
        if changes is not None:
            squares = (changes * knowledge.views.sizes).square().sum(dim=2).mean(dim=0)
            self.errors = (squares / self.n_inputs).sqrt()

    def _at_scale(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs / (inputs @ self.knowledge.views.scale)[:, None]

    def _preactivations(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.knowledge.views.forward.T + self.knowledge.views.kink

    def _refined(self, inputs: torch.Tensor) -> torch.Tensor:
        """Fit inputs once more to all that is known, where they fit that too."""
        if self.last is None or len(inputs) == 0:
            return inputs
        if self.is_exact:
            refined = self.last_fit.alone(self.natural, self.last, self._at_scale(inputs))
        else:
            refined = self._at_scale(self.descent.refined(self.whole, self.last, self._at_scale(inputs)))
        fits = self.last.at(self._preactivations(refined)).is_inside
        return torch.where(fits[:, None], normalize(refined, dim=1), inputs)

    def _exact(self, inputs: torch.Tensor, is_determined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs fitted exactly, without those that are then further from the spans than rounding explains.

        A descent among straight pieces may end in a wrong one, next to an input, or before its last step: at 8 times
        the noise where the others leave 0.3, off by 2e-4. True ones had up to 1.7 (LeNet after 2000 steps); the least
        limit of 2 is not varied.
        """
        inputs = self._refined(inputs)
        together = torch.cat([inputs, self.knowledge.inputs])
        spans = self.behind if self.chain is None else self.chain
        here = spans.at(self._preactivations(self._at_scale(together)))
        over_noise, is_likely = here.over_noise[: len(inputs)], here.is_likely[: len(inputs)]
        usual = here.over_noise[here.is_likely].nanmedian().item()
        kept = (is_likely & (over_noise <= min(ROUNDING_SHARE, max(2.0, FAR * usual)))) | ~is_determined
        return inputs[kept], is_determined[kept]

    def _as_near_as_noise(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return which inputs of a head lie no further from the column space than noise takes them.

        Between two inputs of one class there is a valley of ends that nearly fulfil all equations. Of 40 batches of 40
        inputs in 100 classes one such end was found, at 20 times the noise; all right ones were below 1.4.
        """
        here = self.equations.at(self._preactivations(self._at_scale(inputs)))
        return here.distances <= FAR * here.expected

    def _by_equations(self) -> bool:
        knowledge, leader = self.knowledge, self.lead.leader
        n_before, n_starts, share = knowledge.n_known, 2 * self.n_starts, 1.0
        views = knowledge.views
        if leader in self.descended:
            found = self._preactivations(self._at_scale(knowledge.inputs))
            elsewhere = self.descended[leader].besides(found)
            n_descents = self.n_descents[leader]
            share = n_descents / n_starts
            inputs, is_determined = self.descent.run(views, elsewhere, n_descents, self.generator, self.whole)
        elif leader == "classes":
            starts, labels = self.class_starts.run(views, self.equations, self._at_scale(knowledge.inputs))
            is_last = views.free.shape[1] <= 1  # it follows from the others, whichever its label is
            of_labels = self.equations if is_last else replace(self.equations, labels=labels)
            inputs, is_determined = self._descended(starts, of_labels)
        elif leader == "scale":
            n_starts = n_starts if self.activation.is_piecewise_linear else self.n_starts
            starts = self.scaled.inputs(views, self.behind.first, n_starts, self.generator)
            inputs, is_determined = self._descended(starts, self.behind.first if self.is_ample else self.equations)
        elif leader == "chain":
            n_starts = self.scaled.n_starts_of_chain
            starts = self.scaled.inputs(views, self.chain, n_starts, self.generator)
            inputs, is_determined = self._fitted(starts) if self.is_exact else self._descended(starts, self.chain)
        else:
            reflection = self.reflection if leader == "columns" else None
            span = self.behind.spans[0].up_to_scale()
            inputs, is_determined = self.projection.run(views, span, n_starts, self.generator, reflection)
            if not self.activation.has_flat_part:  # with two slopes an end may be in the first span by a wrong one
                inputs, is_determined = self._descended(self._at_scale(inputs), self.equations)
        if self.activation.has_flat_part:
            if leader in ("scale", "chain") and self.is_exact:
                inputs, is_determined = self._exact(inputs, is_determined)
        elif not self.is_ample and leader not in ("rest", "all"):  # columns are as exact as their inputs
            inputs = self._refined(inputs)
            if isinstance(self.activation, Identity):
                near = self._as_near_as_noise(inputs)
                inputs, is_determined = inputs[near], is_determined[near]
        is_new = knowledge.add_inputs(inputs, is_determined)
        self.lead.learn((knowledge.n_known - n_before) / share)
        return is_new

    def _descended(self, starts: torch.Tensor, at_first: View) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs that descents from some ``p`` at their true scale end at, and which are determined."""
        if len(starts) == 0:
            return starts, torch.zeros(0, dtype=torch.bool)
        return self.descent.run(self.knowledge.views, self.equations, starts, self.generator, self.whole, at_first)

    def _fitted(self, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs that exact fits to all spans end at, from some ``p`` at their true scale."""
        ends = self.last_fit.alone(self.natural, self.chain, starts)
        here = self.chain.at(self._preactivations(ends))
        ends = ends[here.is_likely & (here.over_noise <= FAR)]
        coordinates = self.natural.coordinates(ends)
        is_determined = [self.descent.is_only(self.natural, self.chain, end) for end in coordinates]
        return normalize(ends, dim=1), torch.tensor(is_determined, dtype=torch.bool)

    def _by_reflections(self) -> bool:
        ends = self.reflection.run(self.knowledge.views, 2 * self.n_starts, self.generator)
        return self.knowledge.add_columns(ends)

"""The stages of the recipes: each calls its numerics on the state, and returns their candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch

from sparsedl_fl.constraints import Constraint
from sparsedl_fl.search.stage import Proposals, Stage
from sparsedl_fl.search.state import SearchState

__all__ = ["STAGES"]


class _ByConstraint(Stage[SearchState]):
    """A stage that uses one of the constraints in `SearchState.remaining`."""

    by: ClassVar[str]
    lacking: ClassVar[str]

    def requires(self, state: SearchState) -> str | None:
        """Require the constraint."""
        return self.lacking if state.remaining.whole[self.by] is None else None


class SubspaceDescent(_ByConstraint):
    """Gauss-Newton from random starts, on all constraints (see `Descent`)."""

    name, by, adapts, shares = "descent", "subspaces", True, True
    lacking = "needs the gradient of a downstream layer or the network tail; this layer has neither"
    is_smoothed = is_fitted = False

    def n_starts(self, state: SearchState) -> int:
        """Return the starts of a first round."""
        return state.n_starts

    def propose(self, state: SearchState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run random starts."""
        whole, left = state.remaining.whole[self.by], state.remaining[self.by]
        given = state.coordinates, whole, n_starts, generator, state.natural, left, self.is_smoothed
        minimisers = state.numerics.descent.run(*given)
        return Proposals(*(minimisers if state.is_flat else state.settled(minimisers, is_fitted=self.is_fitted)))


class SmoothedDescent(SubspaceDescent):
    """The same with the kinks of the activation smoothed first."""

    name, cost, is_smoothed = "smoothed descent", (3.0, 3.0), True
    """At (80, 200) with ELU 3 to 5 times as long, one batch; not measured for wide layers."""

    def requires(self, state: SearchState) -> str | None:
        """Require kinks between curved pieces: smoothed kinks of linear pieces hardly determine a sample."""
        lacking = super().requires(state)
        if lacking is None and (state.activation.is_piecewise_linear or not state.equations.has_kinks):
            return f"needs an activation with kinks between curved pieces; {state.activation.name} has none"
        return lacking


class TailDescent(SubspaceDescent):
    """The same by the network tail alone."""

    name, by, cost, is_fitted = "tail descent", "tail", (3.0, 1.5), True
    lacking = "needs a network tail that identifies samples by itself, beside a downstream layer's gradient"
    """Cost at (80, 200) to (95, 200), and of GELU at (100, 1000); one batch each."""


class JointDescent(SubspaceDescent):
    """The same by the activation subspaces and the network tail together."""

    name, by, cost, is_fitted = "joint descent", "everything", (5.0, 4.0), True
    lacking = "needs the network tail beside a downstream layer's gradient"
    """Cost at (80, 200) to (95, 200), and of GELU at (300, 1000) 3 times; one batch each."""


class ClassStart(Stage[SearchState]):
    """Approximate samples by the labels of a head (see `ClassStarts`), and descents from there."""

    name, draws = "class starts", False

    def requires(self, state: SearchState) -> str | None:
        """Require a head."""
        return None if state.is_head else "needs a classifier's head; this layer is none"

    def n_starts(self, state: SearchState) -> int:
        """Return one for each sample, at most."""
        return state.problem.batch_size

    def propose(self, state: SearchState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Descend from the means of classes."""
        known = state.fits.at_scale(state.knowledge.inputs)
        tail = state.tail_of_head
        starts, labels = state.numerics.class_starts.run(state.coordinates, tail, known)
        is_last = state.coordinates.free.shape[1] <= 1  # it follows from the others, whatever its label is
        of_labels = tail if is_last else replace(tail, labels=labels)
        return Proposals(*state.settled(state.descended(starts, of_labels, generator)))


class ScaledReflections(_ByConstraint):
    """Douglas-Rachford at true scale by the next layer's activation subspace, and descents from its candidates."""

    name, by, shares, cost = "scaled reflection", "first", True, (0.5, 0.5)
    lacking = "needs the next layer's gradient; this layer has none"

    def n_starts(self, state: SearchState) -> int:
        """Return the starts of a round."""
        return state.numerics.scaled.n_starts or super().n_starts(state)

    def propose(self, state: SearchState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run reflections and descents."""
        starts = state.numerics.scaled.inputs(state.coordinates, state.remaining.first, n_starts, generator)
        at_first: Constraint = state.remaining["first" if state.is_ample else "subspaces"]
        minimisers = state.descended(starts, at_first, generator)
        return Proposals(*(state.confirmed(minimisers, generator) if state.is_flat else state.settled(minimisers)))


class ChainedReflections(Stage[SearchState]):
    """Douglas-Rachford by the activation subspaces of all downstream layers at once."""

    name, shares = "chained reflection", True

    def requires(self, state: SearchState) -> str | None:
        """Require several subspaces."""
        return None if state.all_levels is not None else "needs the gradients of two downstream layers; fewer are known"

    def n_starts(self, state: SearchState) -> int:
        """Return the starts of a round."""
        return state.numerics.scaled.n_starts_of_chain

    def propose(self, state: SearchState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run reflections, and fits to all subspaces."""
        starts = self.starts(state, n_starts, generator)
        if state.is_exact:
            minimisers = state.fits.fitted_to_subspaces(starts)
        else:
            minimisers = state.descended(starts, state.fits.all_subspaces, generator)
        return Proposals(*state.confirmed(minimisers, generator))

    def starts(self, state: SearchState, n_starts: int, generator: torch.Generator) -> torch.Tensor:
        """Return the candidates of reflections, as ``p`` at their true scale."""
        return state.numerics.scaled.inputs(state.coordinates, state.all_levels, n_starts, generator)


class PairedReflections(ChainedReflections):
    """Douglas-Rachford by activation and backward subspaces, for a label drawn for each start."""

    name = "paired reflection"

    def requires(self, state: SearchState) -> str | None:
        """Require the backward subspaces."""
        is_there = state.is_linked
        return None if is_there else "needs all downstream layers up to the loss, with ReLUs; not all are known"

    def n_starts(self, state: SearchState) -> int:
        """Return the starts of a round."""
        return state.numerics.paired.n_starts

    def starts(self, state: SearchState, n_starts: int, generator: torch.Generator) -> torch.Tensor:
        """Return the candidates of reflections, each for a label drawn by its likelihood."""
        likely = state.likely_labels.without_labels(state.fits.preactivations(state.knowledge.inputs))
        labels = likely.weighted(n_starts, 0.0, generator).labels
        given = state.coordinates, state.fits.all_subspaces, state.problem.backward, labels, generator
        return state.numerics.paired.inputs(*given)


class Projections(_ByConstraint):
    """Reflections on the next layer's activation subspace at no particular scale, and Newton's method."""

    name, by, shares = "projection", "first", True
    lacking = "needs the next layer's gradient; this layer has none"

    def requires(self, state: SearchState) -> str | None:
        """Require a subspace that needs no scale."""
        lacking = super().requires(state)
        if lacking is None and state.subspaces.levels[0].up_to_scale() is None:
            return f"needs an activation with one kink between linear pieces; {state.activation.name} has a scale"
        return lacking

    def propose(self, state: SearchState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run random starts."""
        subspace = state.remaining.first.levels[0].up_to_scale()
        inputs, is_determined = state.numerics.projection.run(state.coordinates, subspace, n_starts, generator)
        if not state.is_flat:  # with two slopes a candidate may lie in the first subspace by a wrong one
            starts = state.fits.at_scale(inputs)
            return Proposals(*state.settled(state.descended(starts, state.remaining["subspaces"], generator)))
        if state.coordinates.free.shape[1] > 1:  # a last one follows from all columns
            is_determined &= state.fits.near_subspaces(inputs, state.knowledge.inputs)
        return Proposals(inputs, is_determined)


class DictionaryDescents(Stage[SearchState]):
    """All columns that are left at once, by the gradient alone (see `DictionaryDescent`)."""

    name = "dictionary descent"

    def requires(self, state: SearchState) -> str | None:
        """Ask for zeros, many outputs for each sample, and little noise."""
        return _lacks_zeros(state) or state.numerics.dictionary.lacks(state.problem.factors.zero_test) or None

    def n_starts(self, state: SearchState) -> int:
        """Return one for each column that is left."""
        return state.knowledge.coordinates.free.shape[1]

    def propose(self, state: SearchState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run them at once."""
        return Proposals(columns=state.numerics.dictionary.run(state.knowledge.coordinates, generator))


class Reflections(Stage[SearchState]):
    """Douglas-Rachford between the forward pass and the columns of the gradient, for wide layers."""

    name, shares = "reflection", True

    def requires(self, state: SearchState) -> str | None:
        """Require a wide layer: narrow ones are faster by alternation."""
        return _lacks_zeros(state) or (None if state.is_wide else "needs a wide layer; this one is narrow")

    def propose(self, state: SearchState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run random starts."""
        return Proposals(columns=state.numerics.reflection.run(state.coordinates, n_starts, generator))


class SentBackReflections(Stage[SearchState]):
    """Douglas-Rachford by the forward pass, the columns of the gradient, and what the next layer sends back."""

    name, shares = "sent-back reflection", True

    def requires(self, state: SearchState) -> str | None:
        """Require the weights of a next layer with few outputs."""
        lacks_weights = "needs the weights of a next layer with few outputs, and one step; one of these is lacking"
        return _lacks_zeros(state) or (lacks_weights if state.sent_back is None else None)

    def n_starts(self, state: SearchState) -> int:
        """Return the starts of a round."""
        return state.numerics.sent_back.n_starts

    def propose(self, state: SearchState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run random starts."""
        given = state.coordinates, state.sent_back, n_starts, generator
        found = state.numerics.sent_back.run(*given)
        is_proven = state.sent_back.proves(found)
        return Proposals(columns=found.columns[~is_proven], proven=found.columns[is_proven])


class Alternations(Stage[SearchState]):
    """Alternation between the forward pass and the columns of the gradient, in rounds of different ridges."""

    name = "alternation"

    def requires(self, state: SearchState) -> str | None:
        """Require zeros."""
        return _lacks_zeros(state)

    def n_starts(self, state: SearchState) -> int:
        """Return the starts of a round."""
        return state.n_starts

    def propose(self, state: SearchState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run random starts."""
        given = state.coordinates, n_starts, next(state.ridges), generator
        return Proposals(columns=state.numerics.alternation.run(*given))


def _lacks_zeros(state: SearchState) -> str | None:
    if not state.is_flat:
        return f"needs an activation with a zero-slope region; {state.activation.name} has none"
    return "needs a batch of less than half of the width; this one is larger" if state.is_beyond_half else None


STAGES: dict[str, Stage[SearchState]] = {
    kind.name: kind()
    for kind in (
        SubspaceDescent,
        SmoothedDescent,
        TailDescent,
        JointDescent,
        ClassStart,
        ScaledReflections,
        ChainedReflections,
        PairedReflections,
        Projections,
        DictionaryDescents,
        Reflections,
        SentBackReflections,
        Alternations,
    )
}
"""All stages by name; a new one is a class here, or in a file of its own, and a line in the recipes."""

"""The stages of the search by withheld gradients."""

from __future__ import annotations

from typing import ClassVar

import torch

from sparsedl_fl.search.columns_and_forward_pass import ScaledForward
from sparsedl_fl.search.stage import Proposals, Stage
from sparsedl_fl.search.withheld.joint_equations import LeftEquations
from sparsedl_fl.search.withheld.withheld_space import BackSpace
from sparsedl_fl.search.withheld.withheld_state import WithheldState

__all__ = ["WITHHELD_STAGES"]

DENIED = 0.5
"""Count of a label that the estimate excludes."""

IN_DOUBT = 0.5
"""Largest error of an estimated count of a label."""


class SparsestWithheld(Stage[WithheldState]):
    """Sparse vectors among possible withheld gradients, and columns from there (see `SparseStarts`)."""

    name: ClassVar[str] = "sparsest withheld"

    def requires(self, state: WithheldState) -> str | None:
        """Require nothing: the state has it all."""
        return None

    def n_starts(self, state: WithheldState) -> int:
        """Return the starts of a round."""
        return state.sparse.n_starts

    def propose(self, state: WithheldState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run random starts that are orthogonal to the withheld gradients of known columns."""
        space = state.next_space()
        known = space.entries(space.fitted(state.is_active))[1]
        return self._columns(state, space, state.sparse.candidates(space, known, generator))

    @staticmethod
    def _columns(state: WithheldState, space: BackSpace, candidates: torch.Tensor) -> Proposals:
        """Return the columns among candidates whose gradient at the activations is like that for some label."""
        columns, is_active = space.columns(candidates)
        passed, withheld = space.entries(space.fitted(is_active))
        has_label = state.have_labels(passed - withheld)
        return Proposals(columns=columns[has_label], is_active=is_active[has_label])


class LabelReflection(SparsestWithheld):
    """Reflections at the layer alone, for remaining labels (see `OneLayerReflection`), and columns from there."""

    name: ClassVar[str] = "label reflection"

    def n_starts(self, state: WithheldState) -> int:
        """Return the starts of a round."""
        return state.reflection.starts_per_input * state.columns.shape[1]

    def propose(self, state: WithheldState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run random starts, each for a label."""
        space, likely = state.next_space(), state.labels_left().clamp(min=DENIED)
        labels = torch.multinomial(likely, n_starts, replacement=True, generator=generator)
        forward = ScaledForward.of(state.coordinates.deflated_by(state.columns))
        z = state.reflection.preactivations(forward, state.left, state.problem.backward, labels, generator)
        return self._columns(state, space, state.sparse.near(space, ~state.problem.activation.is_off(z)))


class AllThatIsLeft(SparsestWithheld):
    """All remaining samples at once, if they are few: more of them after more idle rounds (see `LeftOver`)."""

    name: ClassVar[str] = "all that is left"

    def n_starts(self, state: WithheldState) -> int:
        """Return the starts of a round, none while too many samples remain."""
        most = min(state.left_over.most, state.left_over.few * (1 + state.idle // 3))
        return state.left_over.n_starts if state.n_left <= most else 0

    def propose(self, state: WithheldState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run starts with the likeliest labels first, and then with labels near to these."""
        if n_starts == 0:
            return Proposals()
        shares = state.labels_left()
        counts = shares.floor().long()
        doubt = IN_DOUBT * torch.rand(shares.shape, generator=generator, dtype=shares.dtype) * bool(state.minimisers)
        n_open = state.n_left - int(counts.sum())
        counts[(shares - counts + doubt).argsort(descending=True)[:n_open]] += 1
        labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
        equations = LeftEquations.of(state.coordinates.deflated_by(state.columns), state.rest, state.left, labels)
        before = state.minimisers.setdefault(tuple(counts.tolist()), [])
        before.append(state.left_over.minimisers(equations, before, state.is_over, generator))
        is_found = before[-1].costs[0] < state.left_over.enough
        return Proposals(inputs=equations.inputs(before[-1].coordinates[0]) if is_found else None)


WITHHELD_STAGES: dict[str, Stage[WithheldState]] = {
    stage.name: stage for stage in (SparsestWithheld(), LabelReflection(), AllThatIsLeft())
}
"""The stages of that search by name."""

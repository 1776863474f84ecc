"""What a search could reach at best: its last fits, from the true batch as their start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.certify.candidates import Candidates, SearchEnd
from sparsedl_fl.constraints import Constraint, DownstreamSubspaces
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions import ActivationDirections, KnownInputs
from sparsedl_fl.search.state import SearchState
from sparsedl_fl.search.withheld.withheld_state import WithheldSearch, WithheldState

__all__ = ["ToldTheBatch"]


@dataclass(eq=False, repr=False, kw_only=True)
class ToldTheBatch(ActivationDirections):
    """The activation search with nothing left to search for.

    Parameters
    ----------
    inputs : torch.Tensor of shape (batch_size, n)
        The true batch. One that has not as many inputs as the gradient shows is no help: the search runs.
    """

    inputs: torch.Tensor | None = None

    def _by_withheld(self, problem: LayerProblem, *given: Any) -> Candidates | None:
        search = WithheldSearch()
        columns = self._columns(problem) if search.applies(problem) else None
        if columns is None:
            return None
        generator = torch.Generator().manual_seed(0)
        state = WithheldState(search, problem, str, generator)
        state.columns = columns[0]
        state.settle(generator)
        return state.candidates("complete", SearchEnd.COMPLETE, 0)

    def _state(
        self,
        problem: LayerProblem,
        behind: DownstreamSubspaces | None,
        equations: Constraint | None,
        generator: torch.Generator,
    ) -> SearchState:
        state = super()._state(problem, behind, equations, generator)
        told = self._columns(problem)
        if told is not None:
            state.knowledge.take_whole(*told)
        return state

    def _columns(self, problem: LayerProblem) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the columns and the ``p`` of the true batch, as rows, where it is one."""
        if self.inputs is None or len(self.inputs) != problem.batch_size:
            return None
        told = KnownInputs(inputs=self.inputs).propose(problem)
        return None if told.inputs is None else (as_tensor(told.directions.T.copy()), as_tensor(told.inputs))

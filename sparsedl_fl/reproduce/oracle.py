"""What a search could reach at best: its last fits, from the true batch as their start."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.directions import ActivationDirections, KnownInputs
from sparsedl_fl.directions.activation.rounds import Rounds
from sparsedl_fl.problem import LayerProblem
from sparsedl_fl.views import SpansBehind, View

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

    def _rounds(
        self, problem: LayerProblem, behind: SpansBehind | None, equations: View | None, generator: torch.Generator
    ) -> Rounds:
        rounds = super()._rounds(problem, behind, equations, generator)
        if self.inputs is not None and len(self.inputs) == problem.batch_size:
            told = KnownInputs(inputs=self.inputs).propose(problem)
            if told.inputs is not None:
                rounds.knowledge.take_whole(as_tensor(told.directions.T.copy()), as_tensor(told.inputs))
        return rounds

"""What a search could reach at best: its last fits, from the true batch as their start."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from sparsedl.arrays import as_tensor
from sparsedl_fl.directions import ActivationDirections
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
        rounds, factors = super()._rounds(problem, behind, equations, generator), problem.factors
        if self.inputs is not None and len(self.inputs) == problem.batch_size:
            whitened = self.inputs.double() @ as_tensor(factors.right).T / as_tensor(factors.singular_values)
            rounds.knowledge.take_whole(normalize(torch.linalg.inv(whitened).T, dim=1), whitened)
        return rounds

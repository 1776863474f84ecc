"""What a stage of the search is: it proposes samples or columns, and proves nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from sparsedl_fl.search.state import SearchState

__all__ = ["Proposals", "Stage"]


@dataclass(frozen=True)
class Proposals:
    """What a stage proposes.

    Attributes
    ----------
    inputs : torch.Tensor of shape (n, b) or None
        Unit rows ``p`` of samples.
    is_determined : torch.Tensor of shape (n,) of bool or None
        Whether the constraints leave no other sample near it; of one where they do only the pattern is right.
    columns : torch.Tensor of shape (k, b) or None
        Unit rows ``q``, to be proven by their zeros.
    """

    inputs: torch.Tensor | None = None
    is_determined: torch.Tensor | None = None
    columns: torch.Tensor | None = None


class Stage(ABC):
    """One way to propose samples of a layer; a recipe (`sparsedl_fl.search.recipes`) says where it serves.

    Attributes
    ----------
    name : str
        What recipes, schedules and tables call it.
    draws : bool
        Whether it draws random starts; one that does not brings the same again until something else is found.
    adapts : bool
        Whether its number of starts follows what the last ones brought.
    cost : (float, float)
        What a round costs over one of a descent by the subspaces alone, for narrow and for wide layers.
    """

    name: ClassVar[str]
    draws: ClassVar[bool] = True
    adapts: ClassVar[bool] = False
    cost: ClassVar[tuple[float, float]] = (1.0, 1.0)

    @abstractmethod
    def requires(self, state: SearchState) -> str | None:
        """Return None, or in words what it takes that this layer lacks; it is asked before any work."""

    def n_starts(self, state: SearchState) -> int:
        """Return the starts of a round."""
        return 2 * state.n_starts

    @abstractmethod
    def propose(self, state: SearchState, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run starts on what is known, and return where they end."""

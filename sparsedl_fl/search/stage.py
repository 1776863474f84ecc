"""What the loop of a search works on, and what a stage of it is: it proposes samples or columns, and proves nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch

from sparsedl_fl.certify.candidates import Candidates, SearchEnd
from sparsedl_fl.search.schedule import Schedule

__all__ = ["Proposals", "S", "Stage", "State"]


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
    is_active : torch.Tensor of shape (k, m) of bool or None
        Where the units of the columns are active, if the stage shows that.
    """

    inputs: torch.Tensor | None = None
    is_determined: torch.Tensor | None = None
    columns: torch.Tensor | None = None
    is_active: torch.Tensor | None = None


class State(ABC):
    """What a search knows of one problem: its loop takes proposals in here, and asks whether it is done.

    Attributes
    ----------
    schedule : Schedule
        Starts and patience.
    is_wide, is_flat : bool
        Whether the layer is wide, and whether zeros of the gradient lead the search.
    n_starts : int
        Starts of a round.
    """

    schedule: Schedule
    is_wide: bool
    is_flat: bool
    n_starts: int

    @property
    @abstractmethod
    def n_hits(self) -> int:
        """Starts that ended at a sample or column, new or not."""

    @property
    @abstractmethod
    def n_known(self) -> int:
        """How much is known: columns and samples."""

    @property
    @abstractmethod
    def n_found(self) -> int:
        """How many samples of the batch are accounted for."""

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether nothing is left to search for."""

    @property
    @abstractmethod
    def patience(self) -> int:
        """Rounds without anything new after which to give up, as things stand."""

    @property
    @abstractmethod
    def evidence_in_words(self) -> str:
        """What samples are told by."""

    def deflate(self) -> bool:
        """Take what is known out of the constraints; return whether that alone brought anything new."""
        return False

    @abstractmethod
    def take(self, proposals: Proposals) -> bool:
        """Take in what is proven of proposals; return whether any of it is new."""

    @abstractmethod
    def candidates(self, status: str, end: SearchEnd, n_starts: int) -> Candidates:
        """Return what was found."""


S = TypeVar("S", bound=State)


class Stage(ABC, Generic[S]):
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
    def requires(self, state: S) -> str | None:
        """Return None, or in words what it takes that this layer lacks; it is asked before any work."""

    def n_starts(self, state: S) -> int:
        """Return the starts of a round."""
        return 2 * state.n_starts

    @abstractmethod
    def propose(self, state: S, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run starts on what is known, and return where they end."""

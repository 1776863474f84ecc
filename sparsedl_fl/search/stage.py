"""Base classes of a stage, which proposes samples or columns and certifies nothing, and of the state of a search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Generic, TypeVar

import torch

from sparsedl_fl.certify.candidates import Candidates, SearchEnd
from sparsedl_fl.search.schedule import Schedule

__all__ = ["Proposals", "S", "Stage", "State"]


@dataclass(frozen=True)
class Proposals:
    """The candidates that a stage proposes.

    Attributes
    ----------
    inputs : torch.Tensor of shape (n, b) or None
        Unit rows ``p`` of samples.
    is_determined : torch.Tensor of shape (n,) of bool or None
        Whether the constraints determine it; of one that they do not only the pattern is right.
    columns : torch.Tensor of shape (k, b) or None
        Unit rows ``q``, to be certified by their zeros.
    proven : torch.Tensor of shape (l, b) or None
        Unit rows ``q`` of columns that are certified already.
    is_active : torch.Tensor of shape (k, m) of bool or None
        Active units of the columns, if the stage finds them.
    """

    inputs: torch.Tensor | None = None
    is_determined: torch.Tensor | None = None
    columns: torch.Tensor | None = None
    proven: torch.Tensor | None = None
    is_active: torch.Tensor | None = None

    @classmethod
    def joined(cls, parts: Sequence[Proposals]) -> Proposals:
        """Return the candidates of several blocks of starts, in their order."""

        def join(name: str) -> torch.Tensor | None:
            given = [getattr(part, name) for part in parts if getattr(part, name) is not None]
            return torch.cat(given) if given else None

        return cls(*(join(field.name) for field in fields(cls)))


class State(ABC):
    """The state of a search on one problem: it keeps certified candidates, and says whether the search is done.

    Attributes
    ----------
    schedule : Schedule
        Starts and patience.
    is_wide, is_flat : bool
        Whether the layer is wide, and whether its activation has a zero-slope region.
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
        """Number of starts that found a sample or column, new or not."""

    @property
    @abstractmethod
    def n_known(self) -> int:
        """Number of known columns and samples."""

    @property
    @abstractmethod
    def n_found(self) -> int:
        """Number of samples of the batch that are found."""

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether the whole batch is found."""

    @property
    @abstractmethod
    def patience(self) -> int:
        """Rounds without anything new after which to give up, in this state."""

    @property
    @abstractmethod
    def used_in_words(self) -> str:
        """What the search uses, in words."""

    @property
    def is_shared(self) -> bool:
        """Whether workers may share a round: stages leave the state as it is, and rounds are long enough."""
        return False

    def prepared(self) -> State:
        """Return it with all that is computed when it is first asked for, for workers that share a round."""
        return self

    def deflate(self) -> bool:
        """Deflate the constraints by known samples; return whether that alone found anything new."""
        return False

    @abstractmethod
    def take(self, proposals: Proposals) -> bool:
        """Add the proposals that are certified; return whether any is new."""

    @abstractmethod
    def candidates(self, status: str, end: SearchEnd, n_starts: int) -> Candidates:
        """Return the columns and samples found."""


S = TypeVar("S", bound=State)


class Stage(ABC, Generic[S]):
    """One way to propose samples of a layer; a recipe (`sparsedl_fl.search.recipes`) says where it serves.

    Attributes
    ----------
    name : str
        Its name in recipes, schedules and tables.
    draws : bool
        Whether it draws random starts; one that does not finds the same again until another sample is known.
    adapts : bool
        Whether its number of starts adapts to the finds of the last ones.
    shares : bool
        Whether workers may share a round, whose starts are independent of each other.
    cost : (float, float)
        Cost of a round over that of a descent by the subspaces alone, for narrow and for wide layers.
    """

    name: ClassVar[str]
    draws: ClassVar[bool] = True
    adapts: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    cost: ClassVar[tuple[float, float]] = (1.0, 1.0)

    @abstractmethod
    def requires(self, state: S) -> str | None:
        """Return None, or in words what the layer lacks; called before any work."""

    def n_starts(self, state: S) -> int:
        """Return the starts of a round."""
        return 2 * state.n_starts

    @abstractmethod
    def propose(self, state: S, n_starts: int, generator: torch.Generator) -> Proposals:
        """Run starts and return their candidates."""

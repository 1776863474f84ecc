"""The result of a search for directions: candidate columns of ``Q``, and inputs that are known without a column."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from sparsedl.selection import select_independent
from sparsedl.stages import SearchEnd
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["Candidates", "Provenance", "SearchEnd"]


class Provenance(StrEnum):
    """How an input was obtained."""

    CERTIFIED = "certified"
    COLUMN_FOUND = "column found"
    """Its own column was found, but not all others that the input depends on."""

    COMPLETED = "completed"
    """A stand-in for a missing column."""


@dataclass(frozen=True)
class Candidates:
    """Candidate columns of ``Q``, up to scale.

    Attributes
    ----------
    directions : ndarray of shape (b, n_candidates)
        Unit columns ``q`` for which ``U q`` is sparse.
    n_zeros : ndarray of shape (n_candidates,)
        Number of zeros of ``U q``.
    status : str
        How the search ended, in words.
    n_starts : int
        Starts (or draws) spent.
    n_successes : int
        Starts that ended in a candidate, new or not.
    inputs : ndarray of shape (n_inputs, b) or None
        Rows ``p`` of ``Q^-1`` that were found by themselves, up to scale, whether their columns are among the
        candidates or not; None for none.
    errors : ndarray of shape (n_inputs,) or None
        Expected root mean square error of each of these inputs, if all are right; None where not known.
    end : SearchEnd, default=EXHAUSTED
        How the search ended.
    """

    directions: np.ndarray
    n_zeros: np.ndarray
    status: str
    n_starts: int
    n_successes: int
    inputs: np.ndarray | None = None
    errors: np.ndarray | None = None
    end: SearchEnd = SearchEnd.EXHAUSTED

    @classmethod
    def empty(cls, batch_size: int) -> Candidates:
        """Return no candidates."""
        return cls(np.zeros((batch_size, 0)), np.zeros(0, dtype=int), "nothing tried", 0, 0)

    def selection(self) -> np.ndarray:
        """Return the sparsest independent candidates as columns, sparsest first."""
        return self.directions[:, select_independent(self.directions, self.n_zeros)]

    @property
    def n_missing(self) -> int:
        """Number of columns missing from a basis."""
        return len(self.directions) - self.selection().shape[1]

    @property
    def is_complete(self) -> bool:
        """Whether the candidates are a basis."""
        return self.n_missing == 0

    def joined(self, directions: np.ndarray, factors: LowRankGradient, search: Candidates) -> Candidates:
        """Append unit directions that another search led to."""
        together = np.hstack([self.directions, directions])
        n_starts, n_successes = self.n_starts + search.n_starts, self.n_successes + search.n_successes
        counts = {"n_zeros": factors.zeros(together).sum(axis=0), "n_starts": n_starts, "n_successes": n_successes}
        end = SearchEnd.worst(self.end, search.end)
        return replace(self, directions=together, status=search.status, end=end, **counts)

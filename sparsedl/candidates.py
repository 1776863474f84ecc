"""What a search collects: distinct proven candidates, the best unproven ends, and the basis made of both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparsedl.polishing import polish
from sparsedl.selection import complete_basis, select_independent
from sparsedl.zeros import ZeroTest

__all__ = ["SAME_COSINE", "CandidatePool", "UnprovenPool", "assemble_basis", "distinct"]

POLISHED_FROM, ROUGHLY = 80, 0.1
"""Components from which on polishing is faster than estimating from weighted Gram matrices, and its accuracy there. (98
columns at (100, 4000): 0.23 s, and 0.62; as long at (65, 1000).)"""

SAME_COSINE = 0.99
"""Cosine above which two directions are the same column: a definition, which pools and searches share."""


def distinct(directions: torch.Tensor, cosines: torch.Tensor | float = SAME_COSINE) -> torch.Tensor:
    """Return a mask of the rows that no earlier row repeats up to sign, closer than a cosine (of each row, or all)."""
    close = (directions @ directions.T).abs() > cosines
    return ~close.triu(diagonal=1).any(dim=0)


@dataclass
class CandidatePool:
    """Distinct proven directions with their number of zeros.

    Attributes
    ----------
    directions : torch.Tensor of shape (n_candidates, n_components)
        Unit rows.
    n_zeros : torch.Tensor of shape (n_candidates,)
        Zeros of ``L q``.
    blur, blurred_cosine : float
        Under heavy noise two directions are the same as well that differ by less than so many widths of zero, unless
        they are further apart than this cosine: mixtures of a column with some of another then show enough zeros to
        pass for a column of their own.
    """

    directions: torch.Tensor
    n_zeros: torch.Tensor
    blur: float = 4.0
    blurred_cosine: float = 0.75

    @classmethod
    def empty(cls, n_components: int) -> CandidatePool:
        """Return a pool without candidates."""
        return cls(torch.zeros((0, n_components), dtype=torch.float64), torch.zeros(0, dtype=torch.int64))

    def add(self, directions: torch.Tensor, n_zeros: torch.Tensor) -> None:
        """Add candidates; of two that are the same column up to sign, the sparser stays."""
        together = torch.cat([self.directions, directions])
        counts = torch.cat([self.n_zeros, n_zeros])
        order = torch.argsort(counts, descending=True, stable=True)
        order = order[distinct(together[order])]
        self.directions, self.n_zeros = together[order], counts[order]

    def add_proven(self, directions: torch.Tensor, test: ZeroTest) -> bool:
        """Estimate directions that are not here yet again, from all their zero rows, and add those that are proven.

        Returns
        -------
        bool
            Whether there was any to look at.
        """
        new = directions[distinct(torch.cat([self.directions, directions]))[len(self.directions) :]]
        is_any, left = len(new) > 0, new
        if new.shape[1] >= POLISHED_FROM and test.is_precise:
            left = left[~self._add_accepted(polish(left, test, accuracy=ROUGHLY), test)]
        if len(left):
            self._add_accepted(test.refit(left), test)
        if is_any:
            self._merge(test)
        return is_any

    def _add_accepted(self, directions: torch.Tensor, test: ZeroTest) -> torch.Tensor:
        is_proven, n_zeros = test.accept(directions)
        self.add(directions[is_proven], n_zeros[is_proven])
        return is_proven

    def _merge(self, test: ZeroTest) -> None:
        """Drop what the noise does not tell apart from a sparser candidate."""
        differences = self.blur * test.tolerances(self.directions).square().mean(dim=1).sqrt()
        keep = distinct(self.directions, (1 - differences.square() / 2).clamp(self.blurred_cosine, SAME_COSINE))
        self.directions, self.n_zeros = self.directions[keep], self.n_zeros[keep]

    def selection(self, known: torch.Tensor | None = None) -> CandidatePool:
        """Return the sparsest candidates that are independent, of each other and of directions known beforehand."""
        taken = None if known is None else known.numpy().T
        index = torch.from_numpy(select_independent(self.directions.numpy().T, self.n_zeros.numpy(), taken=taken))
        return CandidatePool(self.directions[index], self.n_zeros[index])


@dataclass
class UnprovenPool:
    """Distinct ends with their surrogate, the best first: under heavy noise, or where nothing is exactly sparse.

    Attributes
    ----------
    directions : torch.Tensor of shape (n_directions, n_components)
        Unit rows.
    values : torch.Tensor of shape (n_directions,)
        Mean of the surrogate over the entries of ``L q``.
    per_component : int
        How many of the best are kept for each component.
    """

    directions: torch.Tensor
    values: torch.Tensor
    per_component: int = 4

    def add(self, directions: torch.Tensor, values: torch.Tensor) -> None:
        """Add ends, drop repetitions, and keep the best few for each component."""
        together = torch.cat([self.directions, directions])
        scores = torch.cat([self.values, values])
        order = torch.argsort(scores, stable=True)
        order = order[distinct(together[order])][: self.per_component * together.shape[1]]
        self.directions, self.values = together[order], scores[order]


def assemble_basis(
    proven: CandidatePool, unproven: UnprovenPool, known: torch.Tensor | None = None, *, well_apart: float = 0.5
) -> np.ndarray:
    """Return the proven columns, then the best unproven ones that are well apart, then whatever completes them.

    Parameters
    ----------
    proven : CandidatePool
        Independent columns.
    unproven : UnprovenPool
        Ends to complete them with.
    known : torch.Tensor of shape (n_known, n_components) or None, default=None
        Directions known beforehand; they come last.
    well_apart : float, default=0.5
        An unproven direction joins the basis when this much of it lies outside what is there.

    Returns
    -------
    ndarray of shape (n_components, n_components)
        One direction a column.
    """
    columns, others = proven.directions.numpy().T, unproven.directions.numpy().T
    fixed = columns[:, :0] if known is None else known.numpy().T
    taken = np.column_stack([columns, fixed])
    extension = others[:, select_independent(others, -unproven.values.numpy(), well_apart, taken=taken)]
    completed = complete_basis(np.column_stack([taken, extension]))
    n_taken = taken.shape[1]
    return np.column_stack([columns, completed[:, n_taken:], fixed])

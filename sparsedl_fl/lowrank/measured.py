"""A gradient with its size and the precision of its numbers, each computed once."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from sparsedl_fl.layers.blocks import alive, column_blocks, row_norms, significands

__all__ = ["Measured", "precision_of"]


@dataclass(frozen=True, eq=False)
class Measured:
    """A gradient, with what the rules about its spectrum ask for, each computed once.

    Attributes
    ----------
    matrix : ndarray of shape (m, n)
        The gradient.
    """

    matrix: np.ndarray

    @classmethod
    def of(cls, matrix: np.ndarray | Measured) -> Measured:
        """Return a matrix as this; one that is already stays."""
        return matrix if isinstance(matrix, Measured) else cls(matrix)

    @cached_property
    def total(self) -> float:
        """Its norm."""
        return float(np.linalg.norm(row_norms(self.matrix)))

    @cached_property
    def alive(self) -> np.ndarray:
        """The numbers of rows and columns that are not all zero (see `sparsedl_fl.layers.blocks.alive`)."""
        return alive(self.matrix)

    @cached_property
    def precision(self) -> float:
        """The relative precision of its numbers (see `precision_of`)."""
        return precision_of(self.matrix)

    @property
    def rounding(self) -> float:
        """The size below which singular values are rounding.

        Columns of features that only one input has (one-hot inputs) are multiples of each other and make exact zeros
        among the singular values, which must not count as the gap after the batch.
        """
        return 0.1 * self.precision * self.total / np.sqrt(min(self.matrix.shape))


def precision_of(G: np.ndarray) -> float:
    """Return the relative precision of the numbers in a gradient, that of single precision or of double.

    Numbers in double precision that are singles times a factor for each row are no more precise than singles: so they
    are after batch normalisation is folded into a layer, or after a mean at the server.
    """
    if G.dtype == np.float32:
        return float(np.finfo(np.float32).eps)
    _, block = next(column_blocks(G))
    _, is_single = significands(block)
    return float(np.finfo(np.float32 if is_single or _are_scaled_singles(block) else np.float64).eps)


def _are_scaled_singles(block: np.ndarray, *, n_rows: int = 4, n_entries: int = 9) -> bool:
    """Return whether entries of one row have ratios of two 24-bit numbers each, to the rounding of their product.

    There are so many such ratios that a third of all numbers are near one by chance, but never 32 of 32.
    """
    counts = np.count_nonzero(block, axis=1)
    rows = np.argsort(-counts, kind="stable")[:n_rows]
    if counts[rows].sum() < n_rows * n_entries // 2:  # too few to decide
        return False
    for row in rows[counts[rows] > 0]:
        entries = block[row][block[row] != 0]
        entries = entries[np.argsort(-np.abs(entries), kind="stable")[:n_entries]]
        for ratio in np.frexp(np.abs(entries[1:] / entries[0]))[0]:
            near = Fraction(float(ratio)).limit_denominator(2**25)
            if near.numerator > 2**24 or abs(float(near) / ratio - 1) > 2 * np.finfo(float).eps:
                return False
    return True

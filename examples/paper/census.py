"""Census rows as TabLeak feeds them to its network, and its measure of what comes back.

Rows with a missing value are left out. Categories become one-hot columns, and every column, one-hot or not, is
centred and divided by its deviation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import linear_sum_assignment

from paper.data import load_adult

__all__ = ["EXACT", "TOLERANCE", "Census", "load_census", "right_features"]

TOLERANCE = 0.319
"""Deviations by which a number may be off and counts as right, of TabLeak."""

EXACT = 1e-3
"""The same for a record that counts as exact."""

MISSING = ("?", "nan")


@dataclass(frozen=True, eq=False)
class Census:
    """A table of numbers and categories.

    Attributes
    ----------
    rows : ndarray of shape (n, n_features)
        Numbers as they are, and categories by their place among the feature's.
    labels : ndarray of shape (n,) of int
        Income above 50K.
    features : mapping of str to tuple of str or None
        The categories of each feature; None for a number.
    """

    rows: np.ndarray
    labels: np.ndarray
    features: Mapping[str, tuple[str, ...] | None]

    @property
    def widths(self) -> list[int]:
        """Columns that each feature becomes."""
        return [1 if categories is None else len(categories) for categories in self.features.values()]

    @property
    def is_number(self) -> np.ndarray:
        """Which features are numbers, of shape (n_features,)."""
        return np.array([categories is None for categories in self.features.values()])

    def tolerances(self, share: float) -> np.ndarray:
        """By how much each feature may be off, of shape (n_features,): a share of the deviation, or nothing."""
        return np.where(self.is_number, share * self.rows.std(axis=0, ddof=1), 0.0)

    def one_hot(self, rows: np.ndarray) -> np.ndarray:
        """Return rows with their categories as one-hot columns, of shape (n, n_columns)."""
        parts = [
            column[:, None] if width == 1 else np.eye(width)[column.astype(int)]
            for column, width in zip(rows.T, self.widths, strict=True)
        ]
        return np.hstack(parts)

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """Return rows of shape (n, n_features) from inexact `one_hot` ones: whole numbers, and the largest column."""
        parts = np.split(raw, np.cumsum(self.widths)[:-1], axis=1)
        return np.stack(
            [
                np.floor(part[:, 0] + 0.5) if is_number else part.argmax(axis=1)
                for part, is_number in zip(parts, self.is_number, strict=True)
            ],
            axis=1,
        )


@lru_cache(maxsize=1)
def load_census(data: str | None) -> Census:
    """Return the rows of Adult that have no missing value."""
    table, income = load_adult(data)
    is_whole = ~(table.isna() | table.astype(str).isin(MISSING)).any(axis=1).to_numpy()
    table = table[is_whole]
    numbers = set(table.select_dtypes("number"))
    features, columns = {}, []
    for name in table:
        if name in numbers:
            features[name], column = None, table[name].to_numpy(dtype=float)
        else:
            categories, column = np.unique(table[name].to_numpy(dtype=str), return_inverse=True)
            features[name] = tuple(categories.tolist())
        columns.append(column.astype(float))
    return Census(np.stack(columns, axis=1), income[is_whole], features)


def right_features(true: np.ndarray, found: np.ndarray, tolerances: np.ndarray) -> np.ndarray:
    """Return which features of each true row are right, of shape (n, n_features); none of a row that was not found.

    Rows are matched so that most features are right.

    Parameters
    ----------
    true, found : ndarray of shape (n, n_features), (n_found, n_features)
        Rows of a `Census`.
    tolerances : ndarray of shape (n_features,)
        By how much a feature may be off.
    """
    within = np.abs(true[:, None] - found[None]) <= tolerances
    matched, of = linear_sum_assignment(within.mean(axis=2), maximize=True)
    right = np.zeros(true.shape, dtype=bool)
    right[matched] = within[matched, of]
    return right

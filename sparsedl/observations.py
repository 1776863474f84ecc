"""Observations in units of their own: what is searched does not depend on how large they are.

Rows and columns may be multiplied by any number each: the codes keep their zeros, and the dictionary is the same but
for the units of its columns. Powers of two are exact. So the observations are brought near one, and rows and columns
that outweigh all others are brought down to their size: beside an entry of 1e20 double precision sees nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from sparsedl.arrays import CHUNK_ENTRIES, row_chunks
from sparsedl.preconditioning import Whitening, rounding_of_rows, whiten

__all__ = ["Observations", "ScaledRows", "exponents", "product"]

LARGE_ROW, LARGE_COLUMN = 1.0, 10.0
"""A row is brought down where it is so many times larger than all the others together (the square root of their number
times the typical one). With one row of 100 made 30 and 100 times larger, 40 of 40 components are recovered (4 seeds of
100 x 10), and 38 and 21 if it is left as it is. No row of 200 Gaussian problems each of six shapes is brought down. A
column is left longer: it may have noise of its own, and only rounding makes it do harm."""


NO_ROUNDING = 1 / 16
"""A column that is smaller than this share of the rounding of the others is not what rounding left of them: it is in
units of its own, and brought up."""


def exponents(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Return the powers of two just above the largest entries along an axis, or of all."""
    return np.frexp(np.abs(values).max(axis=axis, initial=0.0))[1]


def product(left: np.ndarray, right: np.ndarray, offset: np.ndarray | None = None) -> np.ndarray:
    """Return ``(left - offset) @ right``, whose terms neither overflow nor underflow where its entries do not."""
    result = np.empty((len(left), right.shape[1]), dtype=np.result_type(left, right))
    for part in row_chunks(left):
        rows = left[part] if offset is None else left[part] - offset
        powers = exponents(rows, axis=1)[:, None]
        np.ldexp(np.ldexp(rows, -powers) @ right, powers, out=result[part])
    return result


def _typical_exponents(peaks: np.ndarray, large: float) -> tuple[int, np.ndarray]:
    """Return the exponent of most, and that of each: its own where it outweighs all the others together."""
    positive = np.sort(peaks[peaks > 0])
    typical = positive[(len(positive) - 1) // 2]
    base = int(np.frexp(typical)[1])
    outweighs = np.ldexp(peaks, -base) > large * len(peaks) ** 0.5 * np.ldexp(typical, -base)
    return base, np.where(outweighs, np.frexp(peaks)[1], base)


class ScaledRows:
    """``2 ** (rows + columns) * X``, of which only the rows asked for are computed: there is no copy of a memory map.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        The matrix, in memory or on a disk.
    rows, columns : ndarray of int of shape (n_samples,) and (n_features,)
        Exponents.
    which : ndarray of int or None, default=None
        Rows of ``X`` that these are; None for all.
    """

    def __init__(self, X: np.ndarray, rows: np.ndarray, columns: np.ndarray, which: np.ndarray | None = None) -> None:
        self._X, self._rows, self._columns, self._which = X, rows, columns, which
        self.dtype, self.shape = X.dtype, (len(X) if which is None else len(which), X.shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        index = index if self._which is None else self._which[index]
        rows = self._rows[index, None]
        if not self._columns.any() and np.abs(rows).max(initial=0) < 64:  # the same in a quarter of the time
            return self._X[index] * np.ldexp(self.dtype.type(1), rows)
        return np.ldexp(self._X[index], rows + self._columns)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        values = np.empty_like(self._X, dtype=dtype, shape=self.shape, subok=False)
        for part in row_chunks(self):
            values[part] = self[part]
        return values

    def only(self, which: np.ndarray) -> ScaledRows:
        """Return those for which a mask is true."""
        kept = np.flatnonzero(which) if self._which is None else self._which[which]
        return ScaledRows(self._X, self._rows, self._columns, kept)


@dataclass(frozen=True)
class Observations:
    """Observations as they are searched: ``X = 2 ** (rows + columns) * values``, with an offset or without.

    Attributes
    ----------
    values : ndarray or ScaledRows of shape (n_kept, n_features)
        Observations in their units; many of them, without an offset, are computed when they are asked for.
    rounding : ndarray of shape (n_kept,)
        Rounding error of the entries of each, in the same units.
    noise_level : ndarray of shape (n_kept,) or None
        Standard deviation of the noise, if it is given.
    rows : ndarray of shape (n_kept,) of int
        Exponents of the units of the rows; nearly all of them are the same, ``base``.
    columns : ndarray of shape (n_features,) of int
        Exponents of the units of the columns, beside those of the rows; nearly all of them are zero.
    kept : ndarray of shape (n_samples,) of bool
        Which observations these are.
    eps : float
        Rounding of the number format that they came in.
    mean : ndarray of shape (n_features,) or None
        What is taken away for the offset.
    """

    values: np.ndarray | ScaledRows
    rounding: np.ndarray
    noise_level: np.ndarray | None
    rows: np.ndarray
    columns: np.ndarray
    kept: np.ndarray
    base: int
    eps: float
    mean: np.ndarray | None = None

    @classmethod
    def of(cls, X: np.ndarray, noise_level: ArrayLike | None, eps: float) -> Observations:
        """Return observations in units of their own."""
        if not np.any(X):
            raise ValueError("X is all zeros: there is no dictionary to recover")
        if all((X[0] == X[part]).all() for part in row_chunks(X)):
            raise ValueError("all rows of X are alike: without differences there is no dictionary to recover")
        base, rows = _typical_exponents(np.maximum(X.max(axis=1), -X.min(axis=1)), LARGE_ROW)
        peaks = np.zeros(X.shape[1])
        for part in row_chunks(X):
            peaks = np.maximum(peaks, np.abs(np.ldexp(X[part], -rows[part, None])).max(axis=0))
        common, columns = _typical_exponents(peaks, LARGE_COLUMN)
        if noise_level is None:
            own = np.frexp(peaks)[1]
            columns = np.where((peaks > 0) & (own < common + np.log2(NO_ROUNDING * eps)), own, columns)
        columns = columns - common
        values: np.ndarray | ScaledRows = ScaledRows(X, -rows, -columns)
        if X.size <= CHUNK_ENTRIES or len(X) < 4 * X.shape[1]:
            values = np.asarray(values)
        noise = None
        if noise_level is not None:
            if np.size(noise_level) not in (1, len(X)):
                raise ValueError(f"noise_level must be one number or {len(X)}, one for each observation")
            noise = np.ldexp(np.broadcast_to(np.asarray(noise_level, dtype=np.float64), (len(X),)), -rows)
        return cls(values, rounding_of_rows(values, eps), noise, rows, columns, np.ones(len(X), dtype=bool), base, eps)

    def with_offset(self) -> Observations:
        """Return the observations with an offset."""
        values, usual = np.asarray(self.values), self._ones == 1
        mean = (values if usual.all() else values[usual]).mean(axis=0, dtype=np.float64)
        return replace(self, values=values, mean=mean)

    @property
    def _ones(self) -> np.ndarray:
        return np.ldexp(1.0, self.base - self.rows)

    @cached_property
    def one(self) -> float:
        """What stands for one in the constant column: the size of the observations."""
        return float(np.sqrt(np.mean(self._centred**2))) or 1.0

    @cached_property
    def _centred(self) -> np.ndarray:
        return np.asarray(self.values, dtype=np.float64) - self._ones[:, None] * self.mean

    @property
    def matrix(self) -> np.ndarray | ScaledRows:
        """What is searched: the values, or with an offset what is left without it beside a constant column."""
        if self.mean is None:
            return self.values
        return np.column_stack([self._centred, self.one * self._ones]).astype(self.values.dtype)

    def only(self, which: np.ndarray) -> Observations:
        """Return some of the observations."""
        kept = self.kept.copy()
        kept[kept] = which
        noise = None if self.noise_level is None else self.noise_level[which]
        values = self.values.only(which) if isinstance(self.values, ScaledRows) else self.values[which]
        parts = {"values": values, "rounding": self.rounding[which], "rows": self.rows[which]}
        return replace(self, **parts, noise_level=noise, kept=kept)

    def whitened(self, n_components: int | None) -> Whitening:
        """Return them whitened; the constant is a component more."""
        k = n_components if n_components is None or self.mean is None else n_components + 1
        return whiten(self.matrix, k, self.noise_level, rounding=self.rounding, eps=self.eps)

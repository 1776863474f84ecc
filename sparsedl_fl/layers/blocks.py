"""Products with a wide matrix, a block of columns at a time.

A gradient of 720 x 720 images takes a gigabyte in single precision. It stays as the client sent it; one block at a time
is converted to double precision.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from sparsedl.arrays import CHUNK_ENTRIES, ROW_ENTRIES, chunks

__all__ = [
    "OutOfTime",
    "alive",
    "column_blocks",
    "cut_at",
    "in_double",
    "power_of_two",
    "residual_norms",
    "residual_squares",
    "row_factor",
    "row_norms",
    "significands",
    "times",
    "transposed_times",
]


_LIMIT: ContextVar[float | None] = ContextVar("limit", default=None)


class OutOfTime(RuntimeError):
    """Work on a large matrix took longer than the limit."""


@contextmanager
def cut_at(limit: float | None) -> Iterator[None]:
    """Stop work on matrices of several blocks, between two blocks, once `time.perf_counter` is past a limit."""
    token = _LIMIT.set(limit)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def column_blocks(matrix: np.ndarray, n_entries: int | None = None) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield slices of columns and these columns in double precision; raise `OutOfTime` past the limit.

    A block has so many entries at most, None takes `CHUNK_ENTRIES`.
    """
    limit = _LIMIT.get() if matrix.size > CHUNK_ENTRIES else None
    for part in chunks(matrix.shape[1], matrix.shape[0], n_entries):
        if limit is not None and time.perf_counter() > limit:
            raise OutOfTime("the layer is too large for the cap of seconds: its unfinished results are left out")
        yield part, matrix[:, part].astype(np.float64, copy=False)


def in_double(matrix: np.ndarray) -> np.ndarray:
    """Return a matrix of a single block in double precision, for later products; a larger one stays as it is."""
    return matrix.astype(np.float64, copy=False) if matrix.size <= CHUNK_ENTRIES else matrix


def alive(matrix: np.ndarray) -> np.ndarray:
    """Return the numbers of rows and columns that are not all zero, at least one: the others have no noise either."""
    return np.array([max(1, int(matrix.any(axis=1).sum())), max(1, int(matrix.any(axis=0).sum()))])


def power_of_two(matrix: np.ndarray) -> int:
    """Return ``e`` with the largest modulus of a matrix in ``[2^(e-1), 2^e)``; zero for one of zeros."""
    return int(np.frexp(max(float(matrix.max(initial=0.0)), -float(matrix.min(initial=0.0))))[1])


def significands(block: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return the significands of numbers, in [1/2, 1), in single precision, and whether they fit into it.

    Without the exponents, the scale of the gradient has no influence.
    """
    digits = np.frexp(block)[0]
    if digits.dtype == np.float32:
        return digits, True
    single = digits.astype(np.float32)
    return single, bool(np.array_equal(single, digits))


def times(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return ``matrix @ right`` in double precision."""
    product = np.zeros((matrix.shape[0], *right.shape[1:]))
    for part, block in column_blocks(matrix):
        product += block @ right[part]
    return product


def transposed_times(matrix: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return ``matrix.T @ left`` in double precision."""
    product = np.empty((matrix.shape[1], left.shape[1]))
    for part, block in column_blocks(matrix):
        product[part] = block.T @ left
    return product


def row_factor(matrix: np.ndarray) -> np.ndarray:
    """Return a square ``R^T`` with ``matrix = R^T Q^T`` for some ``Q`` with orthonormal columns, without forming ``Q``.

    The factor is updated block by block (a sequential QR decomposition), so that no condition number is squared.
    """
    factor = np.zeros((0, matrix.shape[0]))
    for _, block in column_blocks(matrix):
        factor = np.asarray(np.linalg.qr(np.concatenate([factor, block.T]), mode="r"))
    return factor.T


def residual_norms(matrix: np.ndarray, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the norms of the rows and of the columns of ``matrix - left @ right``."""
    rows, columns = np.zeros(matrix.shape[0]), np.empty(matrix.shape[1])
    for part, block in column_blocks(matrix, ROW_ENTRIES):  # small enough to stay in the cache
        residual = left @ right[:, part]
        residual -= block
        residual *= residual
        rows += residual.sum(axis=1)
        columns[part] = residual.sum(axis=0)
    return np.sqrt(rows), np.sqrt(columns)


def residual_squares(matrix: np.ndarray, column: np.ndarray, row: np.ndarray) -> float:
    """Return the sum of the squares of ``matrix - column row^T``."""
    blocks = column_blocks(matrix)
    return float(sum(np.sum((block - np.outer(column, row[part])) ** 2) for part, block in blocks))


def row_norms(matrix: np.ndarray) -> np.ndarray:
    """Return the norms of the rows in double precision."""
    return np.sqrt(sum(np.einsum("ij,ij->i", block, block) for _, block in column_blocks(matrix, ROW_ENTRIES)))

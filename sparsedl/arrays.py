"""Where NumPy and torch, devices, seeds and sizes of chunks meet: the one place for both packages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state

__all__ = [
    "Matrix",
    "RandomState",
    "Rows",
    "as_numpy",
    "as_tensor",
    "check_device",
    "chunks",
    "draw_generator",
    "draw_seed",
    "row_chunks",
    "rows_of",
]

Matrix = ArrayLike | torch.Tensor
"""What users give numbers in."""

RandomState = int | np.random.RandomState | None
"""What scikit-learn draws from."""

CHUNK_ENTRIES = 4_000_000
"""Numbers that are worked on at once, where nothing else is said: 32 MB in double precision. Weighted Gram matrices of
(300, 1000) take a quarter longer in chunks of 16 million, and no less in smaller ones."""

ROW_ENTRIES = 500_000
"""Numbers of a part of many rows, of which several copies are made: 4 MB in double precision, each."""

CACHE_LINE = 64
"""Bytes at whose multiples torch's own tensors begin."""


class Rows(Protocol):
    """A matrix whose rows are read a part at a time: an array, or what computes them when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""

    @property
    def dtype(self) -> np.dtype:
        """Of the entries."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: slice | np.ndarray, /) -> np.ndarray: ...
    def __array__(self) -> np.ndarray: ...


def as_numpy(array: Matrix) -> ArrayLike:
    """Return a torch tensor as a NumPy array on the CPU, and anything else untouched."""
    if isinstance(array, torch.Tensor):
        return array.detach().cpu().numpy()
    return array


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a NumPy array as a tensor on the CPU, of the same type, without a copy where it lies as torch's own do.

    Kernels go through numbers in another order where these begin elsewhere in a line of the cache, and NumPy's begin
    anywhere: two runs would differ in the last digits.
    """
    found = torch.from_numpy(np.ascontiguousarray(array))
    return found if found.data_ptr() % CACHE_LINE == 0 else found.clone()


def rows_of(columns: np.ndarray) -> torch.Tensor:
    """Return the columns of a matrix as the rows of a tensor: what has one item a column here has one a row there."""
    return as_tensor(np.asarray(columns).T)


def draw_seed(random_state: RandomState) -> int:
    """Draw a seed from a scikit-learn ``random_state``."""
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def draw_generator(random_state: RandomState, device: torch.device | str = "cpu") -> torch.Generator:
    """Turn a scikit-learn ``random_state`` into a ``torch.Generator``."""
    return torch.Generator(device=device).manual_seed(draw_seed(random_state))


def row_chunks(matrix: Rows) -> Iterator[slice]:
    """Yield slices of the rows of a matrix that take little memory."""
    return chunks(len(matrix), matrix.shape[1], ROW_ENTRIES)


def chunks(n_items: int, entries_each: int, limit: int | None = None) -> Iterator[slice]:
    """Yield slices of so many items that work on ``entries_each`` numbers each, a chunk at a time.

    Parameters
    ----------
    n_items : int
        Items; nothing is yielded for none.
    entries_each : int
        Numbers that one of them takes.
    limit : int or None, default=None
        Numbers in a chunk; None takes `CHUNK_ENTRIES`.

    Examples
    --------
    >>> [(part.start, part.stop) for part in chunks(5, 10, limit=25)]
    [(0, 2), (2, 4), (4, 5)]
    """
    size = max(1, (CHUNK_ENTRIES if limit is None else limit) // max(entries_each, 1))
    for start in range(0, n_items, size):
        yield slice(start, min(start + size, n_items))


def check_device(owner: object, device: str | torch.device) -> torch.device:
    """Return a torch device, or raise ``ValueError``, with the owner's name, if this machine does not have it."""
    name = owner if isinstance(owner, str) else type(owner).__name__
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name}: device must name a torch device, got {device!r}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{name}: device={device!r}, but torch sees no CUDA device on this machine")
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"{name}: device must be 'cpu' or 'cuda', got {device!r}")
    return found

"""Whitening: coordinates in which the dictionary is nearly orthogonal, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import qr, svd

from sparsedl.arrays import CHUNK_ENTRIES, Rows, row_chunks

__all__ = ["Whitening", "whiten"]


@dataclass(frozen=True)
class Whitening:
    """Observations in whitened coordinates, ``X ~ whitened @ mixing`` and ``whitened = X @ unmixing``.

    Attributes
    ----------
    observations : ndarray of shape (n_samples, n_features)
        ``X``.
    left : ndarray of shape (n_samples, n_components) or None
        The whitened ones, where they are few enough to be kept.
    mixing : ndarray of shape (n_components, n_features)
        Back to the observations.
    unmixing : ndarray of shape (n_features, n_components)
        From the observations; its column norms say how much whitening amplifies noise.
    noise_level : ndarray of shape (n_samples,)
        Standard deviation of the noise on the entries of each observation, in the units of ``X``.
    singular_values : ndarray of shape (rank,)
        Those above rounding, of the components and of what lies beyond.
    hidden_below : float
        Singular values below this are rounding.
    leverages : ndarray of shape (n_samples,)
        How much of each observation no other one can say, from 0 to 1.
    """

    observations: Rows
    left: np.ndarray | None
    mixing: np.ndarray
    unmixing: np.ndarray
    noise_level: np.ndarray
    singular_values: np.ndarray
    hidden_below: float
    leverages: np.ndarray

    @property
    def n_components(self) -> int:
        """How many components there are."""
        return len(self.mixing)

    @property
    def whitened(self) -> np.ndarray:
        """The matrix ``L``, with ``L^T L = n_samples I``: a unit direction gives entries of mean square one."""
        return self.rows(slice(None))

    def rows(self, which: slice | np.ndarray) -> np.ndarray:
        """Return some of its rows."""
        if self.left is not None:
            return self.left[which]
        return self.observations[which].astype(np.float64, copy=False) @ self.unmixing

    def chunks(self) -> Iterator[slice]:
        """Yield slices of rows that fit into little memory."""
        return row_chunks(self.observations)


def rounding_of_rows(X: Rows, eps: float) -> np.ndarray:
    """Return the rounding error of the entries of each observation, shape (n_samples,)."""
    parts = (X[part].astype(np.float64, copy=False) for part in row_chunks(X))
    squares = np.concatenate([np.mean(part**2, axis=1) for part in parts])
    return eps * np.maximum(np.sqrt(squares), np.sqrt(np.mean(squares)))


def _triangular(X: Rows) -> np.ndarray:
    """Return ``R`` of ``X = Q R``, a chunk of rows after the other: its singular values are those of ``X``."""
    R = np.zeros((0, X.shape[1]))
    for part in row_chunks(X):
        R = qr(np.vstack([R, X[part]]), mode="r", check_finite=False, overwrite_a=True)[0][: X.shape[1]]
    return R


def whiten(
    X: Rows,
    n_components: int | None = None,
    noise_level: ArrayLike | None = None,
    *,
    rounding: np.ndarray | None = None,
    eps: float | None = None,
) -> Whitening:
    """Whiten by the singular value decomposition ``X = U S V^T``, in float64.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Observations. They are not centred: centring would destroy the zeros of the codes.
    n_components : int or None, default=None
        Number of components; None takes the numerical rank.
    noise_level : float, array-like of shape (n_samples,) or None, default=None
        Standard deviation of the noise on the entries. None derives it: from what lies beyond ``n_components``
        singular values, and at least the rounding error.
    rounding : ndarray of shape (n_samples,) or None, default=None
        Rounding error of the entries of each observation; None derives it from ``eps``.
    eps : float or None, default=None
        Rounding of the number format that ``X`` came in; None is that of its dtype.

    Raises
    ------
    ValueError
        If the observations are all zero, or their rank is below ``n_components``.

    References
    ----------
    Sun, Qu and Wright, "Complete dictionary recovery over the sphere I", 2017, Sec. III; SPEAR++ (2025), Sec. 4.1.
    """
    n_samples, n_features = X.shape
    if eps is None:
        eps = float(np.finfo(X.dtype if np.issubdtype(X.dtype, np.floating) else float).eps)
    rounding = rounding_of_rows(X, eps) if rounding is None else rounding
    scale, U = np.sqrt(n_samples), None
    if n_samples * n_features <= CHUNK_ENTRIES or n_samples < 4 * n_features:
        U, S, Vt = svd(np.asarray(X, dtype=np.float64), full_matrices=False, check_finite=False)
    else:
        _, S, Vt = svd(_triangular(X), full_matrices=False, check_finite=False)
    hidden_below = _rounding_of_values(S[0], X.shape, rounding, eps)
    rank = int(np.count_nonzero(hidden_below < S))
    if rank == 0:
        raise ValueError("X is all zeros: there is no dictionary to recover")
    k = rank if n_components is None else n_components
    if k > rank:
        raise ValueError(f"n_components={k} is more than the rank of X, which is {rank} (shape {X.shape})")
    shares, beyond = _shares(X, U, S, Vt, k, rank)
    if noise_level is None:
        noise = np.maximum(np.sqrt(beyond / max(n_features - k, 1)), rounding)
    else:
        noise = np.maximum(np.broadcast_to(np.asarray(noise_level, dtype=np.float64), (n_samples,)), rounding)
    return Whitening(
        observations=X,
        left=None if U is None else np.ascontiguousarray(U[:, :k]) * scale,
        mixing=S[:k, None] * Vt[:k] / scale,
        unmixing=Vt[:k].T / S[:k] * scale,
        noise_level=noise,
        singular_values=S[:rank],
        hidden_below=hidden_below,
        leverages=shares,
    )


def _rounding_of_values(largest: float, shape: tuple[int, ...], rounding: np.ndarray, eps: float) -> float:
    """Return below what singular values are rounding: ours, that of how the entries were computed, and their own."""
    # Formats coarser than single precision are for storing: what they hold was computed in another.
    computed = eps if eps <= np.finfo(np.float32).eps else np.finfo(np.float64).eps
    ours = largest * max(shape) * np.finfo(np.float64).eps
    of_entries = np.sqrt(np.mean(rounding**2)) * (shape[0] ** 0.5 + shape[1] ** 0.5)
    return float(max(ours, largest * shape[1] * computed, of_entries))


def _shares(
    X: Rows, U: np.ndarray | None, S: np.ndarray, Vt: np.ndarray, k: int, rank: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the leverage of each row, and the square of what lies beyond the first ``k`` singular vectors."""
    leverages, beyond = np.empty(len(X)), np.empty(len(X))
    for part in [slice(None)] if U is not None else row_chunks(X):
        left = U if U is not None else X[part].astype(np.float64, copy=False) @ (Vt.T / np.maximum(S, S[0] * 1e-300))
        leverages[part] = np.sum(left[:, :rank] ** 2, axis=1)
        beyond[part] = np.sum((left[:, k:] * S[k:]) ** 2, axis=1)
    return leverages, beyond

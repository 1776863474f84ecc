"""The row space of a layer's change, which holds every input that changed it, up to noise of known size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import svd

from sparsedl_fl.layers.blocks import alive

__all__ = ["RowSpace"]

ABOVE_EDGE = 2.0
"""Singular value over the largest of white noise as strong as all that follow it, from which on one is no noise
(not varied; 400 hostile problems, none wrong, none missed that was in range)."""

FEWEST_BEYOND = 4
"""Singular values that show the noise."""


FEWEST_OPEN, CLEAR_END = 2, 10.0
"""Least number of rows beyond the directions that show the noise, and least ratio of the weakest direction to it: where
the directions fade into the noise, it hides some (14 of 65 digits in bfloat16 before this; not varied)."""


@dataclass(frozen=True)
class RowSpace:
    """Directions of a matrix above its noise.

    Parameters
    ----------
    basis : ndarray of shape (r, n)
        Orthonormal rows.
    sizes : ndarray of shape (r,)
        Singular values, descending.
    noise : float
        Standard deviation of the noise on each entry of the matrix.
    shape : (int, int)
        Rows and columns that are not all zero.

    Notes
    -----
    The change of a linear layer by SGD is a sum of ``d x^T`` over all inputs ``x`` it was trained on, at any number of
    steps. To first order in the noise, the row space then misses ``x`` by ``noise * sqrt(n - r) * |a / sizes|`` with
    the coordinates ``a`` of ``x`` in it.
    """

    basis: np.ndarray
    sizes: np.ndarray
    noise: float
    shape: tuple[int, int]

    @classmethod
    def of(cls, change: np.ndarray) -> RowSpace:
        """Return the row space of a matrix in double precision."""
        m, n = (int(size) for size in alive(change))
        _, S, basis = svd(change, full_matrices=False, check_finite=False)
        S, basis = S[: min(m, n)], basis[: min(m, n)]
        rank, noise = _above_white_noise(S, m, n)
        least = np.finfo(float).eps * S[0] / np.sqrt(max(m, n))
        return cls(basis[:rank], S[:rank], max(noise, least), (m, n))

    @property
    def n_directions(self) -> int:
        """Number of directions: so many different inputs at least."""
        return len(self.sizes)

    @property
    def n_open(self) -> tuple[int, int]:
        """Rows and columns of the layer beyond these directions."""
        m, n = self.shape
        return m - self.n_directions, n - self.n_directions

    def is_whole(self, most_noise: float) -> bool:
        """Return whether nothing but rounding, of so much for each entry at most, lies clearly beyond these directions.

        Else other inputs may be hidden there: there are more than the layer is wide, some with gradients near rounding,
        noise was added, or the optimiser is not SGD.
        """
        edge = self.noise * np.sum(np.sqrt(self.n_open))
        is_clear = self.n_directions > 0 and self.sizes[-1] >= CLEAR_END * edge
        return self.n_open[0] >= FEWEST_OPEN and is_clear and self.noise <= most_noise

    def distances(self, inputs: np.ndarray) -> np.ndarray:
        """Return the distances of inputs of shape (k, n) from the row space."""
        return np.linalg.norm(inputs - (inputs @ self.basis.T) @ self.basis, axis=1)

    def expected_distances(self, inputs: np.ndarray) -> np.ndarray:
        """Return the distances, for inputs that lie in the row space but for its noise."""
        return self.unit_noise * np.linalg.norm((inputs @ self.basis.T) / self.sizes, axis=1)

    @property
    def unit_noise(self) -> float:
        """Expected distance of an input over the norm of its coordinates, each relative to its direction's size."""
        return self.noise * float(np.sqrt(max(self.n_open[1], 1)))

    @cached_property
    def open_shares(self) -> np.ndarray:
        """Squared distance of each unit vector from the row space, shape (n,)."""
        return np.clip(1 - np.sum(self.basis**2, axis=0), 0.0, 1.0)

    @cached_property
    def expected_shares(self) -> np.ndarray:
        """The squared distance that is expected of noise, shape (n,)."""
        return np.sum((self.unit_noise * self.basis / self.sizes[:, None]) ** 2, axis=0)

    def open_products(self, columns: np.ndarray) -> np.ndarray:
        """Return the inner products of what of these unit vectors lies outside the row space."""
        part = self.basis[:, columns]
        return np.eye(len(columns)) - part.T @ part

    def expected_products(self, columns: np.ndarray) -> np.ndarray:
        """Return the inner products that are expected of noise."""
        part = self.unit_noise * self.basis[:, columns] / self.sizes[:, None]
        return part.T @ part


def _above_white_noise(S: np.ndarray, m: int, n: int) -> tuple[int, float]:
    """Return how many singular values are no noise, and the standard deviation of the noise.

    From the end, the tail is as white as noise up to the last direction that is none.
    """
    ranks = np.arange(len(S))
    beyond = np.cumsum((S**2)[::-1])[::-1]
    levels = np.sqrt(beyond / ((m - ranks) * (n - ranks)))
    tested = ranks[: max(len(S) - FEWEST_BEYOND, 0)]
    edges = levels[tested + 1] * (np.sqrt(m - tested) + np.sqrt(n - tested))
    signals = tested[S[tested] > ABOVE_EDGE * edges]
    rank = int(signals[-1]) + 1 if len(signals) else 0
    return rank, float(levels[rank])

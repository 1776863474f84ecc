"""The leading singular values of a wide gradient, and how many of them belong to the batch."""

from __future__ import annotations

import warnings

import numpy as np
from scipy.linalg import svd

from sparsedl_fl.layers.blocks import row_factor, times, transposed_times
from sparsedl_fl.lowrank.measured import Measured

__all__ = [
    "believed_noise",
    "distinct_rank",
    "edge_of_white_noise",
    "leading_left",
    "rank_above_floor",
    "rank_above_rounding",
    "rank_above_white_noise",
]


CLEARLY_ABOVE = 10.0
"""Ratio to the largest singular value of white noise from which on one is no noise."""

SECOND_GAP, FEWEST_BEYOND = 20.0, 8
"""Least ratio of neighbours that is a second gap, and the least number of singular values after it."""

MOST_OF_ALL = 0.8
"""Share of the singular values above rounding from which on the largest gap stands: the few weakest samples are better
counted as noise than searched for (of 40 digits with 38 before the gap 30 were certified, with all 40 none)."""

ENOUGH, OFF_BY, VISIBLE = 100, 3.0, 1e-4
"""Least number of entries that measure the noise, the factor by which a given level may be off, and the share of the
gradient above which noise is more than rounding."""


def leading_left(
    G: np.ndarray | Measured,
    batch_size: int | None,
    limit: int,
    *,
    sketch_width: int = 128,
    oversampling: int = 32,
    conclusive_gap: float = 1e3,
    n_iterations: tuple[int, int] = (1, 10),
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the leading left singular vectors and values, enough of them to show the batch size, and that size.

    Parameters
    ----------
    G : ndarray of shape (m, n) or Measured
        The gradient.
    batch_size : int or None
        The size where it is known; None takes the numerical rank.
    limit : int
        Singular values that count for the rank.
    sketch_width, oversampling : int, default=128 and 32
        Columns of a first sketch, and those beyond a batch of known size.
    conclusive_gap : float, default=1e3
        Ratio of a singular value to *all* after it above which a sketch need not contain the others.
    n_iterations : (int, int), default=(1, 10)
        Iterations of a sketch where the gap is sought, and where the size is known: then there may be noise.
    """
    measured = Measured.of(G)
    G, total, rounding = measured.matrix, measured.total, measured.rounding
    width, range_of = sketch_width if batch_size is None else batch_size + oversampling, RangeFinder(G)
    while 2 * width < min(G.shape):
        basis = range_of.basis(width)
        if batch_size is None:
            end = range_of.last_gap(limit)
            if end == 0 or end + oversampling > width:
                width = end + oversampling if end else 2 * width
                continue
            basis = range_of.narrowed(end + oversampling)
        U, S = range_of.decomposition(basis, n_iterations[batch_size is not None])
        b = _numerical_rank(S[:limit], rounding) if batch_size is None else batch_size
        beyond = np.sqrt(max(total**2 - np.sum(S[:b] ** 2), 0.0))
        if batch_size is not None or S[b - 1] > conclusive_gap * beyond:
            return U, S, b
        width *= 2
    if G.shape[0] <= G.shape[1]:
        U, S, _ = svd(row_factor(G), check_finite=False)
    else:
        V, S, _ = svd(row_factor(G.T), check_finite=False)
        U = times(G, V) / np.maximum(S, np.finfo(float).tiny)
    return U, S, _numerical_rank(S[:limit], rounding) if batch_size is None else batch_size


def rank_above_rounding(G: np.ndarray, rounding: np.ndarray, *, clearly_above: float = 6.0) -> int:
    """Return how many inputs show above rounding of known size, at the largest gap above it.

    Rows are scaled to equal noise first: where each has a quantisation scale of its own, the smallest rows have hardly
    any noise, and would look like further inputs.

    Parameters
    ----------
    G : ndarray of shape (m, n)
        The gradient.
    rounding : ndarray of shape (m,)
        Standard deviation of the rounding in each row.
    clearly_above : float, default=6
        Singular value over the largest of white noise that cannot be rounding. With a scale for each row, rows of one
        input are all rounded alike, which gives ratios of up to 4.5 (CIFAR-10, two inputs at width 400).
    """
    alive = rounding > 0
    even = G[alive] / rounding[alive, None]
    factor = row_factor(even) if even.shape[0] <= even.shape[1] else row_factor(even.T)
    S = svd(factor, compute_uv=False, check_finite=False)
    edge = float(np.sum(np.sqrt(even.shape)))
    least = max(1, int(np.sum(clearly_above * edge < S)))
    return least - 1 + _numerical_rank(S[least - 1 :], edge)


def rank_above_white_noise(singular_values: np.ndarray, rank: int, G: np.ndarray | Measured) -> int:
    """Return how many inputs show above the noise, where some have far smaller gradients than others.

    Inputs of which a trained network is certain have singular values after the largest gap. A singular value is no
    noise while it exceeds `CLEARLY_ABOVE` times the largest of white noise as strong as all that follow; rounding
    reaches 5.2 (float32 clients on CIFAR-10, MNIST and Adult). Where none is noise, the rank stays as it was. Several
    similar ones may hide each other, such as samples of one class at an untrained head. They show by a second gap,
    after which the others are as white as noise. Where the spectrum falls evenly down to rounding, no gap means
    anything, and all that stand clearly above rounding are samples. (40 digits after 300 steps of training: one sample
    was seen, where 40 singular values over eight decades end at rounding.)

    Parameters
    ----------
    singular_values : ndarray of shape (k,)
        The leading ones, descending.
    rank : int
        Those before the largest gap.
    G : ndarray of shape (m, n) or Measured
        The gradient.
    """
    # Rows and columns of zeros have no noise: one-hot inputs leave most columns empty.
    measured = Measured.of(G)
    total, shape = measured.total, measured.alive
    edge = np.sum(np.sqrt(shape)) / np.sqrt(np.prod(shape, dtype=float))
    squares = singular_values**2
    unseen = max(total**2 - squares.sum(), 0.0) if len(squares) < min(measured.matrix.shape) else 0.0
    beyond = np.sqrt(np.cumsum(np.append(squares[1:], unseen)[::-1])[::-1])
    is_noise = singular_values <= CLEARLY_ABOVE * edge * np.maximum(beyond, np.finfo(float).eps * total)
    later = np.flatnonzero(is_noise[rank:])
    rank = rank + int(later[0]) if len(later) else rank
    ranks = np.arange(rank + 1, len(singular_values) - FEWEST_BEYOND + 1)
    last, first_beyond = singular_values[ranks - 1], singular_values[ranks]
    of_noise = edge * np.hypot(first_beyond, beyond[ranks])
    is_rank = (last > SECOND_GAP * first_beyond) & (last > CLEARLY_ABOVE * of_noise)
    is_rank &= (first_beyond <= CLEARLY_ABOVE * of_noise) & (first_beyond > measured.rounding)
    rank = int(ranks[is_rank][-1]) if is_rank.any() else rank
    above = rank_above_floor(singular_values, measured)
    is_far_from_all = rank < MOST_OF_ALL * above and above <= len(singular_values) - FEWEST_BEYOND
    return above if is_far_from_all else rank


def rank_above_floor(singular_values: np.ndarray, G: np.ndarray | Measured, *, clearly_above: float = 30.0) -> int:
    """Return how many singular values clearly exceed rounding, whatever the gaps: all for a matrix of full rank.

    Parameters
    ----------
    singular_values : ndarray of shape (k,)
        The leading ones, descending.
    G : ndarray of shape (m, n) or Measured
        The matrix.
    clearly_above : float, default=30
        Ratio to the size of rounding.
    """
    return int(np.sum(singular_values > clearly_above * Measured.of(G).rounding))


def distinct_rank(S: np.ndarray, batch_size: int, clear_gap: float, *, noise_spread: float = 10.0) -> int:
    """Return the batch size, or the rank where the other inputs clearly repeat earlier ones or have no loss.

    Singular values within a factor of ``noise_spread`` may all be noise.
    """
    values = np.maximum(S[: batch_size + 1], np.finfo(float).eps * S[0])
    gaps = values[:-1] / values[1:]
    rank = int(np.argmax(gaps)) + 1
    is_noise = rank < batch_size < len(S) and values[rank] <= noise_spread * values[batch_size]
    return rank if is_noise and gaps[rank - 1] > clear_gap else batch_size


class RangeFinder:
    """Leading left singular vectors by randomised subspace iteration, with more and more random columns.

    Parameters
    ----------
    G : ndarray of shape (m, n)
        The matrix.

    References
    ----------
    Halko, Martinsson and Tropp, SIAM Review 2011, Algorithms 4.2 and 4.4.
    """

    def __init__(self, G: np.ndarray) -> None:
        self.G, self._rng, self._image = G, np.random.default_rng(0), np.zeros((len(G), 0))
        self._sizes = np.zeros(0)

    def basis(self, width: int) -> np.ndarray:
        """Return an orthonormal basis of the image of so many random columns."""
        n_more = width - self._image.shape[1]
        more = times(self.G, self._rng.standard_normal((self.G.shape[1], n_more)))
        self._image = np.hstack([self._image, more])
        self._basis, mixing = np.linalg.qr(self._image)
        self._rotation, self._sizes, _ = svd(mixing, check_finite=False)
        return self._basis

    def narrowed(self, width: int) -> np.ndarray:
        """Return a basis of the directions in which that image is largest."""
        return self._basis @ self._rotation[:, :width]

    def last_gap(self, limit: int, *, visible: float = 5.0) -> int:
        """Return how many directions the image has before its last gap; zero where none shows.

        Beyond the batch the sizes of a random image of noise fall slowly. (float32 clients on CIFAR-10, MNIST and Adult
        have ratios of neighbours below 1.2 there.)
        """
        sizes = self._sizes[:limit]
        gaps = np.flatnonzero(sizes[:-1] > visible * sizes[1:])
        return int(gaps[-1]) + 1 if len(gaps) else 0

    def decomposition(self, basis: np.ndarray, n_iterations: int) -> tuple[np.ndarray, np.ndarray]:
        """Return approximate singular vectors and values, after so many iterations."""
        for _ in range(n_iterations):
            basis = np.linalg.qr(times(self.G, np.linalg.qr(transposed_times(self.G, basis))[0]))[0]
        factor = np.asarray(np.linalg.qr(transposed_times(self.G, basis), mode="r")).T
        U, S, _ = svd(factor, check_finite=False)
        return basis @ U, S


def _numerical_rank(singular_values: np.ndarray, floor: float) -> int:
    logs = np.log(np.maximum(singular_values, floor))
    if len(logs) == 1:
        return 1
    return int(np.argmax(logs[:-1] - logs[1:])) + 1


def edge_of_white_noise(squares: float, shape: np.ndarray) -> float:
    """Return the largest singular value of white noise with a sum of squares, in so many rows and columns.

    Rows and columns of zeros do not count: one-hot inputs leave most columns empty.
    """
    return float(np.sqrt(squares / np.prod(shape, dtype=float)) * np.sum(np.sqrt(shape)))


def believed_noise(given: float | None, measured: float, freedom: int, S: np.ndarray) -> float | None:
    """Return the given noise level, or None where the singular values beyond the batch contradict it."""
    if given is None or freedom < ENOUGH or measured / OFF_BY <= given <= OFF_BY * measured:
        return given
    if given > measured or measured > VISIBLE * np.linalg.norm(S) / np.sqrt(freedom):
        warnings.warn(
            f"noise_level is too {'large' if given > measured else 'small'}: the gradient differs from rank {len(S)} "
            f"by {measured / given if given else np.inf:.2g} times as much an entry, which is used instead; is it the "
            "noise on the mean over the batch (noise multiplier * clipping / batch size)?",
            UserWarning,
            stacklevel=5,
        )
    return None

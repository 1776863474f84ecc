"""The gradient as a product of two thin matrices: batch size from the numerical rank, factors, noise floor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import norm

from sparsedl.arrays import as_tensor, rows_of
from sparsedl.zeros import ZeroTest
from sparsedl_fl.layers.blocks import residual_norms, transposed_times
from sparsedl_fl.lowrank.measured import Measured
from sparsedl_fl.lowrank.spectrum import believed_noise, edge_of_white_noise

__all__ = ["LowRankGradient", "cut"]

EVEN = 1e3
"""Ratio of the largest and the smallest singular value up to which rows are orthonormal to 1e-12 as they are."""


@dataclass(frozen=True)
class LowRankGradient:
    """The factorisation ``G = U S V^T``, cut at the batch size ``b``.

    Attributes
    ----------
    left : ndarray of shape (m, b)
        ``U``; its products ``U q`` with the right directions are the columns of ``D``, up to scale.
    singular_values : ndarray of shape (b,)
        ``S``, descending.
    right : ndarray of shape (b, n)
        ``V^T``.
    noise_level : ndarray of shape (m,)
        Standard deviation of the noise on the entries of each row of ``G``, estimated beyond the rank.
    input_noise_level : ndarray of shape (n,)
        The same for each column.
    signal_to_noise : float
        Smallest singular value kept over the largest dropped; infinite when nothing is dropped.
    beyond : float
        The largest singular value dropped.
    excess : float
        The same over the largest of white noise as strong as all others: about one for white noise, up to 3.3 where
        rounding follows the size of the entries (float32 and bfloat16 clients on CIFAR-10).
    beyond_left : ndarray of shape (m,)
        Its left singular vector.
    bias_excess : float
        Noise of the bias gradient, which determines the scale of an input, over that of the weight gradient.
    precision : float
        Relative precision of the client's numbers.
    is_coarse : bool
        Whether they have a coarser number format, half precision or a few bits.
    clear_gap : float
        Ratio of neighbouring singular values above which the rank is certain; a float32 client has 1e5 and more.
    """

    left: np.ndarray
    singular_values: np.ndarray
    right: np.ndarray
    noise_level: np.ndarray
    input_noise_level: np.ndarray
    signal_to_noise: float
    beyond: float
    excess: float
    beyond_left: np.ndarray
    bias_excess: float = 1.0
    precision: float = float(np.finfo(np.float32).eps)
    is_coarse: bool = False
    clear_gap: float = 10.0

    @property
    def batch_size(self) -> int:
        """The number of inputs, ``b``."""
        return len(self.singular_values)

    @property
    def ends_clearly(self) -> bool:
        """Whether the gap after the singular values of the batch is so large that its size is certain."""
        return self.signal_to_noise >= self.clear_gap

    @property
    def transposed(self) -> LowRankGradient:
        """The factorisation of ``G^T``, in which inputs and gradients ``D`` are exchanged."""
        sides: dict[str, Any] = {"left": self.right.T, "right": self.left.T}
        sides |= {"noise_level": self.input_noise_level, "input_noise_level": self.noise_level}
        nothing = np.zeros(self.right.shape[1])
        return replace(self, **sides, beyond_left=nothing, bias_excess=1.0, is_coarse=False)

    @cached_property
    def zero_test(self) -> ZeroTest:
        """The test for zeros, in coordinates where ``sqrt(m) U`` is white.

        The noise of ``U q = G V S^-1 q`` has the standard deviation ``noise_level * |S^-1 q|``.
        """
        scale = np.sqrt(len(self.left))
        return ZeroTest(
            observations=as_tensor(self.left * scale),
            unmixing=as_tensor(np.diag(scale / self.singular_values)),
            noise_level=as_tensor(self.noise_level),
        )

    def tolerances(self, directions: np.ndarray) -> np.ndarray:
        """Return sizes up to which entries of ``U q`` count as zero, of shape (m, c), for unit columns (b, c)."""
        return self.zero_test.tolerances(rows_of(directions)).numpy().T / np.sqrt(len(self.left))

    def calibrated(self, directions: np.ndarray, *, clear_zeros: float = 1e3) -> LowRankGradient:
        """Raise the noise level to that of the zeros of the directions found, where it is too low.

        Singular values beyond the rank measure white noise. Rounding in a client's sums over smooth images is not
        white: on 720 x 720 photographs the zeros have ten times that noise. Many orders of magnitude separate them from
        the other entries, so that their size is the noise; they count where the smallest other entry of a column is at
        least ``clear_zeros`` times its largest zero.
        """
        m, b = self.left.shape
        deviations = self.tolerances(directions) / self.zero_test.noise_multiple
        ratios = np.sort(np.abs(self.left @ directions) / deviations, axis=0)
        floored = np.log(np.maximum(ratios, 1.0))
        last = b + np.argmax(np.diff(floored[b:], axis=0), axis=0) if b < m - 1 else np.zeros(0, dtype=int)
        columns = np.arange(len(last))
        is_clear = ratios[last + 1, columns] > clear_zeros * np.maximum(ratios[last, columns], 1.0)
        largest, n_zeros = ratios[last, columns][is_clear], last[is_clear] + 1
        # The largest of many Gaussian moduli: one in so many is larger.
        factor = max(1.0, float(np.median(largest / norm.isf(0.35 / n_zeros)))) if len(largest) else 1.0
        if factor == 1.0:
            return self
        return replace(self, noise_level=self.noise_level * factor, input_noise_level=self.input_noise_level * factor)

    def zeros(self, directions: np.ndarray) -> np.ndarray:
        """Return which entries of ``U q`` are zero up to noise, a boolean array of shape (m, c)."""
        return np.abs(self.left @ directions) <= self.tolerances(directions)

    def vanishing(self, weights: np.ndarray) -> np.ndarray:
        """Return the unit ``q`` of shape (b, c) with the smallest ``sum_r w_r (u_r q)^2`` relative to its noise.

        One for each column of ``weights``, of shape (m, c); boolean ones say which rows to take.
        """
        return self.zero_test.vanishing(rows_of(weights)).numpy().T

    def prove(self, directions: np.ndarray, zeros: np.ndarray, eligible: np.ndarray | None = None) -> np.ndarray:
        """Return which unit columns of shape (b, c) their zeros certify (see `sparsedl.zeros.ZeroTest.prove`)."""
        rows, is_zero, expected = (None if array is None else rows_of(array) for array in (directions, zeros, eligible))
        return self.zero_test.prove(rows, is_zero, expected).numpy()

    def determined(self, directions: np.ndarray, zeros: np.ndarray) -> np.ndarray:
        """Return which unit columns their zero rows determine, by what a proof asks for or, if that is not met, at all.

        Of shape (b, c) and (m, c).
        """
        test, rows = self.zero_test, rows_of(zeros)
        determined = test.determined(rows_of(directions), rows & test.distinct_rows)
        determined[~determined] = test.determinacy.of(as_tensor(self.left), rows[~determined])
        return determined.numpy()

    def apart(self, directions: np.ndarray, zeros: np.ndarray, eligible: np.ndarray) -> np.ndarray:
        """Return which unit columns of shape (b, c) are no mixtures of others (see `sparsedl.zeros.ZeroTest.apart`)."""
        rows, is_zero, expected = (rows_of(array) for array in (directions, zeros, eligible))
        return self.zero_test.apart(rows, is_zero, expected).numpy()

    def likely_zeros(self, directions: np.ndarray) -> np.ndarray:
        """Return which entries of ``U q`` are likelier zero than not, a boolean array of shape (m, c).

        Under heavy noise this is better than `zeros` for a comparison with active units.
        """
        return self.zero_test.likely_zeros(rows_of(directions)).numpy().T


def cut(
    G: np.ndarray | Measured,
    U: np.ndarray,
    S: np.ndarray,
    b: int,
    noise_level: float | None = None,
    is_coarse: bool = False,
) -> LowRankGradient:
    """Return the factorisation of a matrix cut after its ``b``-th singular value, with the noise that is left.

    Parameters
    ----------
    G : ndarray of shape (m, n) or Measured
        The matrix.
    U, S : ndarray of shape (m, k) and (k,)
        Its leading left singular vectors and values, ``k >= b``: one more shows what is beyond, if there is any.
    b : int
        The rank. A matrix of full rank leaves no noise.
    noise_level, is_coarse
        As in `factorize` and of `LowRankGradient`.
    """
    measured = Measured.of(G)
    G = measured.matrix
    m, n = G.shape
    signal_to_noise = float(S[b - 1] / S[b]) if len(S) > b and S[b] > 0 else np.inf
    beyond, beyond_left = (float(S[b]), U[:, b]) if len(S) > b else (0.0, np.zeros(m))
    U, S = U[:, :b], S[:b]
    right = transposed_times(G, U).T / S[:, None]
    if S[0] > EVEN * S[-1]:
        right = _orthonormal_rows(right)
    rows, columns = residual_norms(G, U * S, right)
    floor, freedom = np.finfo(float).eps * np.linalg.norm(S) / np.sqrt(m * n), max(1, (m - b) * (n - b))
    believed = believed_noise(noise_level, np.sqrt(np.sum(rows**2) / freedom), freedom, S)
    noise = np.maximum(rows / np.sqrt(max(n - b, 1)) if believed is None else np.full(m, believed), floor)
    input_noise = np.maximum(columns / np.sqrt(max(m - b, 1)) if believed is None else np.full(n, believed), floor)
    excess = beyond / max(edge_of_white_noise(max(np.sum(rows**2) - beyond**2, 0.0), measured.alive), floor)
    beyond_batch = signal_to_noise, beyond, excess, beyond_left
    return LowRankGradient(
        U, S, right, noise, input_noise, *beyond_batch, precision=measured.precision, is_coarse=is_coarse
    )


def _orthonormal_rows(right: np.ndarray) -> np.ndarray:
    """Return rows that are orthonormal, those of the largest singular values first.

    ``U^T G / S`` holds ``eps S_1 / S_k`` of the first row in the ``k``-th. Behind a trained network the spectrum covers
    seven decades: columns by ``p = V x / S`` were off by 1e5 times the noise, and expected errors as much too large.
    """
    basis, mixing = np.linalg.qr(right.T)
    return (basis * np.copysign(1.0, np.diag(mixing))).T

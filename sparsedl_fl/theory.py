"""The lemmas of SPEAR as functions."""

from __future__ import annotations

import math

from scipy.stats import binom

__all__ = ["false_rejection_rate", "sparsity_threshold", "success_probability", "expected_samples"]


def false_rejection_rate(threshold: float, width: int) -> float:
    """Return the probability that a true column has fewer zeros than ``threshold * width`` and is rejected.

    Parameters
    ----------
    threshold : float
        Share of zeros ``tau`` that a candidate needs.
    width : int
        Number of outputs ``m``.

    References
    ----------
    SPEAR (2024), Sec. 4.1: each entry is zero with probability one half.
    """
    return float(binom.cdf(math.ceil(threshold * width - 1e-9) - 1, width, 0.5))


def sparsity_threshold(width: int, false_rejection: float = 1e-5) -> float:
    """Return the largest share of zeros ``tau`` that rejects a true column with at most the given probability.

    Examples
    --------
    >>> sparsity_threshold(400, 1e-5)
    0.395
    """
    needed = int(binom.ppf(false_rejection, width, 0.5))
    return (needed + int(binom.cdf(needed, width, 0.5) <= false_rejection)) / width


def success_probability(batch_size: int) -> float:
    """Return the lower bound on the chance that a drawn submatrix gives a true column.

    References
    ----------
    SPEAR (2024), Lemma 5.1.
    """
    rows = batch_size - 1
    return batch_size / 2**rows * (1 - 0.939**rows)


def expected_samples(batch_size: int) -> float:
    """Return the expected number of submatrices until all columns are found, ``b H_b / q``.

    ``q`` is the bound of `success_probability`.

    References
    ----------
    SPEAR (2024), Lemma 5.2.

    Examples
    --------
    >>> round(expected_samples(16), -4)
    180000.0
    """
    harmonic = sum(1 / k for k in range(1, batch_size + 1))
    return batch_size * harmonic / success_probability(batch_size)

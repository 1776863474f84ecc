"""The lemmas of SPEAR as functions."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import comb
from scipy.stats import binom, norm

__all__ = [
    "expected_samples",
    "failure_probability",
    "failure_probability_bound",
    "false_rejection_rate",
    "samples_with_confidence",
    "sparsity_threshold",
    "success_probability",
]


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


def failure_probability_bound(batch_size: int, width: int, false_rejection: float = 1e-9) -> float:
    """Return an upper bound on the probability that no search through all submatrices finds every column.

    Parameters
    ----------
    batch_size : int
        Number of inputs ``b``.
    width : int
        Number of outputs ``m``.
    false_rejection : float, default=1e-9
        Rate ``p_fr`` at which the threshold on zeros rejects a true column.

    References
    ----------
    SPEAR (2024), Lemma 5.3 and Fig. 3.
    """
    missing = 1 - _has_full_rank_submatrix(batch_size, width, 0.939)
    return min(1.0, batch_size * missing + _any_rejected(batch_size, false_rejection))


def failure_probability(batch_size: int, width: int, false_rejection: float = 1e-9) -> float:
    """Return the approximation of the same probability for independent submatrices of random signs.

    The true probability lies between this and `failure_probability_bound`.

    References
    ----------
    SPEAR (2024), Lemma 5.3 and Fig. 8.

    Examples
    --------
    >>> failure_probability(10, 400) < 1e-7 < failure_probability(25, 60) < 1
    True
    """
    found = _has_full_rank_submatrix(batch_size, width, 0.5)
    return min(1.0, 1 - found**batch_size + _any_rejected(batch_size, false_rejection))


def samples_with_confidence(batch_size: int, failure: float = 1e-8, false_rejection: float = 0.0) -> float:
    """Return how many submatrices suffice to find all columns but with probability ``failure``.

    Parameters
    ----------
    batch_size : int
        Number of inputs ``b``.
    failure : float, default=1e-8
        Probability ``p`` of missing a column.
    false_rejection : float, default=0
        Rate ``p_fr`` at which the threshold on zeros rejects a true column; its share of ``p`` is not available for
        bad luck.

    References
    ----------
    SPEAR (2024), Lemma B.2.

    Examples
    --------
    >>> float(round(samples_with_confidence(10, 1e-8), -4))
    40000.0
    """
    budget = failure - _any_rejected(batch_size, false_rejection)
    if not 0 < budget < 1:
        raise ValueError(
            f"failure={failure!r} leaves nothing: false rejection alone fails with probability "
            f"{_any_rejected(batch_size, false_rejection):.2g}"
        )
    q = success_probability(batch_size)
    directions = batch_size * math.log(2 * batch_size / budget)
    # n q - z sqrt(n q (1 - q)) = directions, a quadratic equation in sqrt(n q).
    half = -float(norm.ppf(failure / 2)) * math.sqrt(1 - q) / 2
    return (half + math.sqrt(half**2 + directions)) ** 2 / q


def _has_full_rank_submatrix(batch_size: int, width: int, singular: float) -> float:
    """Return the chance that a column has ``b - 1`` zero rows of full rank; one try fails with ``singular^(b-1)``."""
    rows = batch_size - 1
    if rows == 0:
        return 1.0
    n_zeros = np.arange(rows, width + 1)
    with np.errstate(over="ignore"):
        exponents = rows * comb(n_zeros, rows)
    return float(np.sum(binom.pmf(n_zeros, width, 0.5) * (1 - singular**exponents)))


def _any_rejected(batch_size: int, false_rejection: float) -> float:
    return -math.expm1(batch_size * math.log1p(-false_rejection))

"""The lemmas of SPEAR as functions, and what they say to expect of a layer and a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import comb
from scipy.stats import binom, norm

__all__ = [
    "Expectation",
    "expect",
    "expected_samples",
    "failure_probability",
    "failure_probability_bound",
    "largest_batch",
    "false_rejection_rate",
    "samples_with_confidence",
    "sparsity_threshold",
    "success_probability",
]

FRONTIER, FRONTIER_WITH_NEXT, FRONTIER_OF_REST = 0.25, 0.45, 0.2
"""Batches up to this share of the width come back as a rule from one layer (measured: all of 66 at 200 and of 250 at
1000), with the next layer's gradient (all of 95 at 200 and of 400 at 1000), and from one layer alone behind smooth
activations (40 at 200 for all that were tried; GELU and SiLU 95); larger ones often."""

FRONTIER_CROWDED = 0.32
"""The same with the next layer's gradient, of inputs that have fewer features than there are of them (measured without
training: all of 64 at 200 and of 128 at 400)."""


SURPLUS_OF_SPANS = 1.2
"""Equations of several spans for each input from which on batches beyond that come back as a rule, behind smooth
activations (measured at width 200: 20 batches of 125 with two spans have 1.2, and five of 140 with three 1.3; behind
GELU and SiLU)."""


def largest_batch(
    width: int, n_inputs: int, attack: str, next_width: int | None = None, behind: Sequence[int] = ()
) -> int:
    """Return the largest batch that comes back as a rule.

    Parameters
    ----------
    width, n_inputs : int
        Outputs and inputs of the layer.
    attack : {"zeros", "span", "rest", "head"}
        What it leaks by: zeros of its gradient; the next layer's gradient; the rest of the network; a classifier's last
        layer, whose gradients sum to zero.
    next_width : int or None, default=None
        Outputs of the next layer, whose gradient needs more than there are inputs.
    behind : sequence of int, default=()
        Outputs of the layers behind that one, in turn, where the activations between them are smooth: the gradient of
        each spans what it is fed.

    Examples
    --------
    >>> largest_batch(200, 3072, "span", next_width=200), largest_batch(100, 512, "head")
    (90, 49)
    >>> largest_batch(200, 3072, "span", next_width=200, behind=(200, 10))
    125
    """
    if attack == "head":
        most = (width - 1) // 2
    else:
        most = int({"zeros": FRONTIER, "span": FRONTIER_WITH_NEXT, "rest": FRONTIER_OF_REST}[attack] * width)
    if attack == "span" and next_width is not None and behind:
        widths = (width, next_width, *behind)
        most = max([most, *(b for b in range(1, width) if _n_span_equations(b, widths) >= SURPLUS_OF_SPANS * b)])
    beside = width if next_width is None else next_width
    crowded = min(most, int(FRONTIER_CROWDED * width)) if attack == "span" else 0
    return max(0, min(most, max(n_inputs - 1, crowded), beside - 1))


def _n_span_equations(batch_size: int, widths: Sequence[int]) -> int:
    """Return how many equations the spans of layers have for an input; each needs more outputs behind it than b."""
    pairs = zip(widths[:-1], widths[1:], strict=True)
    return sum(max(0, width - batch_size) for width, outputs in pairs if outputs > batch_size)


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


@dataclass(frozen=True)
class Expectation:
    """What to expect of an attack before it starts.

    Attributes
    ----------
    batch_size : int
        Number of inputs ``b``.
    width : int
        Number of outputs ``m``.
    failure_probability : float
        Chance that the zeros do not determine the batch whatever the search [Lemma 5.3].
    expected_draws : float
        Draws that `KernelDirections` needs [Lemma 5.2].
    is_determined : bool
        Whether there are equations enough for the batch.
    verdict : str
        The same in words.
    """

    batch_size: int
    width: int
    failure_probability: float
    expected_draws: float
    is_determined: bool
    verdict: str


def expect(batch_size: int, width: int, has_next_layer: bool = False) -> Expectation:
    """Say what to expect of a batch behind a layer at which half of the units are active.

    Parameters
    ----------
    batch_size : int
        Number of inputs ``b``.
    width : int
        Number of outputs ``m``.
    has_next_layer : bool, default=False
        Whether the next linear layer's gradient is known as well.

    Examples
    --------
    >>> expect(20, 200).verdict
    'b = 20 at width 200: expect the whole batch (kernel sampling would take 2.7e+06 draws)'
    """
    failure, draws = failure_probability(batch_size, width), expected_samples(batch_size) if batch_size > 1 else 1.0
    within_reach = int(width * (FRONTIER_WITH_NEXT if has_next_layer else FRONTIER))
    is_determined = 2 * batch_size < width if has_next_layer else failure <= 0.5
    if not is_determined:
        views = "the zeros and the next layer's gradient" if has_next_layer else "the zeros of the gradient alone"
        verdict = f"{views} do not determine the batch (half of the {width} units with a gradient is the limit)"
    elif batch_size <= within_reach:
        verdict = "expect the whole batch"
    else:
        verdict = f"the batch is determined, but beyond b = {within_reach} the search may end before"
        verdict += "" if has_next_layer else "; the next layer's gradient would take it further"
    verdict = f"b = {batch_size} at width {width}: {verdict} (kernel sampling would take {draws:.1e} draws)"
    return Expectation(batch_size, width, failure, draws, is_determined, verdict)


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

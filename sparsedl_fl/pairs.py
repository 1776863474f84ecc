"""Inputs that come back as one: how far apart they may lie, and when an input has to be taken for several.

Two inputs of one label that are nearly the same have nearly parallel gradients, and what is parallel adds up. Their
mean comes back, with all the evidence of a single input. What tells are the units that only one of them switches, and
how large their gradient is together: twice that of the others, before training.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from sparsedl_fl.blocks import row_norms
from sparsedl_fl.problem import LayerProblem

__all__ = ["errors_of_pairs", "resolutions"]

PAIR_PRIOR = 0.02
"""Probability that an input stands for two as close as the gradient can tell apart."""

FEWEST_SWITCHES = 3.0
"""Units that switch between two inputs, expected, from which on hardly a pair goes without any (5 %)."""

SMOOTH_CHANGE = 0.01
"""Relative change of a gradient, other than in size, over that of the input, as long as no unit switches (untrained
networks of three hidden layers, 60 to 1000 wide: 0.005 to 0.03)."""

SURELY_MORE, OWN_SHARE, FEWEST_INPUTS = 4.0, 0.85, 3
"""Singular value behind the batch, relative to the largest of white noise, that is no noise; the share of its square in
the active units of an input that makes it this one's (half by chance); and the inputs from which on this says much."""

FAR_SMALLER, WORTHLESS = 0.2, 0.3
"""Size of the gradient of a difference, relative to that of its pair, and the expected error, relative to its size, of
an input that may be one."""

MAYBE_MORE, TRACED_PRIOR = 1.3, 0.2
"""The same for what may be rounding (up to 2.3 in half precision), and how likely it makes a pair."""

TYPICAL_SPREAD, PRIOR_INPUTS = 0.15, 4
"""Standard deviation of the logarithm of how large the gradients of a batch are (untrained networks), which counts as
that of so many inputs."""

LIKELY_MORE, SURELY_PAIR, VISIBLY_APART = 0.05, 0.9, 1e-2
"""Probability, given how large its gradient is beside those of the others, from which an input is taken for a pair;
the same for pairs that cannot be further apart than a distance; and that distance, relative to their size."""

SINGLE = 0.3
"""Probability for an input that has no others beside it."""

MOST_COPIES = 4

N_HALVINGS = 40


def resolutions(
    level: float | np.ndarray, weight: np.ndarray, distances: np.ndarray, gradients: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """Return how far apart two inputs may lie that come back as one, their mean.

    Two inputs of one label that switch the same units have parallel gradients, and what is parallel adds up. They show
    as two by the units that only one of them switches, of which there have to be some, or by how their errors differ.
    A pair at a distance ``r`` (root mean square) in a random direction leaves a trace of about ``r sqrt(n) / 4`` times
    the norm of ``d`` at the units that switch, or times ``c |d| r / |x|``.

    Parameters
    ----------
    level : float or ndarray of shape (b,)
        Largest trace that goes unseen, a singular value of the gradient.
    weight : ndarray of shape (m, n)
        Weights of the layer.
    distances : ndarray of shape (m, b)
        By how much a pre-activation has to change for a unit to switch.
    gradients : ndarray of shape (m, b)
        ``D``.
    sizes : ndarray of shape (b,)
        Root mean square of each input.

    Returns
    -------
    ndarray of shape (b,)
        At most the size of an input.
    """
    n = weight.shape[1]
    margins = distances / np.maximum(row_norms(weight), np.finfo(float).tiny)[:, None]
    squares = gradients**2
    low, high = np.full(len(sizes), -12.0), np.zeros(len(sizes))
    for _ in range(N_HALVINGS):
        exponent = (low + high) / 2
        distance = 10.0**exponent * sizes
        switches = 2 * ndtr(-2 * margins / np.maximum(distance, np.finfo(float).tiny))
        by_units = np.sqrt(np.sum(switches * squares, axis=0)) * (switches.sum(axis=0) > FEWEST_SWITCHES)
        smoothly = SMOOTH_CHANGE * np.sqrt(squares.sum(axis=0)) * 10.0**exponent
        is_seen = distance * np.sqrt(n) / 4 * np.maximum(by_units, smoothly) > level
        low, high = np.where(is_seen, low, exponent), np.where(is_seen, exponent, high)
    return 10.0**high * sizes


def errors_of_pairs(
    errors: np.ndarray, problem: LayerProblem, ends: list[np.ndarray], gradients: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return how far apart two inputs may lie that come back as one, and the errors expected with that.

    An input is taken to stand for a pair where its gradient is as large as that of two others, or where something that
    has entries only where this input has some is left in the gradient and no noise, or came back as an input of its own
    and is none.

    Parameters
    ----------
    errors : ndarray of shape (b,)
        Expected errors of inputs that stand for themselves.
    problem : LayerProblem
        What is known.
    ends : list of ndarray of shape (m, b)
        ``Z`` at each end of the client's way.
    gradients : ndarray of shape (m, b)
        ``D``.
    sizes : ndarray of shape (b,)
        Root mean square of each input.

    Returns
    -------
    resolutions, errors : ndarray of shape (b,)
    """
    factors, layer = problem.factors, problem.layer_gradient
    noise = np.sqrt(np.mean(factors.noise_level**2)) * np.sum(np.sqrt(layer.shape))
    traces = _traces(errors > WORTHLESS * sizes, gradients, sizes * np.sqrt(layer.shape[1]))
    level = np.maximum(max(noise, factors.beyond), traces)
    distances = resolutions(level, layer.weight, problem.distance_to_kink(ends), gradients, sizes)
    is_own = (factors.beyond_left**2) @ (gradients != 0) > OWN_SHARE
    is_seen = is_own & (factors.excess > SURELY_MORE) & (len(sizes) >= FEWEST_INPUTS)
    prior = np.where(is_own & (factors.excess > MAYBE_MORE), TRACED_PRIOR, PAIR_PRIOR)
    is_seen |= traces > 0
    needed = np.where(distances > VISIBLY_APART * sizes, LIKELY_MORE, SURELY_PAIR)
    is_seen |= _probabilities_of_copies(np.linalg.norm(gradients, axis=0), prior) > needed
    return distances, np.where(is_seen, np.hypot(errors, distances), errors)


def _traces(is_worthless: np.ndarray, gradients: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the size of what passed for an input and is the difference of a pair, for that pair; zero without any.

    Such a difference has entries only where the pair has some, and they are far smaller.
    """
    norms = np.linalg.norm(gradients, axis=0)
    squares = (gradients / np.maximum(norms, np.finfo(float).tiny)) ** 2
    belongs = (squares.T @ (gradients != 0) > OWN_SHARE) & (norms[:, None] < FAR_SMALLER * norms)
    return np.max(np.where(belongs & is_worthless[:, None], (norms * lengths)[:, None], 0.0), axis=0)


def _probabilities_of_copies(sizes: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return how likely each input stands for several, by how large its gradient is beside those of the others.

    Those of a batch are about equally large before training, and all the less so behind it: then this says little.
    """
    if len(sizes) == 1:
        return np.full(1, SINGLE)
    logs = np.log(np.maximum(sizes, np.finfo(float).tiny))
    odds = np.empty(len(logs))
    for index, own in enumerate(logs):
        others = np.delete(logs, index)
        centre = np.median(others)
        variance = (1.4826 * np.median(np.abs(others - centre))) ** 2
        variance = (len(others) * variance + PRIOR_INPUTS * TYPICAL_SPREAD**2) / (len(others) + PRIOR_INPUTS)
        variance *= 1 + 1 / len(others)
        copies = np.log(np.arange(2, MOST_COPIES + 1))
        exponents = ((own - centre) ** 2 - (own - centre - copies) ** 2) / (2 * variance)
        odds[index] = np.exp(np.minimum(exponents.max(), 50.0))
    odds *= prior / (1 - prior)
    return odds / (1 + odds)

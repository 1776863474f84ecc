"""Features whose gradient is zero: zero for every input, or hidden by the client.

``G = D X^T`` gives a feature without gradient the value zero at every input. A client that masks features sends the
same. The pattern tells: at a unit with a gradient the input was active, and the features that the weights see have to
make it so. Where they do not, features are missing, of a size ``t`` that makes the pattern likeliest.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr

from sparsedl_fl.certify.hypothesis import Hypothesis
from sparsedl_fl.layers.blocks import row_norms

__all__ = ["error_of_hidden_features"]

CLEARLY = 10.0
"""Expected errors of a pre-activation by which a unit with a gradient has to be inactive to contradict it."""

ABOVE = 3.0
"""Size of a unit's gradient, over what counts as zero, below which it may be none; not varied. Where most are far
larger, it has to be nearer to these than to zero: an ill-conditioned batch's columns are off by more than that."""

FEWEST_WITHHELD = 1e-3
"""Least share of active units whose gradient is taken to be zero for other reasons; not varied."""


def error_of_hidden_features(
    hypothesis: Hypothesis, preactivations: list[np.ndarray], errors: np.ndarray, certified: np.ndarray
) -> float:
    """Return the root mean square error, of any input, by features that are missing; zero where nothing says so.

    Parameters
    ----------
    hypothesis : Hypothesis
        The columns.
    preactivations : list of ndarray of shape (m, b)
        Of recovered inputs, at initial (and final) weights.
    errors, certified : ndarray of shape (b,)
        Their expected errors, and which of them say something.

    Notes
    -----
    With features of size ``t`` missing a pre-activation ``z`` is off by ``t |w|``, ``w`` being the unit's weights at
    these, and the unit was active with probability ``Phi(z / (t |w|))``. The likeliest ``t`` is taken. Wrong weights
    and local training contradict the pattern as well, and then count as features that may be missing.
    """
    problem = hypothesis.problem
    given = problem.layer_gradient
    hidden = ~given.weight_grad.any(axis=0)
    if not hidden.any() or not problem.activation.has_flat_part or not certified.any():
        return 0.0
    chosen = [z[:, certified] for z in preactivations]
    widths, has_gradient = row_norms(given.weight)[:, None] * errors[certified], ~hypothesis.zeros[:, certified]
    columns = hypothesis.basis[:, certified]
    sizes = np.abs(problem.factors.left @ columns) / problem.factors.tolerances(columns)
    typical = np.sum(sizes, axis=0, where=has_gradient) / np.maximum(has_gradient.sum(axis=0), 1)
    is_clear = has_gradient & (sizes > np.maximum(ABOVE, np.sqrt(typical)))
    if given.is_update:  # a unit that training moves past its kink and back contradicts nothing
        widths = np.hypot(widths, np.sqrt(np.mean((chosen[-1] - chosen[0]) ** 2, axis=0)) / CLEARLY)
    distances = problem.distance_to_kink(chosen)
    margins = np.where(problem.is_active(chosen), distances, -distances)
    weights = row_norms(given.weight[:, hidden])[:, None]
    if not np.any(is_clear & (margins < -CLEARLY * widths)) or not weights.all():
        return 0.0
    is_active = margins > np.maximum(CLEARLY * widths, np.median(distances))
    withheld = np.clip(np.mean(~has_gradient[is_active]) if is_active.any() else 0.0, FEWEST_WITHHELD, 0.5)

    def unlikeliness(log_size: float) -> float:
        scores = margins / np.hypot(widths, np.exp(log_size) * weights)
        if_none = np.logaddexp(log_ndtr(-scores), np.log(withheld) + log_ndtr(scores))
        return -float(np.sum(log_ndtr(scores), where=is_clear) + np.sum(if_none, where=~has_gradient))

    largest = np.log(10 * np.sqrt(np.mean(distances**2)) / np.median(weights))
    size = np.exp(minimize_scalar(unlikeliness, bounds=(largest - np.log(1e6), largest), method="bounded").x)
    return float(size * np.sqrt(hidden.mean()))

"""Features whose gradient is zero: zero for every input, or hidden by the client.

``G = D X^T`` gives a feature without gradient the value zero at every input. A client that masks features sends the
same. The pattern tells: at a unit with a gradient the input was active, and the features that the weights see have to
make it so. Where they do not, features are missing, of a size ``t`` that makes the pattern likeliest.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr

from sparsedl_fl.certify.criterion import Case
from sparsedl_fl.certify.hypothesis import Hypothesis, overlaps_of
from sparsedl_fl.constraints import FAR
from sparsedl_fl.layers.blocks import row_norms

__all__ = ["agree_with_inputs", "error_of_hidden_features"]

CLEARLY = 10.0
"""Expected errors of a pre-activation by which a unit with a gradient has to be inactive to contradict it."""

ABOVE = 3.0
"""Size of a unit's gradient, over what counts as zero, below which it may be none; not varied. Where most are far
larger, it has to be nearer to these than to zero: an ill-conditioned batch's columns are off by more than that."""

OVERLAP, MOST_MIXTURES = 1e-3, 0.75
"""Cosine of an input and the dual of another's column up to which these agree; and the largest share of columns that
are mixtures: the others show what noise leaves. (Behind one trained network mixtures had 3e-3 to .02, right ones 4e-4
and less.)"""

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
        Their expected errors, and which of them say something: certified ones whose columns are no mixtures.

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


def agree_with_inputs(case: Case, certified: np.ndarray) -> np.ndarray:
    """Return which columns are orthogonal to the certified inputs of others, shape (b,).

    A mixture of weak columns may fit its zeros where noise makes zero wide, and contradicts the pattern of the input
    that it is taken for. (32 of 38 digits were right to 1e-3 by the next layer alone; such columns took all their
    certificates.)
    """
    sizes = case.hypothesis.problem.factors.singular_values
    overlaps = np.abs(overlaps_of(case.whitened, case.hypothesis.basis, sizes))
    np.fill_diagonal(overlaps, 0.0)
    worst = np.max(overlaps, axis=0, where=certified[:, None], initial=0.0)
    of_noise = np.quantile(worst[certified], 1 - MOST_MIXTURES) if certified.any() else 0.0
    return worst <= np.maximum(OVERLAP, FAR * of_noise)

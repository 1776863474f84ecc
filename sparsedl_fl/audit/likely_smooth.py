"""Likely candidates of layers without a flat part, and of heads: nearer to what follows the layer than mixtures are.

The activations of a true input lie in the span of the next layer's gradient, and what the rest of the network returns
for it lies in the layer's own column space: ``n`` equations for ``b`` unknowns. A wrong candidate that uses up its
unknowns is left with ``n - b`` equations, and comes nearer to both than wrong ones do, by a factor ``r``, with a chance
of about ``r^(n - b)``. How near wrong ones come is measured: at the means of two candidates each, which nearly linear
activations leave nearer than anything drawn at random.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from sparsedl.arrays import as_tensor
from sparsedl.process import one_thread
from sparsedl_fl.audit.findings import BY_CHANCE, Candidate
from sparsedl_fl.certify.candidates import Provenance
from sparsedl_fl.constraints import RestView, View
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.row_equilibration import in_units_of_rounding

__all__ = ["log_chances_of_mixtures", "smooth_candidates"]

NEARER = 0.5
"""Distance over that of the means of two, up to which a candidate is likely, whatever the number of equations."""

EXPECTED = 0.95
"""Stated correlation: how near a candidate comes says hardly more. (43 candidates of the first 51 updates of tanh, GELU
and SiLU perceptrons and heads, at default effort: 0.905 and more; 43 updates in `tests/hostile/calibration_smooth.md`:
0.98 and more. Of candidates that only complete a batch one in ten was below 0.7: these are never likely.)"""

MOST_PAIRS = 200


def smooth_candidates(inverter: GradientInverter, given: LayerGradient) -> tuple[Candidate, ...]:
    """Return which candidates of a fitted inverter are likely, of those that were found and are not certified.

    Parameters
    ----------
    inverter : GradientInverter
        Fitted to the layer.
    given : LayerGradient
        The layer.
    """
    found = np.flatnonzero(inverter.provenance_ != Provenance.COMPLETED)
    is_open = ~inverter.recovered_[found]
    if len(found) < 2 or not is_open.any():
        return ()
    log_chances = log_chances_of_mixtures(inverter, given, found)
    is_likely = is_open & (log_chances + np.log10(max(inverter.n_starts_, 1)) <= np.log10(BY_CHANCE))
    return tuple(Candidate(int(index), EXPECTED) for index in found[is_likely])


def log_chances_of_mixtures(inverter: GradientInverter, given: LayerGradient, among: np.ndarray) -> np.ndarray:
    """Return the logarithm of the chance that a mixture comes as near to what follows as each of some candidates.

    Parameters
    ----------
    inverter : GradientInverter
        Fitted to the layer.
    given : LayerGradient
        The layer.
    among : ndarray of shape (k,) of int
        Places of the candidates, two or more.

    Returns
    -------
    ndarray of shape (k,)
        To the base of ten; 0 where nothing is said.
    """
    nothing = np.zeros(len(among))
    given, scale = given.in_range()
    if inverter.noise_level is None:
        given, _ = in_units_of_rounding(given, inverter.batch_size)
    level = None if inverter.noise_level is None else float(inverter.noise_level) * scale
    problem = LayerProblem.of(given, inverter.batch_size_, level)
    factors, inputs = problem.factors, inverter.inputs_[among]
    if inputs.shape[1] != factors.right.shape[1]:  # the bias counts as a further feature
        return nothing
    whitened = inputs @ factors.right.T / factors.singular_values
    pairs = list(combinations(range(len(among)), 2))
    pairs = [pairs[i] for i in np.unique(np.linspace(0, len(pairs) - 1, MOST_PAIRS).astype(int))]
    means = np.array([(whitened[i] + whitened[j]) / 2 for i, j in pairs])
    views = [view for view in (problem.behind, problem.rest) if view is not None]
    with one_thread():
        by_view = [_log_chances(problem, view, whitened, means) for view in views]
    return np.minimum(nothing, np.min(by_view, axis=0) + np.log10(len(views))) if views else nothing


def _log_chances(problem: LayerProblem, view: View, whitened: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the same for one view."""
    n_free = view.n_equations - view.n_unknowns
    near, typical = (_distances(problem, view, places) for places in (whitened, means))
    ratio = near / np.median(typical)
    is_near = (ratio <= NEARER) & np.isfinite(ratio) & (n_free > 0)
    return np.where(is_near, n_free * np.log10(np.clip(ratio, np.finfo(float).tiny, 1.0)), 0.0)


def _distances(problem: LayerProblem, view: View, whitened: np.ndarray) -> np.ndarray:
    """Return how far places are from fulfilling a view, no less than the noise leaves."""
    here = view.at(as_tensor(problem.at(whitened)[0].T.copy()))
    distances = here.distances.detach().numpy()
    return np.maximum(distances, here.expected.detach().numpy()) if isinstance(view, RestView) else distances

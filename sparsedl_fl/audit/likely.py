"""Candidates that nothing certifies and that chance does not explain, with their expected correlation.

Activations with a zero-slope region: the weights say which units an input makes active, and the gradient says in which
rows its column of ``D`` has entries; the two are independent for a wrong candidate. By the arc-cosine law of two half
spaces an angle ``t`` between a candidate and the truth makes them disagree on a share ``t / pi`` of the units. A
candidate is made of ``b`` numbers, and its column of as many, so that ``m - 2 b`` of the ``m`` units are left to agree
by chance: from half the width on nothing is likely. (Adult, 64 rows behind 100 units: mixtures agreed on every unit.)

Other activations and heads (`smooth_candidates`): a true input's activations lie in the activation subspace, and its
gradient by the network tail lies in the layer's own column space: ``n`` equations for ``b`` unknowns. A wrong candidate
can fulfil ``b`` of them; the chance that it is nearer to the other ``n - b`` than wrong ones are, by a factor ``r``, is
about ``r^(n - b)``. How near wrong ones are is measured at the means of two candidates each: where activations are
nearly linear, these are nearer than anything drawn at random.

References
----------
Cho and Saul, "Kernel methods for deep learning", NeurIPS 2009, for the law.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from scipy.stats import binom, hypergeom

from sparsedl.arrays import as_tensor
from sparsedl.process import one_thread
from sparsedl_fl.activations import resolve
from sparsedl_fl.audit.conclusion import MOST_EXCESS
from sparsedl_fl.audit.findings import BY_CHANCE, Candidate
from sparsedl_fl.certify.candidates import Provenance
from sparsedl_fl.constraints import Constraint, TailGradient
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.blocks import times
from sparsedl_fl.layers.diagnosis import is_clipped
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.row_equilibration import in_units_of_rounding

__all__ = [
    "EXPECTED",
    "disagreements",
    "expected_correlation",
    "likely_candidates",
    "log_chances_of_mixtures",
    "smooth_candidates",
]

ONE_OF_MANY = 1e-2
"""Chance of its agreement, for each of several candidates that are likely together."""

MOST = 0.2
"""Disagreement, over twice that of chance, up to which a candidate is likely: 0.8 by the law; above, it is less."""

NEARER = 0.5
"""Distance, relative to that of the means of two, up to which a candidate is likely, however many equations."""

EXPECTED = 0.95
"""Correlation that is stated for every likely candidate of a smooth activation: its distance hardly says more. (The
least of 43 candidates from 51 updates of tanh, GELU and SiLU perceptrons and heads, at default effort, was 0.905; of 43
updates in `tests/hostile/calibration_smooth.md` 0.98. Of candidates that only complete a batch one in ten was below
0.7: these are never likely.)"""

MOST_MEANS = 200


def likely_candidates(inverter: GradientInverter, given: LayerGradient) -> tuple[Candidate, ...]:
    """Return which candidates of a fitted inverter are likely, of those that are not certified.

    Parameters
    ----------
    inverter : GradientInverter
        Fitted to the layer.
    given : LayerGradient
        The layer.
    """
    activation = resolve(given.activation)
    is_rank_clear = inverter.size_is_clear_ and inverter.noise_excess_ <= MOST_EXCESS
    if activation is None or inverter.recovered_.all() or not is_rank_clear:
        return ()  # the law holds only where the rank is the batch size
    if not activation.has_flat_part:
        return smooth_candidates(inverter, given)
    if is_clipped(given):
        return ()
    found = np.full(inverter.batch_size_, np.nan)
    # Dropout leaves active units without a gradient: then only units with a gradient count.
    for is_dropped in (True, False):
        share, chance = disagreements(inverter.inputs_, given, may_be_dropped=is_dropped)
        chance = chance * max(inverter.n_starts_ / len(share), 1.0)  # each is the best of so many
        is_near = (share <= MOST) & ~inverter.recovered_
        is_alone = 2 * chance * len(share) <= BY_CHANCE
        # Several that chance would explain one by one, and not together.
        together = is_near & (chance <= ONE_OF_MANY)
        are_many = 2 * binom.sf(together.sum() - 1, len(share), ONE_OF_MANY) <= BY_CHANCE
        found = np.where(is_near & (is_alone | (together & are_many)), expected_correlation(share), found)
    return tuple(Candidate(int(i), float(found[i])) for i in np.flatnonzero(~np.isnan(found)))


def disagreements(
    inputs: np.ndarray, given: LayerGradient, *, may_be_dropped: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return how far weights and gradient disagree on the active units of each input.

    Parameters
    ----------
    inputs : ndarray of shape (b, n)
        Candidates, a whole basis of the batch.
    given : LayerGradient
        The layer.
    may_be_dropped : bool, default=False
        Whether only units with a gradient count, which must be active; else those without one count too, which must be
        inactive.

    Returns
    -------
    share : ndarray of shape (b,)
        Share of the units that disagree, over twice that of chance: between 0 and about one half.
    chance : ndarray of shape (b,)
        Chance that a column unrelated to the input agrees as well.
    """
    z = given.preactivations(inputs)
    columns = np.abs(times(given.weight_grad, np.linalg.pinv(inputs)))
    live = columns.any(axis=1)
    is_active = ~resolve(given.activation).is_off(torch.from_numpy(z)).numpy()[live]
    columns = columns[live]
    m, b = is_active.shape
    share, chance = np.full(b, 0.5), np.ones(b)
    for k, n_active in enumerate(is_active.sum(axis=0)):
        order = np.argsort(-columns[:, k])
        n_largest = _n_kept(columns[order, k], n_active) if may_be_dropped else n_active
        if 2 * b >= m or n_active in (0, m) or n_largest == 0:
            continue
        n_wrong = int(np.sum(~is_active[order[:n_largest], k]))
        share[k] = 0.5 * (n_wrong / n_largest) / (1 - n_active / m)
        # What is left when the b numbers of the candidate, and those of its column, made as many agree as they can.
        n_free = m - 2 * b
        free = n_free / m
        drawn, active = round(n_largest * free), round(n_active * free)
        chance[k] = hypergeom.sf(np.floor((n_largest - n_wrong) * free) - 1, n_free, active, drawn)
    return share, chance


def _n_kept(sizes: np.ndarray, n_active: int, *, sure: float = 0.4, clearly: float = 0.1) -> int:
    """Return how many of the sizes, largest first, are those of units with a gradient.

    Dropout keeps at least a share ``sure`` of the active units; sizes above ``clearly`` times the median of as many
    largest ones are those of units with a gradient.
    """
    n_sure = int(sure * n_active)
    return 0 if n_sure == 0 else int(min(n_active, np.sum(sizes > clearly * sizes[n_sure // 2])))


def expected_correlation(share: np.ndarray) -> np.ndarray:
    """Return the correlation, by the arc-cosine law, for a share of units that disagree."""
    return np.cos(np.pi * np.minimum(share, 0.5))


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
    are_likely = is_open & (log_chances + np.log10(max(inverter.n_starts_, 1)) <= np.log10(BY_CHANCE))
    return tuple(Candidate(int(index), EXPECTED) for index in found[are_likely])


def log_chances_of_mixtures(inverter: GradientInverter, given: LayerGradient, among: np.ndarray) -> np.ndarray:
    """Return the log chance that a mixture fulfils a constraint as nearly as each of some candidates.

    Parameters
    ----------
    inverter : GradientInverter
        Fitted to the layer.
    given : LayerGradient
        The layer.
    among : ndarray of shape (k,) of int
        Indices of the candidates, two or more.

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
    try:
        problem = LayerProblem.of(given, inverter.batch_size_, level)
    except ValueError:  # the batch is as large as the layer
        return nothing
    factors, inputs = problem.factors, inverter.inputs_[among]
    if inputs.shape[1] != factors.right.shape[1]:  # the bias counts as a further feature
        return nothing
    whitened = inputs @ factors.right.T / factors.singular_values
    twos = list(combinations(range(len(among)), 2))
    twos = [twos[i] for i in np.unique(np.linspace(0, len(twos) - 1, MOST_MEANS).astype(int))]
    means = np.array([(whitened[i] + whitened[j]) / 2 for i, j in twos])
    constraints = [constraint for constraint in (problem.subspaces, problem.tail) if constraint is not None]
    with one_thread():
        found = [_log_chances(problem, constraint, whitened, means) for constraint in constraints]
    return np.minimum(nothing, np.min(found, axis=0) + np.log10(len(constraints))) if constraints else nothing


def _log_chances(problem: LayerProblem, constraint: Constraint, whitened: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the same for one constraint."""
    n_free = constraint.n_equations - constraint.n_unknowns
    near, typical = (_distances(problem, constraint, points) for points in (whitened, means))
    ratio = near / np.median(typical)
    is_near = (ratio <= NEARER) & np.isfinite(ratio) & (n_free > 0)
    return np.where(is_near, n_free * np.log10(np.clip(ratio, np.finfo(float).tiny, 1.0)), 0.0)


def _distances(problem: LayerProblem, constraint: Constraint, whitened: np.ndarray) -> np.ndarray:
    """Return how far points are from fulfilling a constraint, for the network tail no less than its noise."""
    preactivations = as_tensor(problem.at(whitened)[0].T.copy())
    if not isinstance(constraint, TailGradient):
        return constraint.at(preactivations).distances.detach().numpy()
    here = constraint.at(preactivations)
    return np.maximum(here.distances.detach().numpy(), here.expected.detach().numpy())

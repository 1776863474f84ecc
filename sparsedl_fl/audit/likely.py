"""Candidates that nothing certifies and that chance does not explain, with their expected correlation.

Two halves of what is known of an input do not know of each other: which units its pre-activations switch on, by the
weights, and which rows its column of ``D`` has entries in, by the gradient. By the arc-cosine law of two half spaces
an angle ``t`` between a candidate and the truth makes them disagree on a share ``t / pi`` of the units. A candidate
is made of ``b`` numbers, so that ``m - b`` of the ``m`` units are left to agree by chance. (Without a flat part there
are no such halves: see `sparsedl_fl.audit.likely_smooth`.)

References
----------
Cho and Saul, "Kernel methods for deep learning", NeurIPS 2009, for the law.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import binom, hypergeom

from sparsedl_fl.activations import resolve
from sparsedl_fl.audit.conclusion import MOST_EXCESS
from sparsedl_fl.audit.findings import BY_CHANCE, Candidate
from sparsedl_fl.audit.likely_smooth import smooth_candidates
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.blocks import times
from sparsedl_fl.layers.diagnosis import is_clipped
from sparsedl_fl.layers.layer_gradient import LayerGradient

__all__ = ["disagreements", "expected_correlation", "likely_candidates"]

ONE_OF_MANY = 1e-2
"""Chance at which one candidate agrees as well as each of several that are likely together."""

MOST = 0.2
"""Disagreement, over twice that of chance, up to which a candidate is likely: above, the law has less than 0.8."""


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
        return ()  # of a rank that is not the batch's the law does not hold
    if not activation.has_flat_part:
        return smooth_candidates(inverter, given)
    if is_clipped(given):
        return ()
    found = np.full(inverter.batch_size_, np.nan)
    # What is active and has no gradient may have been dropped out, and then the other half of the units tells.
    for is_dropped in (True, False):
        share, chance = disagreements(inverter.inputs_, given, may_be_dropped=is_dropped)
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
    """Return how far weights and gradient disagree on the units of each input of a batch of shape (b, n).

    Parameters
    ----------
    inputs : ndarray of shape (b, n)
        Candidates, a whole basis of the batch.
    given : LayerGradient
        The layer.
    may_be_dropped : bool, default=False
        Whether only units with a gradient count, which have to be active; else those without one count as well, which
        have to be inactive.

    Returns
    -------
    share : ndarray of shape (b,)
        Share of the units that disagree, over twice that which chance has: between 0 and about one half.
    chance : ndarray of shape (b,)
        Chance at which a column that has nothing to do with the input agrees as well.
    """
    z = given.preactivations(inputs)
    columns = np.abs(times(given.weight_grad, np.linalg.pinv(inputs)))
    live = columns.any(axis=1)
    is_on = ~resolve(given.activation).is_off(torch.from_numpy(z)).numpy()[live]
    columns = columns[live]
    m, b = is_on.shape
    share, chance = np.full(b, 0.5), np.ones(b)
    for k, n_on in enumerate(is_on.sum(axis=0)):
        order = np.argsort(-columns[:, k])
        n_largest = _n_kept(columns[order, k], n_on) if may_be_dropped else n_on
        if b >= m or n_on in (0, m) or n_largest == 0:
            continue
        n_wrong = int(np.sum(~is_on[order[:n_largest], k]))
        share[k] = 0.5 * (n_wrong / n_largest) / (1 - n_on / m)
        # What is left of the units when a candidate's own numbers have made as many agree as they can.
        free = (m - b) / m
        drawn, on = round(n_largest * free), round(n_on * free)
        chance[k] = hypergeom.sf(np.floor((n_largest - n_wrong) * free) - 1, m - b, on, drawn)
    return share, chance


def _n_kept(sizes: np.ndarray, n_on: int, *, sure: float = 0.4, clearly: float = 0.1) -> int:
    """Return how many of the sizes, largest first, are those of units with a gradient.

    A client that drops out keeps a share ``sure`` of the active units at least, and those of them that are larger than
    ``clearly`` times the middle one of these have a gradient.
    """
    n_sure = int(sure * n_on)
    return 0 if n_sure == 0 else int(min(n_on, np.sum(sizes > clearly * sizes[n_sure // 2])))


def expected_correlation(share: np.ndarray) -> np.ndarray:
    """Return the cosine that the arc-cosine law has for a share of units that disagree."""
    return np.cos(np.pi * np.minimum(share, 0.5))

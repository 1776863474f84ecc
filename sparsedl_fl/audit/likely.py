"""Candidates that nothing certifies and that chance does not explain, with their expected correlation.

Two halves of what is known of an input do not know of each other: which units its pre-activations switch on, by the
weights, and which rows its column of ``D`` has entries in, by the gradient. By the arc-cosine law of two half spaces
an angle ``t`` between a candidate and the truth makes them disagree on a share ``t / pi`` of the units. A candidate
is made of ``b`` numbers, so that ``m - b`` of the ``m`` units are left to agree by chance.

References
----------
Cho and Saul, "Kernel methods for deep learning", NeurIPS 2009, for the law.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import hypergeom

from sparsedl_fl.activations import resolve
from sparsedl_fl.audit.findings import Candidate
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.inverter import GradientInverter

__all__ = ["disagreements", "expected_correlation", "likely_candidates"]

BY_CHANCE = 1e-6
"""Chance at which any of a layer's candidates agrees as well as a likely one, for each start of the search."""

MOST = 0.2
"""Disagreement, as a share of what chance has twice, up to which a candidate is likely."""


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
    if activation is None or not activation.has_flat_part or inverter.recovered_.all():
        return ()
    share, chance = disagreements(inverter.inputs_, given)
    is_likely = (share <= MOST) & (chance * max(1, inverter.n_starts_) <= BY_CHANCE) & ~inverter.recovered_
    found = expected_correlation(share)
    return tuple(Candidate(int(i), float(found[i])) for i in np.flatnonzero(is_likely))


def disagreements(inputs: np.ndarray, given: LayerGradient) -> tuple[np.ndarray, np.ndarray]:
    """Return how far weights and gradient disagree on the units of each input of a batch of shape (b, n).

    Returns
    -------
    share : ndarray of shape (b,)
        Share of the units that disagree, over twice that which chance has: between 0 and about one half.
    chance : ndarray of shape (b,)
        Chance at which a column that has nothing to do with the input agrees as well.
    """
    activation = resolve(given.activation)
    z = given.preactivations(inputs)
    columns = np.abs(given.weight_grad.astype(np.float64) @ np.linalg.pinv(inputs))
    live = columns.any(axis=1)
    is_on = ~activation.is_off(torch.from_numpy(z)).numpy()[live]
    columns = columns[live]
    m, b = is_on.shape
    share, chance = np.full(b, 0.5), np.ones(b)
    for k, n_on in enumerate(is_on.sum(axis=0)):
        if b >= m or n_on == 0 or n_on == m:
            continue
        largest = np.zeros(m, dtype=bool)
        largest[np.argsort(-columns[:, k])[:n_on]] = True
        both = int(np.sum(largest & is_on[:, k]))
        by_chance = 2 * n_on * (m - n_on) / m
        share[k] = (n_on - both) / by_chance
        free = m - b
        drawn = max(1, round(n_on * free / m))
        # As many of the units that are left as chance has to explain; the others could be made to agree.
        chance[k] = hypergeom.sf(np.floor(both * free / m) - 1, free, drawn, drawn)
    return share, chance


def expected_correlation(share: np.ndarray) -> np.ndarray:
    """Return the cosine that the arc-cosine law has for a share of units that disagree."""
    return np.cos(np.pi * np.minimum(share, 0.5))

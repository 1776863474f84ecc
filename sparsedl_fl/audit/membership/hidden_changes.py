"""Whether another record, which differs from one by a small or natural change, would look the same.

Where a client has as many records as there are ways in which records differ, all records lie in the row space, whether
they were trained on or not, and some ways come to that early: those of one-hot features, and of a number that sets
apart two records that are alike else.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import pdist

from sparsedl_fl.audit.membership.row_space import RowSpace

__all__ = ["hides_pairs", "hides_small_changes"]

MOST_BINARY, MOST_PAIRED = 4096, 600
"""Largest number of features with two values each whose pairs are looked at, and of records whose pairs are."""

HIDDEN = 1 / 3
"""Share of a change outside the row space, up to which it is hidden there; another that is not seen is just small."""

FEW = 1 / 8
"""Share of features up to which a change is one of few. (What lies in the row space between any two records trained on
is no small change; not varied.)"""

WITHIN = 2.0
"""Distance over the expected one, up to which it is rounding: of records trained on, 1.0 in the median and 1.3 at most
(MNIST, 18 clients of 150 to 380 records, SGD with and without momentum and weight decay)."""


def hides_small_changes(space: RowSpace, records: np.ndarray, pool: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Return for each record whether the row space hides some change of one feature, or some swap of two.

    A change of one feature is hidden where little of it lies outside the row space, no more than rounding explains, of
    the change and of the record. One between two values as far apart as any (categories) and a swap of two such may not
    be small either.

    Parameters
    ----------
    space : RowSpace
        Of the layer's change; columns after the features are left alone.
    records : ndarray of shape (k, n)
        The records.
    pool : ndarray of shape (l, n)
        Records that show by how much a feature changes at most, or between which two values.
    visible : ndarray of shape (k,)
        Least distance that is seen of each record.
    """
    low, high = pool.min(axis=0), pool.max(axis=0)
    ranges = high - low
    shares, noise = (np.sqrt(part[: len(ranges)]) for part in (space.open_shares, space.expected_shares))
    binary = np.flatnonzero(((pool == low) | (pool == high)).all(axis=0) & (ranges > 0.5 * ranges.max()))
    may_hide = (shares <= HIDDEN) & (ranges > 0)
    may_hide[binary] = True
    found = (ranges * (shares - WITHIN * noise))[may_hide].min(initial=np.inf) <= visible
    if 1 < len(binary) <= MOST_BINARY:
        steps = ranges[binary]
        outside, of_noise = (
            np.sqrt(_squares_of_swaps(part(binary) * np.outer(steps, steps)))
            for part in (space.open_products, space.expected_products)
        )
        seen = outside - WITHIN * of_noise
        is_high = records[:, binary] == high[binary]
        for number, (row, limit) in enumerate(zip(is_high, visible, strict=True)):
            found[number] |= seen[np.ix_(row, ~row)].min(initial=np.inf) <= limit
    return found


def _squares_of_swaps(products: np.ndarray) -> np.ndarray:
    own = np.diag(products)
    return np.clip(own[:, None] + own - 2 * products, 0.0, None)


def hides_pairs(space: RowSpace, strangers: np.ndarray) -> bool:
    """Return whether two records outside the row space differ in few features, by what it hides.

    Then others may differ so from records trained on.

    Parameters
    ----------
    space : RowSpace
        Of the layer's change.
    strangers : ndarray of shape (k, n)
        Records that were not trained on, the constant included.
    """
    given = strangers[:MOST_PAIRED]
    coordinates = given @ space.basis.T
    outside = given - coordinates @ space.basis
    distances, apart, weighted = (pdist(part) for part in (outside, given, coordinates / space.sizes))
    expected = space.unit_noise * weighted
    is_small = (apart > 0) & (pdist(given, "hamming") <= FEW)
    return bool((is_small & (distances <= WITHIN * expected) & (distances <= HIDDEN * apart)).any())

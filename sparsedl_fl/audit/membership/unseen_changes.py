"""Whether another record, which differs in one feature or in a swap of two, would look the same.

Where a client has as many records as there are ways in which records differ, all records lie in the row space, whether
they were trained on or not. One-hot features come to that early.
"""

from __future__ import annotations

import numpy as np

from sparsedl_fl.audit.membership.row_space import RowSpace

__all__ = ["has_unseen_change"]

MOST_BINARY = 4096
"""Largest number of features with two values each whose pairs are looked at."""

HIDDEN = 1 / 3
"""Share of a change outside the row space, up to which it is hidden there; another that is not seen is just small."""


def has_unseen_change(space: RowSpace, records: np.ndarray, pool: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Return for each record whether the row space hides some change of it.

    A change of one feature is hidden where little of it lies outside the row space, and that is less than it takes to
    be seen. One between two values as far apart as any (categories) and a swap of two such may not be small either.

    Parameters
    ----------
    space : RowSpace
        Of the layer's change; columns after the features are left alone.
    records : ndarray of shape (k, n)
        The records.
    pool : ndarray of shape (l, n)
        Records that show by how much a feature changes at most, or between which two values.
    visible : ndarray of shape (k,)
        Least distance that is seen.
    """
    n = records.shape[1]
    low, high = pool.min(axis=0), pool.max(axis=0)
    ranges, shares = high - low, np.sqrt(space.open_shares[:n])
    binary = np.flatnonzero(((pool == low) | (pool == high)).all(axis=0) & (ranges > 0.5 * ranges.max()))
    may_hide = (shares <= HIDDEN) & (ranges > 0)
    may_hide[binary] = True
    found = (ranges * shares)[may_hide].min(initial=np.inf) <= visible
    if 1 < len(binary) <= MOST_BINARY:
        steps = ranges[binary]
        products = space.open_products(binary) * np.outer(steps, steps)
        own = np.diag(products)
        swaps = np.sqrt(np.clip(own[:, None] + own - 2 * products, 0.0, None))
        is_high = records[:, binary] == high[binary]
        for number, (row, limit) in enumerate(zip(is_high, visible, strict=True)):
            found[number] |= swaps[np.ix_(row, ~row)].min(initial=np.inf) <= limit
    return found

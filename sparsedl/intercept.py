"""Whether observations have an offset: looked for where they are centred, and where they make no sense without one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsedl.arrays import Rows, row_chunks
from sparsedl.recovery import Recovery
from sparsedl.stages import SearchEnd

__all__ = ["best_recovery", "is_centred"]


def is_centred(X: Rows, *, rounding: float = 1e-6) -> bool:
    """Return whether the mean of every column is zero but for rounding, relative to its deviation."""
    parts = list(row_chunks(X))
    mean = sum(X[part].sum(axis=0, dtype=np.float64) for part in parts) / len(X)
    variance = sum(np.sum((X[part] - mean) ** 2, axis=0) for part in parts) / len(X)
    return bool(np.all(np.abs(mean) <= rounding * np.sqrt(variance)))


def best_recovery(
    attempt: Callable[[bool, int | None], Recovery],
    X: Rows,
    fit_intercept: bool | str,
    patience: int | None,
    *,
    first_patience: int = 6,
) -> Recovery:
    """Recover with an offset or without one, whichever the caller or the observations ask for.

    Parameters
    ----------
    attempt : callable
        Makes an attempt: with an offset or without, and with a patience.
    X : ndarray of shape (n_samples, n_features)
        Observations.
    fit_intercept : bool or "auto"
        Whether there is an offset; "auto" finds out.
    patience : int or None
        Rounds without a new component after which an attempt ends; None for none.
    first_patience : int, default=6
        The same for a search without an offset that makes room for one with it, and back.
    """
    if fit_intercept != "auto" or is_centred(X):
        return attempt(fit_intercept == "auto" or bool(fit_intercept), patience)
    first = first_patience if patience is None else min(patience, first_patience)
    best = attempt(False, first)
    if best.proven.all() or best.result.end is SearchEnd.INTERRUPTED:
        return best
    try:
        shifted = attempt(True, first)
    except ValueError:  # too few observations for one component more
        shifted = best
    # What the likelihood says of known noise stands against a few more zeros proven, but not against all.
    is_estimate = best.estimate is not None and best.estimate.noise_source != "codes"
    with_offset = shifted.quality > best.quality and bool(shifted.proven.all() or not is_estimate)
    best = shifted if with_offset else best
    is_over = best.proven.all() or best.result.end is SearchEnd.INTERRUPTED or first == patience
    if is_over or not best.proven.any() or (is_estimate and not with_offset):
        return best
    return max(best, attempt(with_offset, patience), key=lambda found: found.quality)

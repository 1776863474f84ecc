"""The noise that the zeros show, where nothing else tells it.

Square observations have nothing beyond their components to take the noise from, and numbers that were single precision
once, or were printed with six digits, look like double precision. Near a column, though, the entries of ``L q`` fall
into two groups, and the size of the small ones is the noise.
"""

from __future__ import annotations

import numpy as np
import torch

from sparsedl.search import Search, SearchResult

__all__ = ["noise_of_zeros"]


def noise_of_zeros(
    search: Search, result: SearchResult, *, clear_gap: float = 30.0, largest_zero: float = 0.05, fewest: int = 2
) -> float | None:
    """Return the noise on the entries of the observations, or None where no direction shows a gap.

    Parameters
    ----------
    search : Search
        The search, with its zero test and its rounding.
    result : SearchResult
        How it ended; its unproven ends are rounded and looked at.
    clear_gap : float, default=30
        Ratio of neighbouring moduli, sorted, between zeros and the rest; between two entries of a dense direction, with
        more of them below than a kernel has, it is a few at most.
    largest_zero : float, default=0.05
        Largest entry, relative to their mean square, that is taken for a zero.
    fewest : int, default=2
        Directions that have to agree that there is a gap.
    """
    test, ends = search.zero_test, result.unproven.directions
    n_rows, k = test.observations.shape
    if len(ends) == 0 or k >= n_rows - 1:
        return None
    rounded = search.rounding.round(test.observations, ends, torch.Generator().manual_seed(0))
    for _ in range(2):
        moduli = (rounded @ test.observations.T).abs()
        ordered = moduli.sort(dim=1).values.clamp(min=np.finfo(float).tiny)
        gaps = ordered[:, k:] / ordered[:, k - 1 : -1]
        gaps = torch.where(ordered[:, k - 1 : -1] < largest_zero, gaps, 0.0)
        best, position = gaps.max(dim=1)
        is_clear = best > clear_gap
        if int(is_clear.sum()) < fewest:
            return None
        threshold = ordered.gather(1, (position + k - 1)[:, None])
        zeros = (moduli <= threshold)[is_clear]
        # Once more from all the zeros: a rounded direction is not yet as exact as the noise allows.
        rounded = test.vanishing(zeros)
        entries = (rounded @ test.observations.T) * zeros
        freedom = (zeros.sum(dim=1) - k + 1).clamp(min=1)
        amplification = torch.linalg.vector_norm(rounded @ test.unmixing.T, dim=1)
        levels = (entries.square().sum(dim=1) / freedom).sqrt() / amplification
    return float(levels.median())

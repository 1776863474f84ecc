"""How near the row space records lie that were not trained on, and the chance that one lies as near as a given record.

Such records are those that a user knows not to have been trained on, or those among the tested ones that clearly lie
outside, and made-up ones: the first features of one tested record and the others of another, or the features of a
single one, shifted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

__all__ = ["Strangers", "made_up"]

N_MADE, FEWEST = 200, 3

OF_ONE = 1.0
"""Least spread of the logarithms where a single record is shifted: those of real records spread by .4 (MNIST), those of
shifts by less."""


@dataclass(frozen=True)
class Strangers:
    """Distances of records that were not trained on, relative to their norms.

    Parameters
    ----------
    distances : ndarray of shape (k,)
        Those below rounding of double precision count as that.
    least_spread : float, default=0
        Least standard deviation of their logarithms.
    """

    distances: np.ndarray
    least_spread: float = 0.0

    def chance_of(self, distances: np.ndarray) -> np.ndarray:
        """Return the probability that one more such record lies as near, by its logarithm's prediction interval.

        No more than is seen among these records counts: where ``j`` of ``k`` lie as near, it is ``j / (k + 1)`` at
        least. One for fewer than three records, or where all lie equally far.
        """
        k, least = len(self.distances), np.finfo(float).eps
        if k < FEWEST:
            return np.ones(len(distances))
        logs = np.log(np.maximum(self.distances, least))
        spread = max(logs.std(ddof=1), self.least_spread) * np.sqrt(1 + 1 / k)
        if spread == 0:
            return np.ones(len(distances))
        as_near = np.sum(self.distances[:, None] <= distances, axis=0) / (k + 1)
        return np.maximum(student.cdf((np.log(np.maximum(distances, least)) - logs.mean()) / spread, k - 1), as_near)


def made_up(records: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Return records of shape (k, n) made of the features of given ones, and the least spread of `Strangers`."""
    n_records, n_features = records.shape
    if n_features < 2:
        return records[:0], 0.0
    first, cuts = rng.integers(n_records, size=N_MADE), rng.integers(1, n_features, size=(N_MADE, 1))
    if n_records == 1:
        found = records[0, (np.arange(n_features) + cuts) % n_features]
        return found[(found != records).any(axis=1)], OF_ONE
    second = (first + rng.integers(1, n_records, size=N_MADE)) % n_records
    found = np.where(np.arange(n_features) < cuts, records[first], records[second])
    return found[(found != records[first]).any(axis=1) & (found != records[second]).any(axis=1)], 0.0

"""All columns that are left at once, from the gradient alone: no weights, no next layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from sparsedl.descents import CROWDING, HALF_NORMAL_DENSITY
from sparsedl.linalg import normalized
from sparsedl.optimizers import Graduated
from sparsedl.starts import SymmetricStarts
from sparsedl.surrogates import Cauchy
from sparsedl.zeros import ZeroTest
from sparsedl_fl.search.columns_and_forward_pass import WORKING, SampleCoordinates, leaders

__all__ = ["DictionaryDescent"]


@dataclass(eq=False, repr=False, kw_only=True)
class DictionaryDescent(BaseEstimator):
    """The dictionary search as a stage: symmetric FastICA in the complement of what is found, then graduated descent.

    Two products with the gradient's left factor a step serve all columns at once. It finds most columns where the layer
    has ten times as many outputs as there are samples, and none where it has five times as many. (Pieces of
    photographs behind ReLU, one batch each, one thread: 64 of 65 columns at (65, 1000) in 0.3 s; 98 of 100 at
    (100, 1000) in 1.0 s; 98 of 100 at (100, 4000) in 2.2 s, of which 0.4 s are the descents and the rest the proof;
    21 of 30 at (30, 200); none at (45, 200) and (180, 1000).)

    Parameters
    ----------
    max_iter : int, default=60
        Steps of symmetric FastICA at most.
    n_steps, smoothing, last_smoothing : int, float and float, default=100, 1 and 0.01
        Of the graduated descent. (At (65, 1000) a first smoothing of 0.3 led to 38 columns, of 1 to 45.)
    look : float, default=0.02
        Entries below this count as zeros in the look at which directions go on to the proof. (At (30, 200), (65, 1000)
        and (100, 1000), one batch each, columns had 98, 477 and 401 of them or more, and 56, 193 and 228 are asked for;
        at (45, 200) and (180, 1000) no spurious minimum had as many as are asked for.)
    least_outputs : float, default=12
        Outputs for each sample from which on it is worth a round. (With ten, at (100, 1000), it took as long as
        without, two batches; with 15 two thirds of the time, ten batches.)
    same_cosine : float, default=0.9
        Cosine from which on two directions are one, as in `Reflection`.
    """

    max_iter: int = 60
    n_steps: int = 100
    smoothing: float = 1.0
    last_smoothing: float = 0.01
    look: float = 0.02
    least_outputs: float = 12.0
    same_cosine: float = 0.9

    def lacks(self, test: ZeroTest) -> str:
        """Return what it takes that a layer lacks, by its zero test, or an empty text."""
        m, b = test.observations.shape
        if not (b > 1 and m >= self.least_outputs * b):
            return f"needs {self.least_outputs:g} outputs for each of several samples; this layer has {m} for {b}"
        noise = float(test.tolerances(torch.eye(b, dtype=test.observations.dtype)).median())
        if noise > self.look:  # (16, 200) under DP noise of 1e-4: one of seven batches was lost by it
            return f"needs zeros within {self.look:g} of the entries' size; noise widens them to {noise:.2g}"
        return ""

    def run(self, coordinates: SampleCoordinates, generator: torch.Generator) -> torch.Tensor:
        """Return directions that have more entries near zero than spurious minima have, as unit rows ``q``."""
        left, found = coordinates.left.to(WORKING), coordinates.found.to(WORKING)
        starts = SymmetricStarts(max_iter=self.max_iter).draw(left, found, 1, generator)
        descent = Graduated(max_iter=self.n_steps, smoothing=self.smoothing, final_smoothing=self.last_smoothing)
        directions = descent.minimize(left, starts, Cauchy()).directions
        if len(found):
            directions = directions[(directions @ found.T).abs().amax(dim=1) < self.same_cosine]
        entries = directions @ left.T
        # Spurious minima have a zero for each dimension but one, and others as chance piles them up.
        m, b = left.shape
        is_sparse = (entries.abs() < self.look).sum(dim=1) > b + 2 * CROWDING * HALF_NORMAL_DENSITY * self.look * m
        directions, skewness = directions[is_sparse], entries[is_sparse].pow(3).sum(dim=1, keepdim=True)
        kept = leaders(directions * skewness.sign(), self.same_cosine).unique()
        return normalized(directions[kept].double(), dim=1)

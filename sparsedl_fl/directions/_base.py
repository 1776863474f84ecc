"""What every proposer of candidate directions shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.lowrank import LowRankGradient


@dataclass(frozen=True)
class Candidates:
    """Candidate columns of ``Q``, up to scale.

    Attributes
    ----------
    directions : ndarray of shape (b, n_candidates)
        Unit columns ``q`` for which ``U q`` is sparse.
    n_zeros : ndarray of shape (n_candidates,)
        Number of zeros of ``U q``.
    status : str
        How the search ended, in words.
    n_starts : int
        Starts (or draws) spent.
    n_successes : int
        Starts that ended in a candidate, new or not.
    """

    directions: np.ndarray
    n_zeros: np.ndarray
    status: str
    n_starts: int
    n_successes: int


class Directions(BaseEstimator, ABC):
    """Proposes candidate directions for a factorised gradient."""

    @abstractmethod
    def propose(
        self,
        layer_gradient: LayerGradient,
        factors: LowRankGradient,
        *,
        random_state: Any = None,
        verbose: bool = False,
    ) -> Candidates:
        """Search for candidates.

        Parameters
        ----------
        layer_gradient : LayerGradient
            Weights, bias and gradients.
        factors : LowRankGradient
            The factorisation of the weight gradient.
        random_state : int, RandomState or None, default=None
            Seed.
        verbose : bool, default=False
            Whether to draw a progress bar.
        """

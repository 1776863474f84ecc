"""What every proposer of candidate directions shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sklearn.base import BaseEstimator

from sparsedl_fl.candidates import Candidates
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.lowrank import LowRankGradient


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

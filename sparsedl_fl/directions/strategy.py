"""The base class of strategies that propose candidate directions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sklearn.base import BaseEstimator

from sparsedl_fl.certify.candidates import Candidates
from sparsedl_fl.constraints.problem import LayerProblem


class Directions(BaseEstimator, ABC):
    """Proposes candidate directions for the columns of a batch."""

    @abstractmethod
    def propose(self, problem: LayerProblem, *, random_state: Any = None, verbose: bool = False) -> Candidates:
        """Search for candidates.

        Parameters
        ----------
        problem : LayerProblem
            Weights, gradients, and what is known of the inputs.
        random_state : int, RandomState or None, default=None
            Seed.
        verbose : bool, default=False
            Whether to draw a progress bar.
        """

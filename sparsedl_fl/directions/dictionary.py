"""SPEAR++: candidate directions by sparsely-used dictionary learning."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from sparsedl import SparseDictionaryRecovery
from sparsedl_fl.directions._base import Candidates, Directions
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.lowrank import LowRankGradient


@dataclass(eq=False, repr=False, kw_only=False)
class DictionaryDirections(Directions):
    """Fits a `SparseDictionaryRecovery` to ``G V = U S``, whose codes are the columns of ``D``.

    Parameters
    ----------
    recovery : SparseDictionaryRecovery or None, default=None
        The estimator; None takes its defaults. SPEAR++ is
        ``SparseDictionaryRecovery(surrogate=L1(), optimizer=RiemannianAdam())``. Its number of components, noise level
        and seed are taken from the gradient and the caller where they are None.

    References
    ----------
    Bakarsky et al., "SPEAR++: Scaling gradient inversion via sparsely-used dictionary learning", 2025, Algorithm 2.
    """

    recovery: SparseDictionaryRecovery | None = None

    def propose(
        self,
        layer_gradient: LayerGradient,
        factors: LowRankGradient,
        *,
        random_state: Any = None,
        verbose: bool = False,
    ) -> Candidates:
        """Recover the dictionary and return its candidates as directions of ``U``."""
        recovery = SparseDictionaryRecovery() if self.recovery is None else clone(self.recovery)
        defaults = {
            "n_components": factors.batch_size,
            "noise_level": factors.noise_level,
            "random_state": random_state,
        }
        recovery.set_params(**{name: value for name, value in defaults.items() if getattr(recovery, name) is None})
        recovery.set_params(verbose=verbose or recovery.verbose)
        S = factors.singular_values
        with warnings.catch_warnings():
            # The inverter says what is missing in terms of the batch.
            warnings.simplefilter("ignore", ConvergenceWarning)
            recovery.fit(factors.left * S)
        directions = S[:, None] * recovery.candidates_
        directions /= np.linalg.norm(directions, axis=0)
        return Candidates(
            directions=directions,
            n_zeros=factors.zeros(directions).sum(axis=0),
            status=recovery.status_,
            n_starts=recovery.n_starts_,
            n_successes=recovery.n_successes_,
        )

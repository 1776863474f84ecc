"""SPEAR++: candidate directions by sparsely-used dictionary learning."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import null_space
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from sparsedl import SparseDictionaryRecovery
from sparsedl_fl.certify.candidates import Candidates
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions.strategy import Directions
from sparsedl_fl.lowrank.factors import LowRankGradient

SIDES = ("auto", "gradient", "input")


@dataclass(eq=False, repr=False, kw_only=False)
class DictionaryDirections(Directions):
    """Fits a `SparseDictionaryRecovery` to ``G V = U S``, whose codes are the columns of ``D``.

    Inputs that come from a ReLU are sparse too: ``G^T = X D^T`` is the same problem with the sides exchanged, and its
    solution ``P = S Q^-T`` gives ``Q``.

    Parameters
    ----------
    recovery : SparseDictionaryRecovery or None, default=None
        The estimator; None takes its defaults. SPEAR++ is
        ``SparseDictionaryRecovery(surrogate=L1(), optimizer=RiemannianAdam())``. Its number of components, noise level
        and seed are taken from the gradient and the caller where they are None.
    sparsity : {"auto", "gradient", "input"}, default="auto"
        What is sparse. "auto" takes the gradients ``D``; if columns are missing it takes the inputs; and if some are
        missing on both sides, it searches once more for the missing columns, orthogonal to the inputs found.

    References
    ----------
    Bakarsky et al., "SPEAR++: Scaling gradient inversion via sparsely-used dictionary learning", 2025, Algorithm 2.
    """

    recovery: SparseDictionaryRecovery | None = None
    sparsity: str = "auto"

    def propose(self, problem: LayerProblem, *, random_state: Any = None, verbose: bool = False) -> Candidates:
        """Recover the dictionary and return its candidates as directions of ``U``."""
        if self.sparsity not in SIDES:
            raise ValueError(f"sparsity must be one of {SIDES}, got {self.sparsity!r}")
        factors, settings = problem.factors, {"random_state": random_state, "verbose": verbose}
        found = Candidates.empty(factors.batch_size)
        if self.sparsity != "input":
            found = self._recover(factors, np.eye(factors.batch_size), **settings)
        if self.sparsity == "gradient" or found.is_complete:
            return found
        inputs = self._recover(factors.transposed, np.eye(factors.batch_size), **settings)
        # A column of Q is orthogonal to S^-1 p for the p of every other input.
        found_rows = inputs.selection() / factors.singular_values[:, None]
        if inputs.is_complete:
            columns = np.linalg.inv(found_rows.T)
            return found.joined(columns / np.linalg.norm(columns, axis=0), factors, inputs)
        if found_rows.shape[1] and self.sparsity == "auto":
            further = self._recover(factors, null_space(found_rows.T), **settings)
            found = found.joined(further.directions, factors, further)
        return found.joined(np.zeros((factors.batch_size, 0)), factors, inputs)

    def _recover(self, factors: LowRankGradient, subspace: np.ndarray, random_state: Any, verbose: bool) -> Candidates:
        """Search a subspace, with an orthonormal basis of shape (b, k), for directions ``q`` with a sparse ``U q``."""
        recovery = SparseDictionaryRecovery() if self.recovery is None else clone(self.recovery)
        defaults = {
            "n_components": subspace.shape[1],
            "noise_level": factors.noise_level,
            "random_state": random_state,
        }
        recovery.set_params(**{name: value for name, value in defaults.items() if getattr(recovery, name) is None})
        recovery.set_params(verbose=verbose or recovery.verbose)
        # In the coordinates of the noisy G, not of U, the noise is the same in all directions.
        weighted = np.linalg.qr(subspace / factors.singular_values[:, None])[0]
        with warnings.catch_warnings():
            # The inverter warns about missing inputs.
            warnings.simplefilter("ignore", ConvergenceWarning)
            recovery.fit(factors.left * factors.singular_values @ weighted)
        directions = factors.singular_values[:, None] * (weighted @ recovery.candidates_)
        directions /= np.linalg.norm(directions, axis=0)
        return Candidates(
            directions=directions,
            n_zeros=factors.zeros(directions).sum(axis=0),
            status=recovery.status_,
            n_starts=recovery.n_starts_,
            n_successes=recovery.n_successes_,
            end=recovery.search_end_,
        )

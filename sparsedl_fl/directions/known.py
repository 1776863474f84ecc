"""No search: inputs that are given, from another layer or because the auditor has the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsedl_fl.certify.candidates import Candidates
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions.strategy import Directions
from sparsedl_fl.layers.bias_as_input import n_features, with_constant
from sparsedl_fl.layers.blocks import times

__all__ = ["KnownInputs"]


@dataclass(eq=False, repr=False, kw_only=True)
class KnownInputs(Directions):
    """Proposes the inputs that it is given; the certificate then says whether the gradient confirms them.

    Parameters
    ----------
    inputs : array-like of shape (batch_size, n)
        The whole batch of the layer, on the scale that the client fed to it, in any order.
    """

    inputs: Any = None

    def propose(self, problem: LayerProblem, *, random_state: Any = None, verbose: bool = False) -> Candidates:
        """Return the columns of the given inputs, ``Q = P^-1`` with ``P = X V / S``."""
        n, b = n_features(problem.layer_gradient), problem.batch_size
        inputs = np.asarray([] if self.inputs is None else self.inputs, dtype=np.float64)
        if inputs.shape != (b, n) or not np.isfinite(inputs).all():
            raise ValueError(
                f"inputs must be finite and of shape {(b, n)}, a row for each input that the gradient shows, "
                f"got shape {inputs.shape}"
            )
        factors = problem.factors
        rows = times(factors.right, with_constant(problem.layer_gradient, inputs).T).T / factors.singular_values
        if np.linalg.matrix_rank(rows) < b:
            return Candidates.empty(b)
        directions = np.linalg.inv(rows)
        directions = directions / np.linalg.norm(directions, axis=0)
        n_zeros = factors.zeros(directions).sum(axis=0)
        return Candidates(directions, n_zeros, "not needed (inputs given)", b, b, inputs=rows)

"""SPEAR with an optimisation prior: rows drawn where an approximate reconstruction makes a unit inactive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions.kernel import KernelDirections
from sparsedl_fl.layers.bias_as_input import n_features, with_constant


@dataclass(eq=False, repr=False, kw_only=True)
class PriorDirections(KernelDirections):
    """Draws rows among the units that an approximation of an input makes most clearly inactive.

    The approximation may come from any attack; `sparsedl_fl.reconstruction.match_gradients` is one. It need not be
    good: a rough picture of a sample already shows which units are clearly inactive. It needs ``batch_size`` samples,
    in any order.

    Parameters
    ----------
    inputs : array-like of shape (n_samples, n)
        Approximate inputs of the layer, on the scale that the client fed to it.
    rows_per_sample : int, default=3
        Rows to draw from for each sample, in units of the batch size.
    max_draws, draws_per_batch, false_rejection, device
        As in `KernelDirections`.

    References
    ----------
    Dimitrov et al., "SPEAR: Exact gradient inversion of batches in federated learning", NeurIPS 2024, Sec. 6.3.
    """

    inputs: Any = None
    rows_per_sample: int = 3

    def _rows(self, problem: LayerProblem) -> torch.Tensor:
        """Return the rows of the most clearly inactive units, one set for each approximate input."""
        given = problem.layer_gradient
        n = n_features(given)
        if self.inputs is None:
            raise ValueError(f"inputs must be an approximate reconstruction of shape (n_samples, {n}), got None")
        inputs = self.inputs.detach().cpu().numpy() if isinstance(self.inputs, torch.Tensor) else self.inputs
        inputs = np.asarray(inputs, dtype=np.float64)
        if inputs.ndim != 2 or inputs.shape[1] != n or not len(inputs) or not np.isfinite(inputs).all():
            raise ValueError(f"inputs must be finite and of shape (n_samples, {n}), got shape {inputs.shape}")
        if self.rows_per_sample < 1:
            raise ValueError(f"rows_per_sample must be at least 1, got {self.rows_per_sample!r}")
        n_rows = min(self.rows_per_sample * problem.batch_size, problem.width)
        z = as_tensor(given.preactivations(with_constant(given, inputs)))
        order = (problem.activation.distance_to_kink(z) * problem.activation.is_off(z).double().mul(2).sub(1)).argsort(
            dim=0, descending=True, stable=True
        )
        return order[:n_rows].T.contiguous()

"""The column of an input whose pre-activations are known, by the next layer's weights.

The gradient at the activations of one input is ``W2^T d2``, with its ``d2`` in the column space of the next layer's
gradient: ``D_i = phi'(z_i) * (W2^T U2 r)`` for some ``r``, and it lies in the column space of ``G``. That is ``m - b``
equations for ``b`` unknowns, in which zeros of the gradient are no more than a part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigh
from torch.nn.functional import normalize

from sparsedl.arrays import as_tensor
from sparsedl_fl.activations import Activation
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.lowrank import LowRankGradient
from sparsedl_fl.views.span import ActivationSpan

__all__ = ["ColumnView"]


@dataclass(frozen=True)
class ColumnView:
    """What the next layer's weights say of the columns.

    Attributes
    ----------
    left : torch.Tensor of shape (m, b)
        ``U``.
    behind : torch.Tensor of shape (m, b)
        ``W2^T U2``: what may reach the activations from behind.
    activation : Activation
        ``phi``.
    distinct : float, default=0.1
        Ratio of the smallest distances of two directions from the column space up to which the nearer is a column.
    """

    left: torch.Tensor
    behind: torch.Tensor
    activation: Activation
    distinct: float = 0.1

    @classmethod
    def of(
        cls, layer_gradient: LayerGradient, factors: LowRankGradient, span: ActivationSpan | None
    ) -> ColumnView | None:
        """Return the view, or None where the next layer's weights or the span of its gradient are not known.

        The weights of a FedAvg client move, and no one step's are those that were sent out.
        """
        weight = layer_gradient.next_weight
        if weight is None or span is None or layer_gradient.is_update:
            return None
        outputs = np.linalg.qr(np.asarray(layer_gradient.next_weight_grad, dtype=float) @ span.basis.numpy())[0]
        return cls(as_tensor(factors.left), as_tensor(np.asarray(weight, dtype=float).T @ outputs), span.activation)

    def slopes(self, preactivations: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``."""
        return self.activation.derivative(preactivations)

    def columns(self, slopes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a unit ``q`` for each row of slopes ``phi'(z)``, and whether it is the only one.

        Parameters
        ----------
        slopes : torch.Tensor of shape (n, m)
            Of inputs whose pre-activations are known.

        Returns
        -------
        columns : torch.Tensor of shape (n, b)
        is_only : torch.Tensor of shape (n,) of bool
        """
        b = self.left.shape[1]
        columns, is_only = torch.zeros((len(slopes), b), dtype=self.left.dtype), torch.zeros(len(slopes), dtype=bool)
        for index, slope in enumerate(slopes):
            if slope.count_nonzero() <= b:
                continue
            possible = slope[:, None] * self.behind
            inside = self.left.T @ possible
            # What lies outside of the column space, squared, in units of the whole.
            outside = possible - self.left @ inside
            values, axes = eigh(
                (outside.T @ outside).numpy(), (possible.T @ possible).numpy(), subset_by_index=[0, min(1, b - 1)]
            )
            columns[index] = inside @ torch.from_numpy(axes[:, 0])
            is_only[index] = b == 1 or bool(values[0] < self.distinct**2 * values[1])
        return normalize(columns, dim=1), is_only

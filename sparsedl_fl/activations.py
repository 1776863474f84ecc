"""The third view: the gradient of the next layer spans the activations of the batch.

``dL/dW2 = D2 relu(Z)^T``, so that a ``p`` is a sample exactly when ``relu(F p)`` lies in the row space of that
gradient: ``m - b`` equations for ``b`` unknowns, which no sparsity is needed for. Up to half the width they leave the
samples alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparsedl_fl.blocks import in_double
from sparsedl_fl.spectrum import leading_left

__all__ = ["ActivationSpan"]

LEAST_SURPLUS = 4
"""Equations beyond the unknowns from which on the span identifies samples: one of the wrong patterns that a search
comes across fulfils each with a chance of about the tolerance."""

_LARGEST_TOLERANCE = 1e-3


@dataclass(frozen=True)
class ActivationSpan:
    """The row space of the next layer's weight gradient.

    Attributes
    ----------
    basis : torch.Tensor of shape (m, b)
        Orthonormal columns.
    tolerance : float
        Relative distance from the span that rounding explains. The nearest ends that are no samples stay at a few
        thousandths.
    """

    basis: torch.Tensor
    tolerance: float

    @classmethod
    def of(cls, next_weight_grad: np.ndarray | None, batch_size: int) -> ActivationSpan | None:
        """Return the span, or None where there is no gradient, too narrow a layer, or too much noise to use it."""
        if next_weight_grad is None or min(next_weight_grad.shape) <= batch_size or not next_weight_grad.any():
            return None
        V, S, rank = leading_left(in_double(next_weight_grad.T), None, min(next_weight_grad.shape))
        tolerance = max(1e-5, 10 * S[rank] / S[rank - 1])
        if rank != batch_size or tolerance > _LARGEST_TOLERANCE:
            return None
        return cls(torch.from_numpy(V[:, :batch_size].astype(float)), float(tolerance))

    @property
    def identifies(self) -> bool:
        """Whether the batch is small enough for the span to leave no other samples."""
        m, b = self.basis.shape
        return m - 2 * b >= LEAST_SURPLUS

    def distances(self, preactivations: torch.Tensor) -> torch.Tensor:
        """Return how far the activations of pre-activations of shape (n, m) lie from the span, relative."""
        activations = torch.relu(preactivations)
        outside = activations - (activations @ self.basis) @ self.basis.T
        lengths = torch.linalg.vector_norm(activations, dim=1).clamp(min=torch.finfo(activations.dtype).tiny)
        return torch.linalg.vector_norm(outside, dim=1) / lengths

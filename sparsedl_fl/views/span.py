"""The span: the gradient of the next layer spans the activations of the batch.

``dL/dW2 = D2 phi(Z)^T``, so that a ``p`` belongs to an input exactly when ``phi(F p)`` lies in the row space of that
gradient: ``m - b`` equations for ``b`` unknowns, which no sparsity is needed for. Up to half the width they leave the
inputs alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.activations import Activation
from sparsedl_fl.blocks import in_double
from sparsedl_fl.spectrum import leading_left

__all__ = ["ActivationSpan"]


@dataclass(frozen=True)
class ActivationSpan:
    """The row space of the next layer's weight gradient.

    Attributes
    ----------
    basis : torch.Tensor of shape (m, b)
        Orthonormal columns.
    tolerance : float
        Relative distance from the span that rounding explains. The nearest ends that are no inputs stay at a few
        thousandths.
    activation : Activation
        ``phi``.
    least_surplus : int, default=4
        Equations beyond the unknowns from which on the span identifies inputs: one of the wrong patterns that a search
        comes across fulfils each with a chance of about the tolerance.
    """

    basis: torch.Tensor
    tolerance: float
    activation: Activation
    least_surplus: int = 4

    @classmethod
    def of(
        cls,
        next_weight_grad: np.ndarray | None,
        batch_size: int,
        activation: Activation,
        *,
        largest_tolerance: float = 1e-3,
    ) -> ActivationSpan | None:
        """Return the span, or None where there is no gradient, too narrow a layer, or too much noise to use it.

        Noise is too much where the tolerance would be larger than the largest: the nearest ends that are no inputs come
        as close.
        """
        if next_weight_grad is None or min(next_weight_grad.shape) <= batch_size or not next_weight_grad.any():
            return None
        V, S, rank = leading_left(in_double(next_weight_grad.T), None, min(next_weight_grad.shape))
        tolerance = max(1e-5, 10 * S[rank] / S[rank - 1])
        if rank != batch_size or tolerance > largest_tolerance:
            return None
        return cls(as_tensor(V[:, :batch_size].astype(float)), float(tolerance), activation)

    @property
    def identifies(self) -> bool:
        """Whether the batch is small enough for the span to leave nothing but its inputs."""
        m, b = self.basis.shape
        return m - 2 * b >= self.least_surplus

    def distances(self, preactivations: torch.Tensor) -> torch.Tensor:
        """Return how far the activations of pre-activations of shape (n, m) lie from the span, relative."""
        activations = self.activation.value(preactivations)
        outside = activations - (activations @ self.basis) @ self.basis.T
        lengths = torch.linalg.vector_norm(activations, dim=1).clamp(min=torch.finfo(activations.dtype).tiny)
        return torch.linalg.vector_norm(outside, dim=1) / lengths

    def up_to_scale(self) -> ActivationSpan | None:
        """Return the span for a search whose pre-activations have no scale yet, or None where these need one."""
        shape = self.activation.shape_at_kink() if self.activation.has_flat_part else None
        return None if shape is None else replace(self, activation=shape)

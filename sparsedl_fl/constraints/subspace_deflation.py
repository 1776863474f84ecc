"""Deflation of an activation subspace: removes known samples by their gradients at the layer and the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl_fl.constraints.activation_subspace import ActivationSubspace
from sparsedl_fl.layers.blocks import times, transposed_times

__all__ = ["SubspaceDeflation"]


@dataclass(frozen=True)
class SubspaceDeflation:
    """The layer that follows an activation subspace.

    Its gradient is ``G' = D' Y^T``: the dual ``a`` in the subspace, with ``G' a = d'`` of one sample, is orthogonal to
    the activations of all others. Backpropagation gives ``d = phi'(z) * (W'^T d')``, which is known: ``m`` equations
    for the ``b`` unknowns of ``a``.

    Attributes
    ----------
    weight, gradient : ndarray of shape (k, m)
        ``W'`` and ``G'``, in the precision in which they were sent.
    """

    weight: np.ndarray
    gradient: np.ndarray

    def duals(
        self,
        subspace: ActivationSubspace,
        gradients: torch.Tensor,
        activations: torch.Tensor,
        slopes: torch.Tensor,
        *,
        ridge: float = 1e-12,
        least: float = 1e-2,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the dual ``a`` of some samples, and for which it is right.

        Parameters
        ----------
        subspace : ActivationSubspace
            The activation subspace, deflated or not.
        gradients : torch.Tensor of shape (n, m)
            ``d`` of ``n`` samples, up to a factor.
        activations, slopes : torch.Tensor of shape (n, m)
            ``phi(z)`` and ``phi'(z)`` of these.
        ridge : float, default=1e-12
            Relative ridge that keeps the systems regular.
        least : float, default=1e-2
            Largest relative residual of ``d``, and largest relative overlap with the other samples' activations; not
            varied.

        Returns
        -------
        duals : torch.Tensor of shape (n, m)
            Unit rows in the subspace.
        is_right : torch.Tensor of shape (n,) of bool
            Whether the equations hold.
        """
        axes = as_tensor(transposed_times(self.weight, times(self.gradient, subspace.duals.numpy())))
        found, left = [], []
        for gradient, slope in zip(normalized(gradients, dim=1), slopes, strict=True):
            sent = slope[:, None] * axes
            gram = sent.T @ sent
            gram.diagonal().add_(ridge * gram.diagonal().mean())
            found.append(torch.linalg.solve(gram, sent.T @ gradient))
            left.append(torch.linalg.vector_norm(sent @ found[-1] - gradient))
        duals = normalized(torch.stack(found) @ subspace.duals.T, dim=1)
        overlaps = (normalized(activations, dim=1) @ duals.T).abs()
        own = overlaps.diagonal().clone()
        return duals, (torch.stack(left) < least) & (overlaps.fill_diagonal_(0.0).amax(dim=0) < least * own)

    def gradients(self, duals: torch.Tensor) -> torch.Tensor:
        """Return ``d'`` of the samples of some duals, both as rows."""
        return as_tensor(times(self.gradient, duals.numpy().T)).T

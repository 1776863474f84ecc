"""What leads from the gradients of known inputs at a layer to those at the next, and so out of its span."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsedl.linalg import normalized
from sparsedl_fl.constraints.activation_subspace import ActivationSubspace

__all__ = ["SubspaceDeflation"]


@dataclass(frozen=True)
class SubspaceDeflation:
    """The layer behind a span.

    Its gradient is ``G' = D' Y^T``: the ``a`` in the span with ``G' a = d'`` of one input is orthogonal
    to the activations of all others. And ``d'`` comes back as ``d = phi'(z) * (W'^T d')``, which is known: ``m``
    equations for the ``b`` unknowns of ``a``.

    Attributes
    ----------
    weight, gradient : torch.Tensor of shape (k, m)
        ``W'`` and ``G'``.
    """

    weight: torch.Tensor
    gradient: torch.Tensor

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
        """Return ``a`` of some inputs, and of which it is right.

        Parameters
        ----------
        span : ActivationSubspace
            All of the span, or what is left of it.
        gradients : torch.Tensor of shape (n, m)
            ``d`` of ``n`` inputs, up to a factor.
        activations, slopes : torch.Tensor of shape (n, m)
            ``phi(z)`` and ``phi'(z)`` of these.
        ridge : float, default=1e-12
            Keeps the systems regular, relative.
        least : float, default=1e-2
            How much of ``d`` may be left, relative, and of the activations of the other inputs given; not varied.

        Returns
        -------
        duals : torch.Tensor of shape (n, m)
            Unit rows in the span.
        is_right : torch.Tensor of shape (n,) of bool
            Whether the equations hold.
        """
        axes, found, left = self.weight.T @ (self.gradient @ subspace.duals), [], []
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

    def to(self, dtype: torch.dtype) -> SubspaceDeflation:
        """Return the same in another precision."""
        return SubspaceDeflation(self.weight.to(dtype), self.gradient.to(dtype))

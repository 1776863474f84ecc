"""The column of a sample whose pre-activations are known, by the weights of the downstream layers.

The gradient at the activations of a sample is ``W2^T d2``, with ``d2`` in the column space of the next layer's
gradient: ``D_i = phi'(z_i) * (W2^T U2 r)`` for some ``r``, and it lies in the column space of ``G``. That is ``m - b``
equations for ``b`` unknowns, zeros of the gradient among them. One layer further, ``d2`` is ``phi'(z2) * (W3^T U3 r)``,
which adds as many equations and no unknowns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.linalg import LinAlgError, eigh

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl_fl.constraints.downstream_subspaces import DownstreamSubspaces
from sparsedl_fl.layers.blocks import times, transposed_times
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["KnownWeights"]


@dataclass(frozen=True)
class KnownWeights:
    """The equations of downstream weights for the columns of known samples.

    Attributes
    ----------
    downstream : DownstreamSubspaces
        The forward propagation, one level for each downstream layer that is used.
    weights : tuple of torch.Tensor
        ``W2``, ``W3``, ...: they backpropagate gradients to the activations of each level but the last.
    sent : torch.Tensor of shape (m, b)
        ``W^T U`` of the last level: its weights, often as large as the gradient, are needed for nothing else.
    outputs : tuple of torch.Tensor
        ``U1``, ``U2``, ...: orthonormal bases of the column spaces of the gradients, from the layer's own on.
    distinct : float, default=0.1
        Largest ratio of the two smallest distances from the column spaces for the nearer direction to be a column.
    open : float, default=1e-10
        Squared distance up to which the second direction is inside as well: there are fewer equations than unknowns.
        Rounding leaves 1e-17 (34 samples at 60 units); not varied.
    """

    downstream: DownstreamSubspaces
    weights: tuple[torch.Tensor, ...]
    sent: torch.Tensor
    outputs: tuple[torch.Tensor, ...]
    distinct: float = 0.1
    open: float = 1e-10

    @classmethod
    def of(
        cls,
        layer_gradient: LayerGradient,
        factors: LowRankGradient,
        downstream: DownstreamSubspaces | None,
        *,
        enough: float = 1.5,
    ) -> KnownWeights | None:
        """Return the equations, or None where the next layer's weights or its activation subspace are not known.

        Layers are added, ``m - b`` equations each, until there are ``enough`` for each unknown (not varied). Weights of
        a FedAvg client move, so its steps have others than the initial ones: None.
        """
        known = [layer for layer in layer_gradient.layers if layer.weight is not None]
        if not known or downstream is None or layer_gradient.is_update:
            return None
        outputs, n_equations, b = [as_tensor(factors.left)], 0, factors.batch_size
        for subspace, layer in zip(downstream.levels, known, strict=False):
            n_equations += len(outputs[-1]) - b
            outputs.append(torch.linalg.qr(as_tensor(times(layer.weight_grad, subspace.basis.numpy())))[0])
            if n_equations >= enough * b:
                break
        n_levels, last = len(outputs) - 1, outputs.pop()
        weights = tuple(as_tensor(layer.weight.astype(float, copy=False)) for layer in known[: n_levels - 1])
        sent = as_tensor(transposed_times(known[n_levels - 1].weight, last.numpy()))
        return cls(downstream.up_to(n_levels), weights, sent, tuple(outputs))

    def columns(self, preactivations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a unit ``q`` for each row of pre-activations, and whether it is the only one.

        Parameters
        ----------
        preactivations : torch.Tensor of shape (n, m)
            Of samples, at their true scale.

        Returns
        -------
        columns : torch.Tensor of shape (n, b)
        is_only : torch.Tensor of shape (n,) of bool
        """
        left = self.outputs[0]
        b = left.shape[1]
        columns = torch.zeros((len(preactivations), b), dtype=left.dtype)
        is_only = torch.zeros(len(preactivations), dtype=torch.bool)
        slopes = self.downstream.at(preactivations).slopes
        for index in range(len(preactivations)):
            if slopes[0][index].count_nonzero() <= b:
                continue
            sent = self.sent
            outside_gram = gram = torch.zeros((b, b), dtype=left.dtype)
            for level in reversed(range(len(self.outputs))):
                possible = slopes[level][index, :, None] * sent
                if level:
                    sent = self.weights[level - 1].T @ possible
                inside = self.outputs[level].T @ possible
                # Squares of the part outside of the column space, relative to the whole.
                outside, size = possible - self.outputs[level] @ inside, possible.square().sum()
                outside_gram, gram = outside_gram + outside.T @ outside / size, gram + possible.T @ possible / size
            try:
                values, axes = eigh(outside_gram.numpy(), gram.numpy(), subset_by_index=[0, min(1, b - 1)])
            except LinAlgError:  # some directions reach no active unit
                continue
            columns[index] = inside @ torch.from_numpy(axes[:, 0])
            is_only[index] = b == 1 or bool(values[1] > max(values[0] / self.distinct**2, self.open))
        return normalized(columns, dim=1), is_only

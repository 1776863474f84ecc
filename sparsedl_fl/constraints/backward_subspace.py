"""Backward subspaces: the gradient of the loss for a label, backpropagated to the attacked layer.

With ``d`` the gradient at a layer's outputs and ``e`` that at its activations, ``d`` is ``e`` where a unit is active
and zero elsewhere, ``e = W'^T d'`` with the next layer's, and every ``d`` lies in the column space of its layer's
gradient. The last ``e`` is that of the loss for a label.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.activations import FlatPart, resolve
from sparsedl_fl.layers.blocks import in_double
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.layers.next_layers import Head
from sparsedl_fl.lowrank.factors import LowRankGradient
from sparsedl_fl.lowrank.spectrum import leading_left

__all__ = ["BackwardSubspaces", "column_basis"]


@dataclass(frozen=True)
class BackwardSubspaces:
    """Where the gradients of every layer lie, from the one attacked to the last hidden one.

    Attributes
    ----------
    bases : tuple of torch.Tensor of shape (m, b)
        Orthonormal bases of the column spaces; the unit matrix where a layer is no wider than the batch.
    layers : tuple of (weight, bias)
        ``W'`` and ``bias'`` from each layer to the next, one fewer.
    head : Head
        The last layer, and the loss.
    activations : tuple of FlatPart
        Of each layer: a unit is active, with slope one, or inactive.
    """

    bases: tuple[torch.Tensor, ...]
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    head: Head
    activations: tuple[FlatPart, ...]

    @classmethod
    def of(cls, given: LayerGradient, factors: LowRankGradient) -> BackwardSubspaces | None:
        """Return the subspaces, or None where the head is unknown, a slope is not zero or one, or weights moved."""
        head, hidden = given.tail.head, given.layers[:-1]
        names = [given.activation, *(layer.activation for layer in hidden)]
        activations = tuple(phi for phi in map(resolve, names) if isinstance(phi, FlatPart))
        are_flat = len(activations) == len(names)
        if head is None or given.next_layer.weight_grad is None or given.is_update or not are_flat:
            return None
        bases = [as_tensor(factors.left), *(column_basis(layer.weight_grad, factors.batch_size) for layer in hidden)]
        layers = tuple((as_tensor(layer.weight.astype(float, copy=False)), as_tensor(layer.bias)) for layer in hidden)
        return cls(tuple(bases), layers, head, activations)

    @property
    def is_two_pieces(self) -> bool:
        """Whether units are inactive on one side alone."""
        return all(math.isinf(phi.upper) for phi in self.activations)

    def to(self, dtype: torch.dtype) -> BackwardSubspaces:
        """Return the same in another precision."""
        layers = tuple((W.to(dtype), bias.to(dtype)) for W, bias in self.layers)
        return replace(self, bases=tuple(basis.to(dtype) for basis in self.bases), layers=layers)

    def last(self, preactivations: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return ``e`` at the last layer, from its ``z``, of shape (n, m)."""
        return self.head.sent_back(self.activations[-1].value(preactivations), labels)

    def at(
        self, preactivations: torch.Tensor, labels: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Return ``z``, ``d`` and ``e`` at each layer, for pre-activations of the first and labels."""
        z = [preactivations]
        for phi, (W, bias) in zip(self.activations, self.layers, strict=False):
            z.append(phi.value(z[-1]) @ W.T + bias)
        e, d = [self.last(z[-1], labels)], list[torch.Tensor]()
        for level in reversed(range(len(z))):
            d.insert(0, e[0] * self.activations[level].derivative(z[level]))
            if level:
                e.insert(0, d[0] @ self.layers[level - 1][0])
        return z, d, e


def column_basis(gradient: np.ndarray, batch_size: int) -> torch.Tensor:
    """Return an orthonormal basis of the column space of a gradient of shape (k, m), of shape (k, at most b)."""
    limit = min(gradient.shape)
    if batch_size >= len(gradient):
        return torch.eye(len(gradient), dtype=torch.float64)
    U, _, _ = leading_left(in_double(gradient), min(batch_size, limit), limit, n_iterations=(1, 3))
    return as_tensor(U[:, :batch_size].astype(float))

"""Activation subspaces of all downstream layers: every hidden layer adds equations for the same unknowns.

With ``z' = W' phi(z) + bias'``, the activations ``phi'(z')`` of a true sample lie in the row space of the gradient of
the layer after that, and so on: ``m' - b`` equations each. With ``L`` subspaces as wide as the layer, only samples
fulfil them up to ``b = L m / (L + 1)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.activations import Activation, resolve
from sparsedl_fl.constraints.activation_subspace import ROUNDING_SHARE, ActivationSubspace, lengths
from sparsedl_fl.constraints.constraint import Constraint, Inputs
from sparsedl_fl.constraints.downstream_residuals import SubspacesAt
from sparsedl_fl.constraints.subspace_deflation import SubspaceDeflation
from sparsedl_fl.layers.layer_gradient import LayerGradient

__all__ = ["DownstreamSubspaces"]


@dataclass(frozen=True)
class DownstreamSubspaces(Constraint):
    """The activation subspaces of successive layers, with the known layers between them.

    Attributes
    ----------
    levels : tuple of ActivationSubspace
        The subspaces, the next layer's first.
    layers : tuple of (weight, bias)
        ``W'`` and ``bias'`` between one level and the next, one fewer.
    weights : tuple of torch.Tensor
        Weight of the squared residuals of each level, of shape ().
    factors : tuple of torch.Tensor
        Factors on these for each of ``n`` rows, of shape (n, 1); none where all have the same weights.
    unknowns : int or None, default=None
        Number of unknowns of a candidate; None takes the batch size.
    deflations : tuple of SubspaceDeflation, default=()
        The layer after each subspace, as far as these are known.
    """

    levels: tuple[ActivationSubspace, ...]
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()
    weights: tuple[torch.Tensor, ...] = ()
    factors: tuple[torch.Tensor, ...] = ()
    unknowns: int | None = None
    deflations: tuple[SubspaceDeflation, ...] = ()

    def __post_init__(self) -> None:
        if not self.weights:
            object.__setattr__(self, "weights", (torch.ones((), dtype=self.levels[0].basis.dtype),) * len(self.levels))

    @classmethod
    def of(
        cls, given: LayerGradient, batch_size: int, activation: Activation, gap: float = 1.0, *, whole: bool = False
    ) -> DownstreamSubspaces | None:
        """Return the subspaces of all downstream gradients, or None where the next layer has none.

        Where zeros and the first subspace identify the samples, the others cost more than they bring, and are left out
        unless ``whole``. They need the weights of downstream layers, which move at a FedAvg client.
        """
        own = given.weight, given.bias
        first = ActivationSubspace.of(given.next_layer.weight_grad, batch_size, activation, own, gap)
        if first is None:
            return None
        subspaces, layers = [first], []
        suffices = given.is_update or (activation.has_flat_part and first.identifies and not whole)
        for layer, after in () if suffices else pairwise(given.layers):
            follows = None if layer.activation is None else resolve(layer.activation)
            if follows is None:
                break
            subspace = ActivationSubspace.of(after.weight_grad, batch_size, follows, (layer.weight, layer.bias), gap)
            if subspace is None:
                break
            subspaces.append(subspace)
            layers.append((as_tensor(layer.weight.astype(float, copy=False)), as_tensor(layer.bias)))
        deflations = [
            SubspaceDeflation(layer.weight, layer.weight_grad)
            for layer in ([] if given.is_update else given.layers[: len(subspaces)])
            if layer.weight is not None
        ]
        return cls(tuple(subspaces), tuple(layers), deflations=tuple(deflations))

    @property
    def in_words(self) -> str:
        """What they are of, in words."""
        n = len(self.levels)
        return "the next layer's gradient" if n == 1 else f"the gradients of the next {n} layers"

    @property
    def first(self) -> DownstreamSubspaces:
        """The next layer's subspace alone."""
        return self.up_to(1)

    def up_to(self, n_levels: int) -> DownstreamSubspaces:
        """Return the first ``n_levels`` subspaces."""
        return replace(
            self,
            levels=self.levels[:n_levels],
            layers=self.layers[: n_levels - 1],
            weights=self.weights[:n_levels],
            factors=self.factors[:n_levels],
            deflations=self.deflations[:n_levels],
        )

    @property
    def n_equations(self) -> int:
        """The sum of ``m - b`` over the levels, without units that are copies."""
        return sum(max(0, subspace.n_equations) for subspace in self.levels)

    @property
    def n_unknowns(self) -> int:
        """``b``, or fewer."""
        return self.levels[0].basis.shape[1] if self.unknowns is None else self.unknowns

    def scaled_to(self, preactivations: torch.Tensor) -> DownstreamSubspaces:
        """Return the same with residuals relative to the activations at typical pre-activations."""
        levels = replace(self, weights=()).at(preactivations).activations
        return replace(self, weights=tuple(1 / y.square().sum(dim=1).mean() for y in levels))

    def by_noise(self, preactivations: torch.Tensor) -> DownstreamSubspaces:
        """Return the same with residuals relative to those at these pre-activations, of samples."""
        here = replace(self, weights=()).at(preactivations)
        return replace(self, weights=tuple(1 / part.square().sum(dim=1).mean() for part in here.outside))

    def by_rounding(self, preactivations: torch.Tensor) -> DownstreamSubspaces:
        """Return the same with residuals in units of the rounding that the gradients themselves show."""
        levels = zip(self.levels, self.at(preactivations).activations, strict=True)
        expected = [(lengths(y) * subspace.rounding_of(y) / ROUNDING_SHARE).square().mean() for subspace, y in levels]
        return replace(self, weights=tuple(1 / square for square in expected))

    def weighted(self, n: int, spread: float, generator: torch.Generator) -> DownstreamSubspaces:
        """Return the same with random weights of the levels for each of ``n`` starts."""
        factors = [
            torch.exp(spread * torch.randn((n, 1), generator=generator, dtype=torch.float32)) for _ in self.weights
        ]
        return replace(self, factors=tuple(factor.to(self.weights[0].dtype) for factor in factors))

    def unweighted(self) -> DownstreamSubspaces:
        """Return the same with the weights that all have."""
        return replace(self, factors=())

    def without(self, inputs: Inputs) -> DownstreamSubspaces:
        """Return the subspaces of the other samples' activations; a sample whose column is wrong is not deflated.

        (GELU, 550 samples at two layers of 1000: all are recovered in 13 minutes, without it 63 in 24.)
        """
        if len(inputs.whitened) == 0:
            return self
        here, subspaces, gradients = (
            replace(self, factors=()).at(inputs.preactivations),
            list(self.levels),
            inputs.gradients,
        )
        for level, deflation in enumerate(self.deflations):
            duals, is_right = deflation.duals(subspaces[level], gradients, here.activations[level], here.slopes[level])
            subspaces[level] = subspaces[level].orthogonal_to(duals[is_right])
            gradients = deflation.gradients(duals)
        return replace(self, levels=tuple(subspaces))

    def of_some(self, index: torch.Tensor) -> DownstreamSubspaces:
        """Return the same for some of the rows."""
        return replace(self, factors=tuple(factor[index] for factor in self.factors))

    def to(self, dtype: torch.dtype) -> DownstreamSubspaces:
        """Return the same in another precision."""
        subspaces = tuple(subspace.to(dtype) for subspace in self.levels)
        layers = tuple((W.to(dtype), bias.to(dtype)) for W, bias in self.layers)
        weights, factors = (tuple(part.to(dtype) for part in parts) for parts in (self.weights, self.factors))
        return replace(self, levels=subspaces, layers=layers, weights=weights, factors=factors)

    def at(self, preactivations: torch.Tensor) -> SubspacesAt:
        """Return the residuals at pre-activations of shape (n, m)."""
        preactivations_of: list[torch.Tensor] = []
        activations: list[torch.Tensor] = []
        slopes: list[torch.Tensor] = []
        z = preactivations
        for level, subspace in enumerate(self.levels):
            if level:
                W, bias = self.layers[level - 1]
                z = activations[-1] @ W.T + bias
            activations.append(subspace.activation.value(z))
            slopes.append(subspace.activation.derivative(z))
            preactivations_of.append(z)
        return SubspacesAt(self, preactivations_of, activations, slopes)

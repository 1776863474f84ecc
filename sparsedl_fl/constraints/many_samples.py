"""Batches of more samples than features: when that is so, and what is known of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.activations import resolve
from sparsedl_fl.constraints import DownstreamSubspaces, ForwardPass
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.layers.bias_as_input import gradient_with_bias, unit_of_bias
from sparsedl_fl.layers.blocks import in_double, times
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.factors import LowRankGradient, cut
from sparsedl_fl.lowrank.measured import Measured
from sparsedl_fl.lowrank.spectrum import leading_left, rank_above_floor, rank_above_white_noise

__all__ = ["ManySamplesProblem"]


@dataclass(frozen=True)
class ManySamplesProblem:
    """A layer whose batch has more samples than its features have dimensions.

    The bias is one more feature, equal to one: ``[G, g] = D [X, 1]^T = U S V^T`` has the rank ``r < b`` of the
    features, and every sample is ``(x, 1) = V S p`` for some ``p`` of ``r`` numbers, with ``h^T p = 1`` and
    ``z = F p`` as ever.

    Attributes
    ----------
    layer : LayerProblem
        The layer with its bias as one more feature; its "batch size" is ``r``.
    next_layer : LowRankGradient
        ``G2^T`` of the next layer, ``A D2^T`` for the activations ``A``; its batch size is ``b``.
    """

    layer: LayerProblem
    next_layer: LowRankGradient

    @classmethod
    def of(
        cls,
        layer_gradient: LayerGradient,
        batch_size: int | None = None,
        *,
        clear_gap: float = 10.0,
        clearly_more: float = 100.0,
    ) -> ManySamplesProblem | None:
        """Return the problem, or None where there are no more samples than features or the next layer hides that.

        Parameters
        ----------
        layer_gradient : LayerGradient
            Weights and gradients, those of the next layer with them, of one step.
        batch_size : int or None, default=None
            Number of samples; None takes the rank of the next layer's gradient.
        clear_gap : float, default=10
            Gap in the singular values beyond the rank of the features, where samples do not span all features, for that
            rank to be theirs and not the number of those with a gradient.
        clearly_more : float, default=100
            Size of a singular value of the next layer's gradient beyond that rank, over its noise, from which on it is
            a sample. (The gap beyond the batch may be smaller: samples of which a trained network is sure have next to
            no gradient.)
        """
        given = layer_gradient
        activation = resolve(given.activation)
        if (
            given.next_layer.weight is None
            or given.next_layer.weight_grad is None
            or given.is_update
            or activation is None
        ):
            return None
        if not given.next_layer.weight_grad.any() or not given.bias_grad.any():
            return None
        factors = _with_bias(given, clear_gap)
        next_layer = None if factors is None else _next_layer(given, batch_size)
        if next_layer is None or not _is_crowded(factors, next_layer, clearly_more):
            return None
        downstream = DownstreamSubspaces.of(given, next_layer.batch_size, activation)
        if downstream is None:
            return None
        downstream = replace(downstream, unknowns=factors.batch_size)
        if not downstream.identifies:
            return None
        features = factors.right[:, :-1]
        matrix = times(given.weight, (factors.singular_values[:, None] * features).T)
        scale = factors.singular_values * factors.right[:, -1] / unit_of_bias(given)
        forward = ForwardPass(((matrix, given.bias),), scale)
        return cls(LayerProblem(given, factors, activation, forward, downstream), next_layer)

    @property
    def batch_size(self) -> int:
        """The number of samples, ``b``."""
        return self.next_layer.batch_size

    @cached_property
    def is_free(self) -> bool:
        """Whether samples span all features, so that the layer's own gradient restricts none of them."""
        return self.layer.batch_size == self.layer.factors.right.shape[1]

    def inputs(self, whitened: np.ndarray) -> np.ndarray:
        """Return ``X`` of shape (k, n) for rows ``p`` at their true scale."""
        factors = self.layer.factors
        return (whitened * factors.singular_values) @ factors.right[:, :-1]

    def whitened(self, inputs: np.ndarray) -> np.ndarray:
        """Return the rows ``p`` nearest to inputs of shape (k, n)."""
        factors, unit = self.layer.factors, unit_of_bias(self.layer.layer_gradient)
        return (inputs @ factors.right[:, :-1].T + unit * factors.right[:, -1]) / factors.singular_values

    def preactivations(self, whitened: np.ndarray) -> torch.Tensor:
        """Return ``z`` of shape (k, m) for rows ``p`` at their true scale."""
        return as_tensor(whitened @ self.layer.forward.regressors().T)

    def activations(self, whitened: np.ndarray) -> torch.Tensor:
        """Return ``phi(z)`` of shape (k, m)."""
        return self.layer.activation.value(self.preactivations(whitened))


def _with_bias(given: LayerGradient, clear_gap: float) -> LowRankGradient | None:
    """Return the factors of ``[G, g]``, or None where their rank is not clear."""
    G = in_double(gradient_with_bias(given))
    limit = int(min(G.any(axis=1).sum(), G.any(axis=0).sum()))
    measured = Measured(G)
    U, S, _ = leading_left(measured, None, limit)
    rank = rank_above_floor(S[:limit], measured)
    if rank == 0 or (rank < limit and (len(S) <= rank or S[rank - 1] < clear_gap * S[rank])):
        return None
    factors = cut(measured, U, S, rank)
    # Where samples span all features, no residual shows noise, and none of it would move a sample.
    return replace(factors, precision=0.0) if rank == G.shape[1] else factors


def _next_layer(given: LayerGradient, batch_size: int | None, *, clear_gap: float = 10.0) -> LowRankGradient | None:
    """Return the factors of ``G2^T``, or None where their rank is not clear."""
    G = in_double(given.next_layer.weight_grad.T)
    limit = int(min(G.any(axis=1).sum(), G.any(axis=0).sum()))
    if batch_size is not None and batch_size >= limit:
        return None
    measured = Measured(G)
    U, S, b = leading_left(measured, batch_size, limit)
    if batch_size is None:
        b = rank_above_white_noise(S, b, measured)
        if len(S) <= b or S[b - 1] < clear_gap * S[b]:  # samples that a network is sure of fade into the rounding
            faded = rank_above_floor(S[:limit], measured)
            b = faded if b < faded < limit else b
    return None if b >= limit or len(S) <= b else cut(measured, U, S, b)


def _is_crowded(factors: LowRankGradient, next_layer: LowRankGradient, clearly_more: float) -> bool:
    """Return whether there are more samples than dimensions; the bias may be the one that makes these as many."""
    rank, n_all, b = factors.batch_size, factors.right.shape[1], next_layer.batch_size
    needed = rank if rank < n_all else rank - 1
    return b > needed and next_layer.singular_values[needed] > clearly_more * next_layer.beyond

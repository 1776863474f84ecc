"""The problem that a layer's gradient poses: what searches and certificates share, built once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl.process import one_thread
from sparsedl.zeros import ZeroTest
from sparsedl_fl.activations import Activation, resolve
from sparsedl_fl.constraints.activation_subspace import ActivationSubspace
from sparsedl_fl.constraints.backward_subspace import BackwardSubspaces
from sparsedl_fl.constraints.downstream_residuals import SubspacesAt
from sparsedl_fl.constraints.downstream_subspaces import DownstreamSubspaces
from sparsedl_fl.constraints.forward_pass import ForwardPass
from sparsedl_fl.constraints.known_weights import KnownWeights
from sparsedl_fl.constraints.sent_back import SentBackGradients
from sparsedl_fl.constraints.tail_gradient import TailGradient
from sparsedl_fl.layers.diagnosis import is_sparsified
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.layers.stored_weights import step_of_stored_weights
from sparsedl_fl.lowrank.factorization import factorize_with_bias
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["LayerProblem"]


@dataclass(frozen=True)
class LayerProblem:
    """A layer's gradient with its factors, and the constraints on its samples.

    Attributes
    ----------
    layer_gradient : LayerGradient
        Weights and gradients.
    factors : LowRankGradient
        The factorised gradient.
    activation : Activation
        Activation after the layer; ReLU where it is not known.
    forward : ForwardPass
        The forward pass.
    subspaces : DownstreamSubspaces or None
        Activation subspaces of downstream layers, where there are usable ones.
    column : KnownWeights or None
        Equations of the downstream weights for the column of a known sample.
    """

    layer_gradient: LayerGradient
    factors: LowRankGradient
    activation: Activation
    forward: ForwardPass
    subspaces: DownstreamSubspaces | None
    column: KnownWeights | None = None

    @classmethod
    def of(
        cls, layer_gradient: LayerGradient, batch_size: int | None = None, noise_level: float | None = None
    ) -> LayerProblem:
        """Factorise a gradient and build the constraints.

        Parameters
        ----------
        layer_gradient : LayerGradient
            Weights and gradients.
        batch_size, noise_level
            As in `sparsedl_fl.lowrank.factors.factorize`.
        """
        activation = resolve(layer_gradient.activation)
        layer_gradient, factors = factorize_with_bias(layer_gradient, batch_size, noise_level)
        forward = ForwardPass.of(layer_gradient, factors)
        subspaces = DownstreamSubspaces.of(layer_gradient, factors.batch_size, activation, factors.signal_to_noise)
        column = KnownWeights.of(layer_gradient, factors, subspaces)
        return cls(layer_gradient, factors, activation, forward, subspaces, column)

    @cached_property
    def tail(self) -> TailGradient | None:
        """The constraint of the network tail, where it is known."""
        if self.activation.has_flat_part and self.has_tail:  # the gradient depends on the pattern alone
            return TailGradient.unseen(self.layer_gradient.tail.rest, self.factors)
        return self.tail_from_prior

    @property
    def has_tail(self) -> bool:
        """Whether the network tail is known, and is of a single step."""
        return self.layer_gradient.tail.rest is not None and not self.layer_gradient.is_update

    @cached_property
    def tail_from_prior(self) -> TailGradient | None:
        """The constraint of the network tail, scaled by prior draws, whatever the activation is."""
        if not self.has_tail:
            return None
        with one_thread():
            return TailGradient.of(self.layer_gradient.tail.rest, self.factors, self.forward)

    @cached_property
    def all_subspaces(self) -> DownstreamSubspaces | None:
        """All activation subspaces, where there are several: together they find samples that one hardly separates."""
        given, factors = self.layer_gradient, self.factors
        subspaces = DownstreamSubspaces.of(given, self.batch_size, self.activation, factors.signal_to_noise, whole=True)
        return None if subspaces is None or len(subspaces.levels) == 1 else subspaces

    @property
    def is_straight(self) -> bool:
        """Whether most units are active for most samples, though there is a zero-slope region."""
        return self.activation.is_straight_around_zero

    @property
    def is_beyond_half(self) -> bool:
        """Whether the batch is out of the first subspace's range, about half the width, with a zero-slope region."""
        return self.activation.has_flat_part and self.subspaces is not None and not self.subspaces.first.identifies

    @cached_property
    def backward(self) -> BackwardSubspaces | None:
        """The backward subspaces, where all downstream layers are known."""
        return BackwardSubspaces.of(self.layer_gradient, self.factors)

    @cached_property
    def sent_back(self) -> SentBackGradients | None:
        """What the next layer can send back, where it has few outputs and its weights are known."""
        return SentBackGradients.of(self.layer_gradient, self.factors, self.activation)

    @cached_property
    def is_noise_hidden(self) -> bool:
        """Whether the noise does not show in the gradient, so that expected errors are too small.

        A head's row for a label holds a single sample, which hides the rounding of a coarse number format: errors were
        17 times what was expected (float16). Of a sparsified gradient the entries left are exact, and the removed ones
        are no white noise: up to 7 times.
        """
        is_coarse_head = self.layer_gradient.tail.is_of_head and self.factors.is_coarse
        return is_coarse_head or is_sparsified(self.layer_gradient)

    @cached_property
    def is_stored(self) -> bool:
        """Whether the gradient is the difference of stored weights, one step apart.

        See `sparsedl_fl.layers.stored_weights`.
        """
        given = self.layer_gradient
        return not given.is_update and step_of_stored_weights(given.weight, given.weight_grad) is not None

    @cached_property
    def zeros_of_inputs(self) -> ZeroTest:
        """The zero test for entries of the inputs: ``G^T`` is the same problem as ``G``."""
        return self.factors.transposed.zero_test

    @property
    def subspace(self) -> ActivationSubspace | None:
        """The next layer's activation subspace, where it is usable."""
        return None if self.subspaces is None else self.subspaces.levels[0]

    @property
    def batch_size(self) -> int:
        """The number of samples, ``b``."""
        return self.factors.batch_size

    @property
    def width(self) -> int:
        """The number of outputs, ``m``."""
        return len(self.factors.left)

    @property
    def noise_share(self) -> float:
        """The contribution of noise alone to ``|G - D X^T| / |G|``."""
        n, signal = self.layer_gradient.shape[1], np.linalg.norm(self.factors.singular_values)
        noise = np.linalg.norm(self.factors.noise_level) * np.sqrt(n)
        return float(noise / np.hypot(signal, noise))

    def calibrated(self, directions: np.ndarray) -> LayerProblem:
        """Raise the noise level to that of the zeros of directions (see `LowRankGradient.calibrated`)."""
        factors = self.factors.calibrated(directions)
        return self if factors is self.factors else replace(self, factors=factors)

    def regressors(self) -> torch.Tensor:
        """Return ``F`` of shape (m, b), with ``F p = z - lower``: above zero where a unit is above its lower kink."""
        return as_tensor(self.forward.regressors(self.activation.lower))

    def at(self, whitened: np.ndarray) -> list[np.ndarray]:
        """Return ``Z`` of shape (m, b) at initial (and final) weights, for rows ``p`` at any scale."""
        return self.forward.preactivations(whitened)

    def beyond_noise(self, whitened: np.ndarray) -> np.ndarray:
        """Return how far rows ``p`` are from the activation subspaces, over their noise, at least one."""
        here = self._subspaces_at(whitened)
        return np.ones(len(whitened)) if here is None else here.beyond_noise.numpy()

    def over_noise(self, whitened: np.ndarray) -> np.ndarray:
        """Return how far rows ``p`` are from the activation subspaces, over their noise; zero where none is usable."""
        here = self._subspaces_at(whitened)
        return np.zeros(len(whitened)) if here is None else here.over_noise.numpy()

    def _subspaces_at(self, whitened: np.ndarray) -> SubspacesAt | None:
        if self.subspaces is None or not self.subspaces.identifies or self.layer_gradient.is_update:
            return None
        return self.subspaces.at(as_tensor(self.at(whitened)[0].T.copy()))

    def is_active(self, preactivations: list[np.ndarray]) -> np.ndarray:
        """Return where a unit is active at initial or final weights, for the pre-activations at each."""
        return np.any([~self.activation.is_off(as_tensor(z)).numpy() & ~np.isnan(z) for z in preactivations], axis=0)

    def depth(self, preactivations: list[np.ndarray]) -> np.ndarray:
        """Return how deep a unit stays inside a zero-slope region at all weights; zero where it is active at any."""
        return np.nan_to_num(np.min([self.activation.depth(as_tensor(z)).numpy() for z in preactivations], axis=0))

    def distance_to_kink(self, preactivations: list[np.ndarray]) -> np.ndarray:
        """Return by how much pre-activations would have to change for a unit to switch at initial or final weights."""
        return np.min([self.activation.distance_to_kink(as_tensor(z)).numpy() for z in preactivations], axis=0)

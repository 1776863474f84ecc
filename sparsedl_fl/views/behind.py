"""The spans behind: every hidden layer behind adds equations for the same unknowns.

With ``z' = W' phi(z) + bias'``, the activations ``phi'(z')`` of a true input lie in the row space of the gradient of
the layer behind that, and so on: ``m' - b`` equations each. With ``L`` spans as wide as the layer they leave the inputs
alone up to ``b = L m / (L + 1)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.activations import Activation, resolve
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.views._base import LEAST_DISTANCE, Linearization, View
from sparsedl_fl.views.span import ROUNDING_SHARE, ActivationSpan, lengths

__all__ = ["SpansAt", "SpansBehind"]

USUAL_SHARE = 0.3
"""What is not linear in activations, relative, from which on the largest tolerance holds: ReLU has 0.35 to 0.5,
GELU 0.07 to 0.5, tanh 0.01 to 0.2, sigmoid 0.001 to 0.03 (one CIFAR-10 batch of 50 behind two layers of 200)."""

BESIDE, FAR, EXACT = 2.0, 5.0, 1e-6
"""Times its noise from which on an input may be fitted better, and up to which it lies within a span (98 % of 1,159 of
hostile problems had less than 3), and what rounding of a forward pass explains (sigmoid: 78 times the noise)."""


@dataclass(frozen=True)
class SpansBehind(View):
    """One span after the other, with the known layers between them.

    Attributes
    ----------
    spans : tuple of ActivationSpan
        The next layer's first.
    layers : tuple of (weight, bias)
        ``W'`` and ``bias'`` between one span and the next, one fewer.
    weights : tuple of torch.Tensor
        What the squares of the residuals of each span are multiplied with, of shape ().
    factors : tuple of torch.Tensor
        The same for each of ``n`` inputs, of shape (n, 1); none where all have the same weights.
    unknowns : int or None, default=None
        Numbers that a candidate is made of; None takes as many as there are inputs.
    """

    spans: tuple[ActivationSpan, ...]
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()
    weights: tuple[torch.Tensor, ...] = ()
    factors: tuple[torch.Tensor, ...] = ()
    unknowns: int | None = None

    def __post_init__(self) -> None:
        if not self.weights:
            object.__setattr__(self, "weights", (torch.ones((), dtype=self.spans[0].basis.dtype),) * len(self.spans))

    @classmethod
    def of(
        cls, given: LayerGradient, batch_size: int, activation: Activation, gap: float = 1.0, *, whole: bool = False
    ) -> SpansBehind | None:
        """Return all spans that the gradients behind have, or None where the next one has none.

        Where zeros and the first span identify the inputs, the others cost more than they bring, unless all are asked
        for. A FedAvg client's weights behind move, and the spans behind the next one need them.
        """
        in_front = given.weight, given.bias
        first = ActivationSpan.of(given.next_weight_grad, batch_size, activation, in_front, gap)
        if first is None:
            return None
        spans, layers = [first], []
        suffices = given.is_update or (activation.has_flat_part and first.identifies and not whole)
        for layer in () if suffices else given.behind:
            follows = None if layer.activation is None else resolve(layer.activation)
            if follows is None:
                break
            span = ActivationSpan.of(layer.next_weight_grad, batch_size, follows, (layer.weight, layer.bias), gap)
            if span is None:
                break
            spans.append(span)
            layers.append((as_tensor(layer.weight.astype(float)), as_tensor(layer.bias)))
        return cls(tuple(spans), tuple(layers))

    @property
    def first(self) -> SpansBehind:
        """The next layer's span alone."""
        return self.up_to(1)

    def up_to(self, n_spans: int) -> SpansBehind:
        """Return the first spans."""
        return replace(
            self,
            spans=self.spans[:n_spans],
            layers=self.layers[: n_spans - 1],
            weights=self.weights[:n_spans],
            factors=self.factors[:n_spans],
        )

    @property
    def n_equations(self) -> int:
        """The sum of ``m - b`` over the spans, without units that are copies."""
        return sum(max(0, span.n_equations) for span in self.spans)

    @property
    def n_unknowns(self) -> int:
        """``b``, or fewer."""
        return self.spans[0].basis.shape[1] if self.unknowns is None else self.unknowns

    def scaled_to(self, preactivations: torch.Tensor) -> SpansBehind:
        """Return the same with residuals relative to the activations at typical pre-activations."""
        levels = replace(self, weights=()).at(preactivations).activations
        return replace(self, weights=tuple(1 / y.square().sum(dim=1).mean() for y in levels))

    def by_noise(self, preactivations: torch.Tensor) -> SpansBehind:
        """Return the same with residuals in units of what they are at inputs."""
        here = replace(self, weights=()).at(preactivations)
        return replace(self, weights=tuple(1 / part.square().sum(dim=1).mean() for part in here.outside))

    def by_rounding(self, preactivations: torch.Tensor) -> SpansBehind:
        """Return the same with residuals in units of the rounding that the spans themselves show."""
        levels = zip(self.spans, self.at(preactivations).activations, strict=True)
        expected = [(lengths(y) * span.rounding_of(y) / ROUNDING_SHARE).square().mean() for span, y in levels]
        return replace(self, weights=tuple(1 / square for square in expected))

    def weighted(self, n: int, spread: float, generator: torch.Generator) -> SpansBehind:
        """Return the same with weights of the spans that differ from input to input."""
        factors = [torch.exp(spread * torch.randn((n, 1), generator=generator)) for _ in self.weights]
        return replace(self, factors=tuple(factor.to(self.weights[0].dtype) for factor in factors))

    def unweighted(self) -> SpansBehind:
        """Return the same with the weights that all have."""
        return replace(self, factors=())

    def of_some(self, index: torch.Tensor) -> SpansBehind:
        """Return the same for some of the inputs."""
        return replace(self, factors=tuple(factor[index] for factor in self.factors))

    def to(self, dtype: torch.dtype) -> SpansBehind:
        """Return the same in another precision."""
        spans = tuple(span.to(dtype) for span in self.spans)
        layers = tuple((W.to(dtype), bias.to(dtype)) for W, bias in self.layers)
        weights, factors = (tuple(part.to(dtype) for part in parts) for parts in (self.weights, self.factors))
        return replace(self, spans=spans, layers=layers, weights=weights, factors=factors)

    def at(self, preactivations: torch.Tensor) -> SpansAt:
        """Return the spans at pre-activations of shape (n, m)."""
        preactivations_of, activations, slopes, z = [], [], [], preactivations
        for level, span in enumerate(self.spans):
            if level:
                W, bias = self.layers[level - 1]
                z = activations[-1] @ W.T + bias
            activations.append(span.activation.value(z))
            slopes.append(span.activation.derivative(z))
            preactivations_of.append(z)
        return SpansAt(self, preactivations_of, activations, slopes)


@dataclass(frozen=True)
class SpansAt(Linearization):
    """The spans at some pre-activations.

    Attributes
    ----------
    view : SpansBehind
        The spans.
    preactivations, activations, slopes : sequence of torch.Tensor of shape (n, m)
        ``z``, ``phi(z)`` and ``phi'(z)`` at each span.
    """

    view: SpansBehind
    preactivations: Sequence[torch.Tensor]
    activations: Sequence[torch.Tensor]
    slopes: Sequence[torch.Tensor]

    @cached_property
    def _weights(self) -> list[torch.Tensor]:
        view = self.view
        pairs = zip(view.weights, view.factors or (1.0,) * len(view.weights), strict=True)
        return [weight * factor for weight, factor in pairs]

    @cached_property
    def outside(self) -> list[torch.Tensor]:
        """The parts of the activations outside of each span."""
        return [span.outside(y) for span, y in zip(self.view.spans, self.activations, strict=True)]

    @property
    def cost(self) -> torch.Tensor:
        """Return the squares of the parts of the activations outside of the spans, weighted."""
        parts = zip(self._weights, self.activations, self.outside, strict=True)
        return sum(weight.squeeze(-1) * (y * outside).sum(dim=1) for weight, y, outside in parts)

    @property
    def gradient(self) -> torch.Tensor:
        """Return the gradient of half of them."""
        return self._pull(self.outside)

    def curve(self, changes: torch.Tensor) -> torch.Tensor:
        """Return the gradient of half the square of what leaves the spans."""
        moved, outside = changes, []
        for level, slopes in enumerate(self.slopes):
            if level:
                moved = moved @ self.view.layers[level - 1][0].T
            moved = slopes * moved
            outside.append(self.view.spans[level].outside(moved))
        return self._pull(outside)

    def _pull(self, outside: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the sum of what each part says of the pre-activations."""
        pulled: torch.Tensor | float = 0.0
        for level in reversed(range(len(outside))):
            pulled = self.slopes[level] * (self._weights[level] * outside[level] + pulled)
            if level:
                pulled = pulled @ self.view.layers[level - 1][0]
        return pulled

    @cached_property
    def _distances(self) -> list[torch.Tensor]:
        parts = zip(self.outside, self.activations, strict=True)
        return [torch.linalg.vector_norm(outside, dim=1) / lengths(y) for outside, y in parts]

    @property
    def distances(self) -> torch.Tensor:
        """Return the largest relative distance from any of the spans."""
        return torch.stack(self._distances).amax(dim=0)

    @cached_property
    def _limits(self) -> list[torch.Tensor]:
        """How near to each span no wrong end comes: these fulfil whatever is linear, and no more than that."""
        limits = []
        for span, z, y in zip(self.view.spans, self.preactivations, self.activations, strict=True):
            limits.append(span.largest_tolerance * (_nonlinear_share(z, y) / USUAL_SHARE).clamp(max=1))
        return limits

    @property
    def is_inside(self) -> torch.Tensor:
        """Return which are no further from each span than rounding explains."""
        inside = []
        parts = zip(self.view.spans, self.activations, self._limits, self._distances, strict=True)
        for span, y, limit, distance in parts:
            allowed = torch.maximum(span.rounding_of(y), limit.clamp(max=span.allowance))
            # Where noise alone reaches further than wrong ends, the span says nothing of it: others have to.
            allowed = torch.where(span.noise_of(y) > limit, torch.maximum(allowed, span.noise_of(y)), allowed)
            inside.append(distance <= allowed)
        return torch.stack(inside).all(dim=0)

    @property
    def over_noise(self) -> torch.Tensor:
        """Return how far each is from any span, over what the noise of the span moves its activations, at most."""
        parts = zip(self.view.spans, self.activations, self._distances, strict=True)
        ratios = [distance / span.noise_of(y).clamp(min=LEAST_DISTANCE) for span, y, distance in parts]
        return torch.stack(ratios).amax(dim=0)

    @property
    def beyond_noise(self) -> torch.Tensor:
        """Return by how many times each is further from a span than its noise takes it, one where it is not.

        The rest is no noise: a layer scaled a little, or an end beside an input, off by as much more.
        """
        parts = zip(self.view.spans, self.activations, self._distances, strict=True)
        ratios = [distance / span.noise_of(y).clamp(min=EXACT) for span, y, distance in parts]
        return torch.stack(ratios).amax(dim=0).nan_to_num(nan=1.0).clamp(min=1.0)

    @property
    def log_chances(self) -> torch.Tensor:
        """Return the logarithms of the distances, once for each equation of a span that is nearer than wrong ends."""
        parts = []
        for span, limit, distance in zip(self.view.spans, self._limits, self._distances, strict=True):
            told = torch.where(distance <= limit, torch.log10(distance.clamp(min=LEAST_DISTANCE)), 0.0)
            parts.append(told[:, None].expand(-1, max(0, span.n_equations)))
        return torch.cat(parts, dim=1)

    @cached_property
    def own_log_chances(self) -> torch.Tensor:
        """Return those of the equations that are left where some units are off."""
        parts = []
        for span, limit, y, distance in zip(
            self.view.spans, self._limits, self.activations, self._distances, strict=True
        ):
            strengths = span.strengths_of(y).clamp(min=LEAST_DISTANCE)
            chances = (distance.clamp(min=LEAST_DISTANCE)[:, None] / strengths).clamp(max=1.0)
            parts.append(torch.where((distance <= limit)[:, None], torch.log10(chances), 0.0))
        return torch.cat(parts, dim=1)

    @property
    def least_log_chances(self) -> torch.Tensor:
        """Return those of inputs at the least distance."""
        n = len(self.activations[0])
        return torch.full((n, self.view.n_equations), math.log10(LEAST_DISTANCE), dtype=self.activations[0].dtype)


def _nonlinear_share(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return how much of the activations of each input is no affine function of its pre-activations, relative."""
    z, centred = z - z.mean(dim=1, keepdim=True), y - y.mean(dim=1, keepdim=True)
    smallest = torch.finfo(y.dtype).tiny
    slope = (z * centred).sum(dim=1, keepdim=True) / z.square().sum(dim=1, keepdim=True).clamp(min=smallest)
    return torch.linalg.vector_norm(centred - slope * z, dim=1) / lengths(y)

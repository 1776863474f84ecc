"""Reflections in both directions at once: activations in the spans of all layers, and gradients in theirs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from sparsedl_fl.constraints import BackwardChain, SpansBehind
from sparsedl_fl.search.columns_and_forward_pass import WORKING, ScaledForward, TwoViews
from sparsedl_fl.search.linear_links import Link

__all__ = ["PairedReflection"]


@dataclass(eq=False, repr=False, kw_only=True)
class PairedReflection(BaseEstimator):
    """Douglas and Rachford's reflections on the way forward and the way back, for a label drawn for each start.

    A unit that is on has ``y = z`` and ``d = e``, one that is off ``y = 0`` and ``d = 0``: so each unit says the same
    twice. Beyond half of the width, where spans alone leave few equations to spare, these are as many again, and labels
    lead the starts to different inputs.

    Measured on one batch each of CIFAR-10 behind three layers of 200 ReLU units, 64 starts of 1000 reflections, two
    seconds on one core: of 105 inputs 84 % of starts come within a cosine of 0.99 of one, of 20 different ones (without
    gradients 88 %, all of the same one); of 120 inputs 39 %, of 10.

    Parameters
    ----------
    n_starts : int, default=64
        Starts of a round.
    n_reflections : int, default=1000
        Reflections of each.
    first_ridges, last_ridge : (float, float) and float, default=(1e-3, 0.1) and 1e-5
        Range of the first ridge of a start, over the mean square of the pre-activations, and what it shrinks to.
    activation_weights : (float, float), default=(0.5, 16)
        Range of the weight of activations over that of pre-activations.
    gradient_weight : float, default=0.3
        That of gradients, in units of their mean square. (Of 120 inputs as above, with the loss at the mean output:
        22, 27, 16 and 5 % for 0.1, 0.3, 1 and 3.)
    step : float, default=0.5
        How much of the way to the next pairs a reflection goes; Douglas and Rachford's is 1. (One batch of each, with
        none, 60 and 90 inputs known, 128 starts: of 105 inputs 98, 80 and 65 % come within a cosine of 0.9 of one, with
        whole steps 87, 59 and 45 %; of 120 inputs 74, 69 and 90 %, with whole ones 66, 55 and 80 %.)
    same_lead : float, default=0.995
        Cosine of two ends from which on one stands for both.
    """

    n_starts: int = 64
    n_reflections: int = 1000
    first_ridges: tuple[float, float] = (1e-3, 0.1)
    last_ridge: float = 1e-5
    activation_weights: tuple[float, float] = (0.5, 16.0)
    gradient_weight: float = 0.3
    step: float = 0.5
    same_lead: float = 0.995

    def inputs(
        self,
        views: TwoViews,
        spans: SpansBehind,
        back: BackwardChain,
        labels: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Return where starts end, without those that end alike or nowhere, as ``p`` at their true scale: (n, b).

        Parameters
        ----------
        views : TwoViews
            The forward view with its scale, deflated by what is known.
        spans : SpansBehind
            Where activations lie, at every layer but the last hidden one.
        back : BackwardChain
            Where gradients lie.
        labels : torch.Tensor of shape (n_starts,) of int
            One for each start.
        generator : torch.Generator
            Source of randomness.
        """
        forward = ScaledForward.of(views)
        if len(forward.sizes) == 0:
            return forward.origin[None]
        working, near = forward.to(WORKING), spans.to(WORKING)
        ends = self.ends(working, near, back.to(WORKING), labels, generator)
        return forward.inputs(working.distinct(ends, near, self.same_lead).double())

    def ends(
        self,
        forward: ScaledForward,
        spans: SpansBehind,
        back: BackwardChain,
        labels: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Return where starts end, as rows ``c`` of shape (n_starts, d), in the precision of the forward view."""

        def draw(limits: tuple[float, float]) -> torch.Tensor:
            uniform = torch.rand((len(labels), 1), generator=generator, dtype=forward.sizes.dtype)
            return limits[0] * (limits[1] / limits[0]) ** uniform

        power = forward.sizes.square() / forward.sizes.square().mean()
        ridge, weight = draw(self.first_ridges), draw(self.activation_weights)
        shrinkage = (self.last_ridge / ridge) ** (1 / self.n_reflections)
        starts = forward.preactivations(forward.draw(len(labels), generator))
        pairs = _Pairs(spans, back, starts, labels, weight, self.gradient_weight, self.step)
        for _ in range(self.n_reflections):
            pairs.reflect(forward, power / (power + ridge))
            ridge = ridge * shrinkage
        return forward.coordinates(pairs.z[0])


class _Pairs:
    """Pairs ``(z, y)`` and ``(d, e)`` of all units of all layers, for some starts.

    Parameters
    ----------
    spans : SpansBehind
        Where activations lie, of each layer but the last, or of that too.
    back : BackwardChain
        Where gradients lie.
    starts : torch.Tensor of shape (n, m)
        The first ``z``.
    labels, weight : torch.Tensor of shape (n,) and (n, 1)
        Of each start: its label, and the weight of its activations.
    gradient_weight : float
        That of gradients.
    step : float
        How much of the way to the next pairs each reflection goes.
    """

    def __init__(
        self,
        spans: SpansBehind,
        back: BackwardChain,
        starts: torch.Tensor,
        labels: torch.Tensor,
        weight: torch.Tensor,
        gradient_weight: float,
        step: float,
    ) -> None:
        self.back, self.labels, self.weight, self.step = back, labels, weight, step
        self.z, self.d, self.e = back.at(starts, labels)
        self.y = [span.activation.value(z) for span, z in zip(spans.spans, self.z, strict=False)]
        spread = [float((z - z.mean(dim=0)).square().mean()) for z in self.z]
        forward = [spread[0] / square for square in spread]
        backward = [gradient_weight * spread[0] / float(d.square().mean()) for d in self.d]
        self.share = [of_d / of_z for of_d, of_z in zip(backward, forward, strict=True)]
        self.links = [Link.of(span.basis) for span in spans.spans]
        self.back_links = [Link.of(basis) for basis in back.bases]
        for level, (W, bias) in enumerate(back.layers):
            powers = (forward[level], forward[level + 1]), (backward[level + 1], backward[level])
            self.links[level] = Link.of(spans.spans[level].basis, W, bias, powers[0])
            self.back_links[level + 1] = Link.of(back.bases[level + 1], W.T, power=powers[1])

    def reflect(self, forward: ScaledForward, shrinkage: torch.Tensor) -> None:
        """Reflect once; what lies far along each axis of the forward view shrinks."""
        last = len(self.z) - 1
        self.e[last] = self.back.last(self.z[last], self.labels)
        near = [self._nearest(level) for level in range(len(self.z))]
        z, d, e = (
            [2 * at[part] - value for at, value in zip(near, values, strict=True)]
            for part, values in ((0, self.z), (1, self.d), (2, self.e))
        )
        fitted = forward.preactivations(forward.coordinates(z[0]) * shrinkage)
        self.z[0] = self.z[0] + self.step * (fitted - near[0][0])
        for level, link in enumerate(self.links):
            behind = z[level + 1] if level < last else None
            activations, fitted = link.nearest(2 * near[level][3] - self.y[level], behind, self.weight)
            self.y[level] = self.y[level] + self.step * (activations - near[level][3])
            if behind is not None:
                self.z[level + 1] = self.z[level + 1] + self.step * (fitted - near[level + 1][0])
        for level, link in enumerate(self.back_links):
            gradients, sent_back = link.nearest(d[level], e[level - 1] if level else None)
            self.d[level] = self.d[level] + self.step * (gradients - near[level][1])
            if level:
                self.e[level - 1] = self.e[level - 1] + self.step * (sent_back - near[level - 1][2])

    def _nearest(self, level: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the nearest ``z``, ``d``, ``e`` and ``y`` of units that are on or off; the last ``e`` is given."""
        z, d, e, share = self.z[level], self.d[level], self.e[level], self.share[level]
        has_span, is_given = level < len(self.y), level == len(self.z) - 1
        y, weight = (self.y[level], self.weight) if has_span else (z, 0.0)
        on, off = self.back.activations[level].nearest_where_on_and_off(z, y, weight)
        if_on, if_off = ((z - at[0]).square() + weight * (y - at[1]).square() for at in (on, off))
        gradient = e if is_given else (d + e) / 2
        if_on = if_on + share * ((d - gradient).square() + (e - gradient).square())
        if_off = if_off + share * d.square()
        is_on = if_on <= if_off
        return (
            torch.where(is_on, on[0], off[0]),
            torch.where(is_on, gradient, torch.zeros_like(d)),
            torch.where(is_on, gradient, e),
            torch.where(is_on, on[1], off[1]),
        )

"""Many starts of the span at once, at the true scale of every input: what brings a descent near inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from sparsedl_fl.directions.activation.two_views import WORKING, ScaledForward, TwoViews, leaders
from sparsedl_fl.views import ActivationSpan

__all__ = ["ScaledReflection"]


@dataclass(eq=False, repr=False, kw_only=True)
class ScaledReflection(BaseEstimator):
    """Douglas and Rachford's reflections at the true scale of the inputs, from which a `Descent` goes on.

    Inputs with much in common, pixels that are not centred, features behind a ReLU, switch nearly the same units, and
    zeros say little. But a unit that is on for all of them is an exact equation of the span, and the mean of the batch
    is known: every ``p`` has ``h^T p = 1``. And of activations that are nearly linear few inputs attract all descents;
    reflections find the others.

    The numbers were chosen on single batches: CIFAR-10 in [0, 1] behind 200 and 1000 ReLU units, at the start and after
    500 steps of training, and CIFAR-10, centred, 80 inputs behind 200 units with tanh.

    Parameters
    ----------
    common : float, default=0.3
        Square of the pre-activations of the common part, over that of all the others together, from which on inputs
        have much in common. Centred pixels have 0.02 to 0.2, pixels in [0, 1] and features 0.5 to 7.
    fewest, more, most : int, default=60, 6000 and 4000
        Reflections for the smallest batch, how many more for a crowding of one (see `Projection`), and at most.
    first_ridges, last_ridge : (float, float) and float, default=(1e-4, 1e-2) and 1e-7
        Range of the first ridge of a start, over the mean square of the pre-activations, and what it shrinks to.
    span_weights : (float, float), default=(4, 16)
        Range of the weight of the distance of the activations over that of the pre-activations.
    same_lead : float, default=0.995
        Cosine of two ends from which on one stands for both.
    ample : float, default=3
        Equations of the first span for each unknown from which on a descent from the ends does without the others.

    References
    ----------
    Douglas and Rachford, Trans. AMS 1956.
    """

    common: float = 0.3
    fewest: int = 60
    more: int = 6000
    most: int = 4000
    first_ridges: tuple[float, float] = (1e-4, 1e-2)
    last_ridge: float = 1e-7
    span_weights: tuple[float, float] = (4.0, 16.0)
    same_lead: float = 0.995
    ample: float = 3.0

    @classmethod
    def for_smooth(cls) -> ScaledReflection:
        """Return one with the numbers for activations without straight pieces."""
        return cls(more=800, first_ridges=(0.1, 3.0), last_ridge=3e-3, span_weights=(0.5, 4.0))

    def applies(self, views: TwoViews) -> bool:
        """Return whether the inputs have so much in common that zeros say little."""
        forward = ScaledForward.of(views, share=0.0)
        return bool(forward.offset.square().sum() > self.common * forward.sizes.square().sum())

    def is_ample(self, span: ActivationSpan) -> bool:
        """Return whether the first span says enough for a descent from the ends."""
        m, b = span.basis.shape
        return m - b >= self.ample * b

    def inputs(self, views: TwoViews, span: ActivationSpan, n_starts: int, generator: torch.Generator) -> torch.Tensor:
        """Return where starts end, without those that end alike or nowhere, as ``p`` at their true scale: (n, b).

        Parameters
        ----------
        views : TwoViews
            The forward view with its scale, deflated by what is known.
        span : ActivationSpan
            Where activations lie.
        n_starts : int
            Number of starts.
        generator : torch.Generator
            Source of randomness.
        """
        forward = ScaledForward.of(views)
        if len(forward.sizes) == 0:
            return forward.origin[None]
        ends = self.ends(forward.to(WORKING), span.to(WORKING), n_starts, generator)
        ends = ends[ends.isfinite().all(dim=1)]  # some run away where there are hardly more outputs than inputs
        return forward.inputs(ends[leaders(ends, self.same_lead).unique()].double())

    def ends(
        self, forward: ScaledForward, span: ActivationSpan, n_starts: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Return where starts end, as rows ``c`` of shape (n_starts, d), in the precision of the forward view.

        Reflections between pairs ``(z, y)`` of a ``z`` of the forward view with a ``y`` of the span, and pairs with
        ``y = phi(z)``. The ridge, which shrinks, prefers ends that are no further from the common part than the others.

        Parameters
        ----------
        forward : ScaledForward
            The forward view with its scale, deflated by what is known.
        span : ActivationSpan
            Where activations lie.
        n_starts : int
            Number of starts.
        generator : torch.Generator
            Source of randomness.
        """
        (m, b), d, phi, basis = span.basis.shape, len(forward.sizes), span.activation, span.basis
        n_reflections = min(self.most, round(self.fewest + self.more * b * d / (m - b) ** 2))

        def draw(limits: tuple[float, float]) -> torch.Tensor:
            share = torch.rand((n_starts, 1), generator=generator, dtype=basis.dtype)
            return limits[0] * (limits[1] / limits[0]) ** share

        power = forward.sizes.square() / forward.sizes.square().mean()
        ridge, weight = draw(self.first_ridges), draw(self.span_weights)
        shrinkage = (self.last_ridge / ridge) ** (1 / n_reflections)
        z = forward.preactivations(forward.draw(n_starts, generator))
        y = phi.value(z)
        for _ in range(n_reflections):
            nearest_z, nearest_y = phi.near_on_graph(z, y, weight)
            coordinates = forward.coordinates(2 * nearest_z - z) * (power / (power + ridge))
            z = z + forward.preactivations(coordinates) - nearest_z
            y = y + ((2 * nearest_y - y) @ basis) @ basis.T - nearest_y
            ridge = ridge * shrinkage
        return forward.coordinates(z)

"""Many starts of the span at once, at the true scale of every input: for data that share a large common part."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from sklearn.base import BaseEstimator

from sparsedl.arrays import chunks
from sparsedl_fl.directions.activation.two_views import WORKING, ScaledForward, TwoViews, leaders
from sparsedl_fl.views import ActivationSpan

__all__ = ["ScaledProjection"]


@dataclass(eq=False, repr=False, kw_only=True)
class ScaledProjection(BaseEstimator):
    """The stage for inputs with much in common: pixels that are not centred, features behind a ReLU, trained networks.

    Such inputs switch nearly the same units, and zeros say little. But a unit that is on for all of them is an exact
    equation of the span, and the mean of the batch is known: every ``p`` has ``h^T p = 1``, which leaves a common part
    ``p0 = h / |h|^2`` and what is orthogonal to it, about as large in each direction. Reflections start there, and the
    method of Levenberg and Marquardt on ``(I - V V^T) phi(z0 + O c)`` takes over.

    The numbers were chosen on single batches: CIFAR-10 in [0, 1], of 20 to 150 inputs behind 200 and 1000 units, at the
    start and after 500 steps of training.

    Parameters
    ----------
    common : float, default=0.3
        Square of the pre-activations of the common part, over that of all the others together, from which on this stage
        is used. Centred pixels have 0.02 to 0.2, pixels in [0, 1] and features 0.5 to 7.
    fewest, more, most : int, default=60, 6000 and 4000
        Reflections for the smallest batch, how many more for a crowding of one (see `Projection`), and at most.
    first_ridges, last_ridge : (float, float) and float, default=(1e-4, 1e-2) and 1e-7
        Range of the first ridge of a start, over the mean square of the pre-activations, and what it shrinks to.
    span_weights : (float, float), default=(4, 16)
        Range of the weight of the distance of the activations over that of the pre-activations.
    same_end : float, default=0.995
        Cosine of what two ends have beyond the common part from which on one of them goes on for both.
    n_descent, n_polishing : int, default=20 and 12
        Steps of Levenberg and Marquardt at most in single and in double precision.
    damping : (float, float, float), default=(1e-2, 0.2, 4)
        The first, over the largest eigenvalue possible, and its factors after a step that helped and one that did not.
    near, worth_polishing, polished : float, default=1e-3, 0.02 and 1e-6
        Distance from the span, relative, at which an end is near enough in single precision, up to which it goes on in
        double precision, and at which it is near enough there.
    precision, least_share : float, default=1e-3 and 1e-9
        An end is the only one where its distance from the span moves it by no more than that, relative to what it has
        beyond the common part, along the direction that leaves the span least; of a change of the activations in that
        direction the square of this share has to, at least.

    References
    ----------
    Douglas and Rachford, Trans. AMS 1956; Levenberg, Quart. Appl. Math. 1944; Marquardt, SIAM J. Appl. Math. 1963.
    """

    common: float = 0.3
    fewest: int = 60
    more: int = 6000
    most: int = 4000
    first_ridges: tuple[float, float] = (1e-4, 1e-2)
    last_ridge: float = 1e-7
    span_weights: tuple[float, float] = (4.0, 16.0)
    same_end: float = 0.995
    n_descent: int = 20
    n_polishing: int = 12
    damping: tuple[float, float, float] = (1e-2, 0.2, 4.0)
    near: float = 1e-3
    worth_polishing: float = 0.02
    polished: float = 1e-6
    precision: float = 1e-3
    least_share: float = 1e-9

    def applies(self, views: TwoViews) -> bool:
        """Return whether the inputs have enough in common."""
        forward = ScaledForward.of(views)
        spread = forward.origin.square().sum() * forward.sizes.square().sum()
        return bool(forward.offset.square().sum() > self.common * spread)

    def run(
        self, views: TwoViews, span: ActivationSpan, n_starts: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run random starts and return the inputs among their ends.

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

        Returns
        -------
        inputs : torch.Tensor of shape (n_found, b)
            Unit rows ``p``.
        is_determined : torch.Tensor of shape (n_found,) of bool
            Whether no other ``p`` nearby has activations in the span.
        """
        forward = ScaledForward.of(views)
        if len(forward.sizes) == 0:
            return forward.inputs(torch.zeros((1, 0), dtype=forward.offset.dtype)), torch.ones(1, dtype=torch.bool)
        single, rough = forward.to(WORKING), replace(span, basis=span.basis.to(WORKING))
        ends = self.reflections(single, rough, n_starts, generator)
        ends = ends[leaders(ends, self.same_end).unique()]
        ends = self._descend(single, rough, ends, self.n_descent, self.near).to(forward.offset.dtype)
        ends = ends[span.distances(forward.preactivations(ends)) < self.worth_polishing]
        ends = self._descend(forward, span, ends, self.n_polishing, self.polished)
        activations = span.activation.value(forward.preactivations(ends))
        is_inside = span.distances_of(activations) <= span.tolerances_of(activations)
        ends, activations = ends[is_inside], activations[is_inside]
        slopes = span.activation.derivative(forward.preactivations(ends))
        least = [torch.linalg.eigvalsh(_system(forward, span, slope[None])[0])[0] for slope in slopes]
        least = torch.stack([ends.new_zeros(()), *least])[1:].clamp(min=0)
        moved = torch.linalg.vector_norm(span.outside(activations), dim=1)
        reach = self.precision * least.sqrt() * torch.linalg.vector_norm(ends, dim=1)
        return forward.inputs(ends), (least > self.least_share) & (moved < reach)

    def reflections(
        self, forward: ScaledForward, span: ActivationSpan, n_starts: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Return where starts end, as rows ``c`` of shape (n_starts, d), in the precision of the forward view.

        Reflections between pairs ``(z, y)`` of a ``z`` of the forward view with a ``y`` of the span, and pairs with
        ``y = phi(z)``. The ridge, which shrinks, prefers ends that are no further from the common part than the others.
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
            nearest_z, nearest_y = phi.nearest_on_graph(z, y, weight)
            coordinates = forward.coordinates(2 * nearest_z - z) * (power / (power + ridge))
            z = z + forward.preactivations(coordinates) - nearest_z
            y = y + ((2 * nearest_y - y) @ basis) @ basis.T - nearest_y
            ridge = ridge * shrinkage
        return forward.coordinates(z)

    def _descend(
        self, forward: ScaledForward, span: ActivationSpan, ends: torch.Tensor, n_iterations: int, goal: float
    ) -> torch.Tensor:
        """Minimise ``|(I - V V^T) phi(z0 + O c)|`` over ``c``, from each end, by the method of Levenberg-Marquardt."""
        parts = list(chunks(len(ends), forward.orthonormal.numel()))
        if len(parts) > 1:
            return torch.cat([self._descend(forward, span, ends[part], n_iterations, goal) for part in parts])
        first, easier, harder = self.damping
        ends, running = ends.clone(), torch.arange(len(ends))
        distances = span.distances(forward.preactivations(ends))
        damping = torch.full_like(distances, first)
        for _ in range(n_iterations):
            running = running[distances[running] > goal]
            if len(running) == 0:
                break
            now = ends[running]
            z = forward.preactivations(now)
            activations, slopes = span.activation.value(z), span.activation.derivative(z)
            system = _system(forward, span, slopes)
            system.diagonal(dim1=1, dim2=2).add_(damping[running, None])
            gradient = (span.outside(activations) * slopes) @ forward.orthonormal
            step, info = torch.linalg.solve_ex(system, gradient[..., None])
            moved = now - step[..., 0].nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            after = span.distances(forward.preactivations(moved))
            helps = (after < distances[running]) & (info == 0)
            ends[running] = torch.where(helps[:, None], moved, now)
            distances[running] = torch.where(helps, after, distances[running])
            damping[running] = damping[running] * torch.where(helps, easier, harder)
        return ends


def _system(forward: ScaledForward, span: ActivationSpan, slopes: torch.Tensor) -> torch.Tensor:
    """Return ``J^T J`` of the distance from the span for each row of slopes, shape (n, d, d)."""
    moved = forward.orthonormal.T * slopes[:, None, :]
    inside = moved @ span.basis
    return torch.baddbmm(moved @ moved.mT, inside, inside.mT, alpha=-1)

"""Pictures from their features: Gauss-Newton on a network that sharpens, all pictures at once.

Each picture is a problem of its own, with its own damping and its own sharpness. Steps are solved by conjugate
gradients on ``J^T J``, with two passes through the network a product, in single precision; costs and gradients are in
double precision, so that what single precision leaves of a step is taken by the next one. A network without kinks is
not smoothed; its steps follow narrow valleys by their second-order part.

References
----------
Levenberg, Q. Appl. Math. 1944; Nocedal and Wright, *Numerical Optimization*, 2006, Sec. 10.3. The second-order part:
Transtrum, Machta and Sethna, "Geometry of nonlinear least squares with applications to sloppy models and optimization",
Phys. Rev. E 2011.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sparsedl_fl.propagate.pictures.determinacy import MOST_DENSE
from sparsedl_fl.propagate.pictures.draws import signs_like, unit_normal
from sparsedl_fl.propagate.pictures.front import Front
from sparsedl_fl.propagate.pictures.linearized import Linearized
from sparsedl_fl.propagate.pictures.sharpening import Sharpened
from sparsedl_fl.solvers import conjugate_gradient

Inverse = Callable[[torch.Tensor], tuple[torch.Tensor, bool]]

__all__ = ["MOST_BENT", "Fit", "Schedule", "curvature_along", "fit_to_features", "typical_spreads"]

EASIER, HARDER = 0.2, 5.0
"""Factors of the damping after a step that did about what the linear model says, and after one that did not."""

GOOD, POOR = 0.75, 0.25
"""Decrease of the cost, over that of the linear model, above which damping is eased and below which it grows, where the
network has no kinks; else any decrease eases it. (With kinks, 16 gray pictures of CIFAR-10 took 46 steps each by the
model's decrease and 36 by any; behind GELU and GroupNorm, pictures of CIFAR-10 went to infinity by any.)"""

MOST_BENT, DIFFERENCE = 0.75, 0.1
"""Size of the second-order part of a step, over the first-order part, up to which it is taken, and the share of a step
over which curvature is measured: as Transtrum and Sethna have them."""

LINEAR, MOST_PRODUCTS = 0.95, 1000
"""Share of the linear model's decrease from which on a network is as good as linear and what is left is one system,
which is better solved with the Jacobian formed, and products of conjugate gradients a step at most: not varied, behind
three convolutions with GroupNorm and GELU (`finishing`)."""

SLOW, MOST_SLOW, MOST_REJECTED = 0.02, 3, 4
"""Share of the cost below which a decrease is slow, and the numbers of slow and of rejected steps in a row after which
the true network is done with a picture."""

AT_ONCE = 32
"""Pictures that are worked on at once: behind McMahan's CNN 100 MB of activations; more are no faster on a core."""


@dataclass(frozen=True)
class Schedule:
    """How the network sharpens and when a picture goes on to the next stage.

    The defaults brought back 32 of 32 pictures of MNIST, from their mean and from gray, and 15 and 16 of 16 gray ones
    of CIFAR-10, behind McMahan's CNN as torch initialises it, in 28 to 35 steps and 370 to 610 products a picture. From
    a sharpness of 4, and of 8 in seven stages, 30 and 27 of the 32 came back.

    Parameters
    ----------
    first, last : float, default=2 and 200
        Sharpness of the first and of the last smoothed stage; the true network follows.
    n_stages : int, default=10
        Smoothed stages, a constant ratio apart.
    max_steps : int, default=4
        Steps at a smoothed stage at most.
    enough : float, default=0.5
        Share of the cost above which a step leaves so much of it that the next stage follows.
    last_steps, smooth_steps : int, default=40 and 80
        Steps of the true network at most, where it was smoothed before and where it has no kinks (36 were taken for a
        picture of CIFAR-10 behind three convolutions with GroupNorm and GELU).
    damping, least_damping : float, default=0.1 and 1e-4
        The first damping, and the least one at a smoothed stage, over the mean of the diagonal of ``J^T J``.
    n_products : int, default=60
        Products of conjugate gradients a step at most.
    accuracy : float, default=1e-3
        Squared residual of a step, over that of none, at which conjugate gradients stop.
    """

    first: float = 2.0
    last: float = 200.0
    n_stages: int = 10
    max_steps: int = 4
    enough: float = 0.5
    last_steps: int = 40
    smooth_steps: int = 80
    damping: float = 0.1
    least_damping: float = 1e-4
    n_products: int = 60
    accuracy: float = 1e-3

    def stages(self) -> torch.Tensor:
        """Return the sharpness of each stage, infinite for the true network."""
        powers = torch.linspace(0, 1, self.n_stages, dtype=torch.float64)
        smoothed = self.first * (self.last / self.first) ** powers
        return torch.cat([smoothed, torch.tensor([torch.inf], dtype=torch.float64)])


@dataclass(frozen=True, eq=False)
class Fit:
    """Pictures that were fitted to features.

    Attributes
    ----------
    pictures : torch.Tensor of shape (b, n_pixels)
    costs : torch.Tensor of shape (b,)
        Sum of squared deviations of the features, on the true network.
    n_steps : torch.Tensor of shape (b,) of int
    """

    pictures: torch.Tensor
    costs: torch.Tensor
    n_steps: torch.Tensor


def typical_spreads(front: Front, start: torch.Tensor, features: torch.Tensor) -> list[float]:
    """Return the spread of each smoothed call's input, at pictures of noise with features as spread as those given.

    A start may be empty, and the features' own pictures are not known.
    """
    drawn = unit_normal((4, front.n_pixels), 0, front.device)
    seen, scale = Sharpened(), 1 / 16
    for _ in range(24):
        seen = Sharpened()
        with torch.no_grad():
            found = front(start + scale * drawn, seen)
        if found.std() >= features.std():
            break
        scale *= 1.5
    return [max(spread, torch.finfo(torch.float32).tiny) for spread in seen.seen]


def fit_to_features(
    front: Front,
    features: torch.Tensor,
    starts: torch.Tensor,
    schedule: Schedule,
    *,
    floors: torch.Tensor,
) -> Fit:
    """Fit pictures to features by Gauss-Newton, from a start for each.

    Parameters
    ----------
    front : Front
    features : torch.Tensor of shape (b, n_features)
    starts : torch.Tensor of shape (b, n_pixels)
    schedule : Schedule
    floors : torch.Tensor of shape (b,)
        Cost that the features' errors explain: a picture below it is done with its first slow step.
    """
    parts = []
    for first in range(0, len(features), AT_ONCE):
        chosen = slice(first, first + AT_ONCE)
        run = _Run(front, features[chosen], starts[chosen], schedule, floors[chosen])
        parts.append(run.to_the_end())
    return Fit(*(torch.cat(part) for part in zip(*parts, strict=True)))


class _Run:
    """The state of a fit of several pictures."""

    def __init__(
        self, front: Front, features: torch.Tensor, starts: torch.Tensor, schedule: Schedule, floors: torch.Tensor
    ) -> None:
        self.exact, self.low, self.schedule = front, front.to(torch.float32), schedule
        self.features, self.floors, b = features, floors, len(features)
        self.spreads = typical_spreads(front, starts.mean(dim=0), features)
        self.sharpness = schedule.stages().to(front.device)
        self.pictures = starts.clone()
        self.damping = torch.full_like(floors[:, None], schedule.damping)
        self.costs = torch.full_like(floors, torch.inf)
        self.stage, self.at_stage, self.n_steps, self.slow, self.rejected = torch.zeros(
            (5, b), dtype=torch.long, device=front.device
        )
        self.generator, self.n_products = torch.Generator().manual_seed(0), schedule.n_products
        self.is_smooth, self.can_finish = not self.spreads, front.n_pixels <= MOST_DENSE
        if self.is_smooth:
            self.stage += schedule.n_stages

    def to_the_end(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return pictures, costs and numbers of steps, when every picture is done."""
        last = self.schedule.n_stages
        while (self.stage <= last).any():
            smoothed, true = (self.stage < last).nonzero()[:, 0], (self.stage == last).nonzero()[:, 0]
            if len(smoothed):
                self._step(smoothed, Sharpened(self.sharpness[self.stage[smoothed]], self.spreads))
            if len(true):
                self._step(true, None)
        return self.pictures, self.costs, self.n_steps

    def _step(self, group: torch.Tensor, mode: Sharpened | None) -> None:
        """Take a step of some pictures, and decide where each goes on."""
        at, wanted = self.pictures[group], self.features[group]
        residual, gradient = _residual_and_gradient(lambda x: self.exact(x, mode), at, wanted)
        cost = residual.square().sum(dim=1)
        J = self.low.linearized(at.float(), mode)
        solve = self._inverse(J, self.damping[group], self.n_products if mode is None else self.schedule.n_products)
        step, is_solved = solve(gradient)
        change = J.along(step.float()).double()
        expected = 2 * (gradient * step).sum(dim=1) - change.square().sum(dim=1)
        bend = torch.zeros_like(cost)
        if self.is_smooth:
            curved, _ = solve(J.back(curvature_along(self.exact, at, wanted + residual, step, change).float()).double())
            bend = curved.norm(dim=1) / step.norm(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
            step = step + torch.where(bend < MOST_BENT, 0.5, 0.0)[:, None] * curved
        with torch.no_grad():
            after = (self.exact(at - step, mode) - wanted).square().sum(dim=1)
        helps = after < cost
        share = (cost - after) / expected.clamp(min=torch.finfo(torch.float64).tiny)
        self.pictures[group] = torch.where(helps[:, None], at - step, at)
        self.costs[group] = torch.where(helps, after, cost)
        good, poor = (GOOD, POOR) if self.is_smooth else (0.0, 0.0)
        factor = torch.where(share > good, EASIER, torch.where(share <= poor, HARDER, 1.0))
        self.damping[group] *= factor[:, None].double()
        self.n_steps[group] += 1
        self.at_stage[group] += 1
        self.slow[group] = torch.where(helps & (after < (1 - SLOW) * cost), 0, self.slow[group] + 1)
        self.rejected[group] = torch.where(helps, 0, self.rejected[group] + 1)
        if mode is None:
            is_linear = (share > LINEAR) & (bend < 1 - LINEAR) & (not is_solved) & self.is_smooth & self.can_finish
            if not is_solved and (after > self.schedule.enough * cost).any():
                self.n_products = min(2 * self.n_products, MOST_PRODUCTS)
            self._go_on(group, self._is_done(group) | is_linear)
        else:
            self.damping[group] = self.damping[group].clamp(min=self.schedule.least_damping)
            is_slow = helps & (after > self.schedule.enough * cost)
            self._go_on(group, is_slow | (self.at_stage[group] >= self.schedule.max_steps))

    def _inverse(self, J: Linearized, damping: torch.Tensor, n_products: int) -> Inverse:
        """Return ``(J^T J + damping)^-1`` as a function, the damping over the mean of the diagonal.

        It also says whether the residual is as small as asked for.
        """
        signs = signs_like(J.point, self.generator)
        typical = J.along(signs).square().sum(dim=1, keepdim=True) / signs.shape[1]
        added = damping.float() * typical

        def solve(goal: torch.Tensor) -> tuple[torch.Tensor, bool]:
            size = goal.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
            found, is_solved = conjugate_gradient(
                lambda v: J.back(J.along(v)) + added * v,
                lambda v: v,
                (goal / size).float(),
                n_products=n_products,
                enough=self.schedule.accuracy,
            )
            return found.double() * size, is_solved

        return solve

    def _is_done(self, group: torch.Tensor) -> torch.Tensor:
        """Return which pictures take no further step of the true network."""
        is_at_floor = (self.slow[group] > 0) & (self.costs[group] <= self.floors[group])
        is_over = (self.slow[group] >= MOST_SLOW) | (self.rejected[group] >= MOST_REJECTED)
        most = self.schedule.smooth_steps if self.is_smooth else self.schedule.last_steps
        return is_at_floor | is_over | (self.at_stage[group] >= most)

    def _go_on(self, group: torch.Tensor, goes: torch.Tensor) -> None:
        going = group[goes]
        self.stage[going] += 1
        self.at_stage[going] = self.slow[going] = self.rejected[going] = 0


def curvature_along(
    front: Front, at: torch.Tensor, here: torch.Tensor, step: torch.Tensor, change: torch.Tensor
) -> torch.Tensor:
    """Return the second derivative of the features along a step back from some pictures, by a difference.

    ``here`` are the features of the pictures, and ``change`` is the first derivative along the step.
    """
    with torch.no_grad():
        there = front(at - DIFFERENCE * step)
    return (2 / DIFFERENCE) * ((there - here) / DIFFERENCE + change)


def _residual_and_gradient(
    function: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor, wanted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``r = f(x) - wanted``, and ``J^T r``."""
    with torch.enable_grad():
        point = at.detach().requires_grad_()
        value = function(point)
        residual = (value - wanted).detach()
        (gradient,) = torch.autograd.grad(value, point, residual)
    return residual, gradient

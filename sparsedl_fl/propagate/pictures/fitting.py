"""Pictures from their features: Gauss-Newton on a network that sharpens, all pictures at once.

Each picture is a problem of its own, with its own damping and its own sharpness. Steps are solved by conjugate
gradients on ``J^T J``, with two passes through the network a product, in single precision; costs and gradients are in
double precision, so that what single precision leaves of a step is taken by the next one.

References
----------
Levenberg, Q. Appl. Math. 1944; Nocedal and Wright, *Numerical Optimization*, 2006, Sec. 10.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sparsedl_fl.propagate.pictures.front import Front
from sparsedl_fl.propagate.pictures.linearized import Linearized
from sparsedl_fl.propagate.pictures.sharpening import Sharpened
from sparsedl_fl.solvers import conjugate_gradient

__all__ = ["Fit", "Schedule", "fit_to_features", "typical_spreads"]

EASIER, HARDER = 0.2, 5.0
"""Factors of the damping after a step that decreased the cost and after one that did not."""

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
    last_steps : int, default=40
        Steps of the true network at most.
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
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn((4, front.n_pixels), generator=generator, dtype=torch.float64)
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
        self.sharpness = schedule.stages()
        self.pictures = starts.clone()
        self.damping = torch.full((b, 1), schedule.damping, dtype=torch.float64)
        self.costs = torch.full((b,), torch.inf, dtype=torch.float64)
        self.stage, self.at_stage, self.n_steps, self.slow, self.rejected = torch.zeros((5, b), dtype=torch.long)
        self.generator = torch.Generator().manual_seed(0)

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
        step = self._solved(J, gradient, self.damping[group])
        with torch.no_grad():
            after = (self.exact(at - step, mode) - wanted).square().sum(dim=1)
        helps = after < cost
        self.pictures[group] = torch.where(helps[:, None], at - step, at)
        self.costs[group] = torch.where(helps, after, cost)
        self.damping[group] *= torch.where(helps, EASIER, HARDER)[:, None].double()
        self.n_steps[group] += 1
        self.at_stage[group] += 1
        self.slow[group] = torch.where(helps & (after < (1 - SLOW) * cost), 0, self.slow[group] + 1)
        self.rejected[group] = torch.where(helps, 0, self.rejected[group] + 1)
        if mode is None:
            self._go_on(group, self._is_done(group))
        else:
            self.damping[group] = self.damping[group].clamp(min=self.schedule.least_damping)
            is_slow = helps & (after > self.schedule.enough * cost)
            self._go_on(group, is_slow | (self.at_stage[group] >= self.schedule.max_steps))

    def _solved(self, J: Linearized, gradient: torch.Tensor, damping: torch.Tensor) -> torch.Tensor:
        """Return ``(J^T J + damping)^-1 gradient``, the damping over the mean of the diagonal."""
        signs = 2.0 * torch.randint(0, 2, gradient.shape, generator=self.generator) - 1.0
        typical = J.along(signs).square().sum(dim=1, keepdim=True) / gradient.shape[1]
        added = damping.float() * typical
        size = gradient.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        step, _ = conjugate_gradient(
            lambda v: J.back(J.along(v)) + added * v,
            lambda v: v,
            (gradient / size).float(),
            n_products=self.schedule.n_products,
            enough=self.schedule.accuracy,
        )
        return step.double() * size

    def _is_done(self, group: torch.Tensor) -> torch.Tensor:
        """Return which pictures take no further step of the true network."""
        is_at_floor = (self.slow[group] > 0) & (self.costs[group] <= self.floors[group])
        is_over = (self.slow[group] >= MOST_SLOW) | (self.rejected[group] >= MOST_REJECTED)
        return is_at_floor | is_over | (self.at_stage[group] >= self.schedule.last_steps)

    def _go_on(self, group: torch.Tensor, goes: torch.Tensor) -> None:
        going = group[goes]
        self.stage[going] += 1
        self.at_stage[going] = self.slow[going] = self.rejected[going] = 0


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

"""Pictures from their features: Gauss-Newton on a network that sharpens, all pictures at once.

Each picture is a problem of its own, with its own damping and its own sharpness. Steps are solved by conjugate
gradients on ``J^T J``, with two passes through the network a product, in single precision; costs and gradients are in
double precision, so that what single precision leaves of a step is taken by the next one.

References
----------
Levenberg, Q. Appl. Math. 1944; Nocedal and Wright, *Numerical Optimization*, 2006, Sec. 10.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsedl_fl.propagate.pictures.front import Front
from sparsedl_fl.propagate.pictures.linearized import Linearized
from sparsedl_fl.propagate.pictures.sharpening import Sharpened
from sparsedl_fl.solvers import conjugate_gradient

__all__ = ["Fit", "Schedule", "fit_to_features", "typical_spreads"]


@dataclass(frozen=True)
class Schedule:
    first: float = 2.0
    last: float = 200.0
    n_stages: int = 10
    max_steps: int = 4
    enough: float = 0.5
    n_products: int = 60
    accuracy: float = 1e-3
    last_steps: int = 40
    damping: float = 0.1
    least_damping: float = 1e-4
    easier: float = 0.2
    harder: float = 5.0

    def stages(self) -> torch.Tensor:
        """Return the sharpness of each stage; the last one is the true network."""
        steps = torch.logspace(0, 1, self.n_stages, base=self.last / self.first, dtype=torch.float64)
        return torch.cat([self.first * steps, torch.tensor([torch.inf], dtype=torch.float64)])


@dataclass
class Fit:
    pictures: torch.Tensor
    costs: torch.Tensor
    n_steps: torch.Tensor
    n_products: int = 0


def typical_spreads(front: Front, start: torch.Tensor, features: torch.Tensor) -> list[float]:
    """Return the spread of each smoothed call's input at pictures with features as large as those given."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn((4, front.n_pixels), generator=generator, dtype=torch.float64)
    goal, scale, seen = features.std(), 1 / 16, Sharpened()
    for _ in range(24):
        seen = Sharpened()
        with torch.no_grad():
            found = front(start.mean(dim=0) + scale * drawn, seen)
        if found.std() >= goal:
            break
        scale *= 1.5
    return [max(spread, 1e-12) for spread in seen.seen]


def fit_to_features(front: Front, features: torch.Tensor, start: torch.Tensor, schedule: Schedule = Schedule(), truth=None, log=False, spreads=None) -> Fit:
    b = len(features)
    stages, spreads = schedule.stages(), spreads or typical_spreads(front, start, features)
    low = front.to(torch.float32)
    n_total = len(stages) - 1
    x = start.expand(b, -1).clone()
    stage, at_stage, rejected, n_steps, slow = (torch.zeros(b, dtype=torch.long) for _ in range(5))
    damping = torch.full((b, 1), schedule.damping, dtype=torch.float64)
    costs = torch.full((b,), torch.inf, dtype=torch.float64)
    running = torch.arange(b)
    generator = torch.Generator().manual_seed(0)
    n_products = 0
    while len(running):
        is_true = stage[running] == n_total
        for group in (running[~is_true], running[is_true]):
            if not len(group):
                continue
            sharpness = stages[stage[group]]
            is_last = bool(sharpness.isinf().any())
            at = lambda net: (lambda v: net(v, None if is_last else Sharpened(sharpness, spreads)))
            exact = x[group].requires_grad_()
            value = at(front)(exact)
            residual = (value - features[group]).detach()
            cost = residual.square().sum(dim=1)
            (gradient,) = torch.autograd.grad(value, exact, residual)
            J = Linearized(at(low), x[group].float())
            signs = (2 * torch.randint(0, 2, exact.shape, generator=generator) - 1).float()
            typical = J.along(signs).square().sum(dim=1, keepdim=True) / front.n_pixels
            added = damping[group].float() * typical
            size = gradient.norm(dim=1, keepdim=True).clamp(min=1e-300)
            count = [0]
            def times(v):
                count[0] += 1
                return J.back(J.along(v)) + added * v
            step, _ = conjugate_gradient(times, lambda v: v, (gradient / size).float(), n_products=schedule.n_products, enough=schedule.accuracy)
            n_products += count[0] * len(group)
            moved = x[group] - step.double() * size
            with torch.no_grad():
                after = (at(front)(moved) - features[group]).square().sum(dim=1)
            better = after < cost
            x[group] = torch.where(better[:, None], moved, x[group])
            costs[group] = torch.where(better, after, cost)
            damping[group] = torch.where(better[:, None], schedule.easier * damping[group], schedule.harder * damping[group])
            n_steps[group] += 1; at_stage[group] += 1
            rejected[group] = torch.where(better, 0, rejected[group] + 1)
            slow[group] = torch.where(better & (after < 0.98 * cost), 0, slow[group] + 1)
            if not is_last:
                damping[group] = damping[group].clamp(min=schedule.least_damping)
                goes = (at_stage[group] >= schedule.max_steps) | (better & (after > schedule.enough * cost))
                stage[group] += goes.long(); at_stage[group[goes]] = 0
            else:
                damping[group] = damping[group].clamp(min=1e-12)
                stops = (at_stage[group] >= schedule.last_steps) | (rejected[group] >= 4) | (slow[group] >= 3)
                stage[group[stops]] += 1
        running = running[stage[running] <= n_total]
        if log and truth is not None:
            print(int(n_steps.max()), stage.tolist(), (costs / features.square().sum(1)).log10().numpy().round(1), (x - truth).square().mean(1).sqrt().log10().numpy().round(1), flush=True)
    return Fit(x, costs, n_steps, n_products)

"""The last few samples of a batch, all at once: where hardly any unit is inactive, no column is found by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from sparsedl_fl.search.withheld.joint_equations import LeftEquations, LeftSquares
from sparsedl_fl.solvers import gauss_newton

__all__ = ["Minimisers", "LeftOver"]

LEAST_GAIN = 1e-6
"""Relative decrease of the cost of some start that a step needs for another step to follow."""

MOST_DRAWN, OTHERS = 5, 1e-3
"""Largest number of samples of a minimiser that are drawn anew, and the least weight of one, over that of the worst."""

TYPICAL, LARGEST = 0.7, 10.0
"""Share of the samples that are drawn from the prior, and how many times as far from the mean others may be."""


@dataclass(frozen=True)
class Minimisers:
    """Local minimisers, the best first: coordinates of shape (n, k, k - 1), and the cost of each, (n,)."""

    coordinates: torch.Tensor
    costs: torch.Tensor

    def best(self, most: int, *, apart: float = 0.01) -> Minimisers:
        """Return the best ones, one of those whose costs differ by no more than a share."""
        order = self.costs.argsort()
        costs = self.costs[order]
        is_other = torch.ones_like(costs, dtype=torch.bool)
        is_other[1:] = costs[1:] > (1 + apart) * costs[:-1]
        chosen = order[is_other][:most]
        return Minimisers(self.coordinates[chosen], self.costs[chosen])


@dataclass(eq=False, repr=False, kw_only=True)
class LeftOver(BaseEstimator):
    """Damped Gauss-Newton for the samples whose columns are not known, from many starts at once.

    The tail's gradient of each sample, with its label, has to lie in the column space, and ``P Q`` of all together has
    to be the unit matrix. Mixtures of samples of one label with the same inactive units fulfil the first, but for the
    curvature of the loss: the second separates two, and only the curvature three. So the first leads the starts to the
    mixtures, with the kinks of the network smoothed less and less, and the second grows from a small weight.

    At a minimiser some samples are right and others are not: the best are starts again, with a few samples moved.

    Measured on CIFAR-10 at 200 Hardtanh units, by script, with all other columns known: of 11 samples, five of one
    label, 2 of 24 starts found the batch. 10 samples, two each of three labels among them, were found in the third and
    in the seventh round of two runs, and by none of some 400 random starts alone.

    Parameters
    ----------
    few, most : int, default=4 and 20
        Largest number of remaining samples at first, as many more after every three idle rounds, and at most.
    n_starts, starts_per_input : int, default=24 and 3
        Starts of a round, and at most so many for each remaining sample.
    n_kept, new_each : int, default=6 and 2
        Number of minimisers to start from again, and one round in how many has random starts.
    shares : tuple of float, default=(1, 0.7, ..., 0.003)
        Widths over which kinks are smoothed one after the other, as shares of what is typical.
    first_shares, again_shares : (int, int), default=(0, 4) and (3, 11)
        Range of the first width, by its index, of random starts and of starts from minimisers; without the second.
    first_weights, again_weights : (float, float), default=(0.02, 0.3) and (0.05, 0.5)
        Ranges of the first weight of ``P Q``, which grows to one: weights lead to different local minimisers.
    halved : tuple of int, default=(3, 6)
        Widths, counted from the first of a round, after which the better half of the starts goes on.
    n_steps, n_steps_smoothed : int, default=20 and 5
        Steps without smoothing, and for each width.
    damping : float, default=1e-2
        First damping, over the diagonal.
    enough : float, default=1e-6
        Sum of squares below which the samples are found: a `JointRefinement` polishes them. (Spurious minimisers had
        1e-4 and more.)
    """

    few: int = 4
    most: int = 20
    n_starts: int = 24
    starts_per_input: int = 3
    n_kept: int = 6
    new_each: int = 2
    shares: tuple[float, ...] = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.02, 0.0125, 0.006, 0.003)
    first_shares: tuple[int, int] = (0, 4)
    again_shares: tuple[int, int] = (3, 11)
    first_weights: tuple[float, float] = (0.02, 0.3)
    again_weights: tuple[float, float] = (0.05, 0.5)
    halved: tuple[int, ...] = (3, 6)
    n_steps: int = 20
    n_steps_smoothed: int = 5
    damping: float = 1e-2
    enough: float = 1e-6

    def minimisers(
        self, equations: LeftEquations, before: list[Minimisers], is_over: Callable[[], str], generator: torch.Generator
    ) -> Minimisers:
        """Return the best minimisers of a round, and of those before.

        Parameters
        ----------
        equations : LeftEquations
            The equations of the remaining samples, with their labels.
        before : list of Minimisers
            The results of rounds for the same samples and labels.
        is_over : callable
            Returns why the search ends, in words, or nothing.
        generator : torch.Generator
            Source of randomness.
        """
        k = equations.n_inputs
        n_starts = min(self.n_starts, self.starts_per_input * k) if k > 1 else 1
        if k == 1 or len(before) % self.new_each == 0:
            at = _heavy((n_starts, k, k - 1), generator)
            (low, high), limits = self.first_shares, self.first_weights
        else:
            at = self._moved(equations, before[-1].coordinates, n_starts, generator)
            (low, high), limits = self.again_shares, self.again_weights
        first = int(torch.randint(low, high, (1,), generator=generator))
        weights = limits[0] * (limits[1] / limits[0]) ** torch.rand(n_starts, generator=generator, dtype=at.dtype)
        found = self._descended(equations, at, weights, first, is_over)
        known = before[-1:]
        coordinates = torch.cat([found.coordinates, *(minimisers.coordinates for minimisers in known)])
        return Minimisers(coordinates, torch.cat([found.costs, *(minimisers.costs for minimisers in known)])).best(
            self.n_kept
        )

    def _descended(
        self, equations: LeftEquations, at: torch.Tensor, weights: torch.Tensor, first: int, is_over: Callable[[], str]
    ) -> Minimisers:
        """Return the minimisers of starts, with the kinks of the network smoothed less and less."""
        n_stages = len(self.shares) - first
        for stage in range(n_stages if at.numel() else 0):  # a single sample has no unknowns
            if is_over():
                return Minimisers(at, equations.costs(at, torch.ones_like(weights)))
            smoothed = equations.smoothed(self.shares[first + stage])
            at = self._stepped(smoothed, at, weights ** (1 - stage / n_stages), self.n_steps_smoothed)
            if stage in self.halved:
                # Compared at one weight, as each start has its own.
                best = smoothed.costs(at, torch.full_like(weights, self.first_weights[1])).argsort()
                best = best[: max(len(best) // 2, 1)]
                at, weights = at[best], weights[best]
        ones = torch.ones_like(weights)
        at = self._stepped(equations, at, ones, self.n_steps) if at.numel() else at
        return Minimisers(at, equations.costs(at, ones))

    def _stepped(self, equations: LeftEquations, at: torch.Tensor, weights: torch.Tensor, n_steps: int) -> torch.Tensor:
        def solve(here: LeftSquares, gradient: torch.Tensor, damping: torch.Tensor) -> torch.Tensor:
            diagonal = here.normal[0].diagonal(dim1=1, dim2=2)
            ridge = damping * diagonal + torch.finfo(diagonal.dtype).tiny
            return torch.linalg.solve_ex(here.normal[0] + torch.diag_embed(ridge), gradient)[0]

        return gauss_newton(
            at.flatten(1),
            lambda points, index: LeftSquares(equations, points.view(-1, *at.shape[1:]), weights[index]),
            solve,
            lambda here, before, after, points, number: (before - after > LEAST_GAIN * before) | (after >= before),
            n_steps=n_steps,
            damping=torch.full_like(weights[:, None], self.damping),
        )[0].view(at.shape)

    def _moved(
        self, equations: LeftEquations, minimisers: torch.Tensor, n_starts: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Return starts from minimisers: as they are, with two samples further apart or nearer, or with a few redrawn.

        Smoothed kinks determine the distance of two samples of one label least of all.
        """
        outside, products = equations.squares(minimisers)
        doubtful = (outside + products.sum(dim=1) + products.sum(dim=2)).sqrt()
        doubtful = doubtful.nan_to_num(nan=1.0, posinf=1.0).clamp(min=torch.finfo(doubtful.dtype).tiny)
        doubtful = doubtful + OTHERS * doubtful.amax(dim=1, keepdim=True)
        k, labels = equations.n_inputs, equations.rest.labels
        is_other = ~torch.eye(k, dtype=torch.bool)
        is_alike = is_other & (labels[:, None] == labels)
        starts = minimisers[torch.arange(n_starts) % len(minimisers)].clone()
        for number, at in enumerate(starts):
            move = int(torch.randint(4, (1,), generator=generator))
            if move in (1, 2):
                pairs = (is_alike if move == 1 and is_alike.any() else is_other).nonzero()
                pair = pairs[int(torch.randint(len(pairs), (1,), generator=generator))]
                middle = at[pair].mean(dim=0)
                at[pair] = middle + 2 ** (2 * torch.rand((), generator=generator, dtype=torch.float32) - 1) * (
                    at[pair] - middle
                )
            elif move == 3:
                n_drawn = int(torch.randint(1, min(MOST_DRAWN, k) + 1, (1,), generator=generator))
                drawn = torch.multinomial(doubtful[number % len(minimisers)], n_drawn, generator=generator)
                at[drawn] = _heavy((n_drawn, k - 1), generator)
        return starts


def _heavy(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return prior draws, some of them scaled up: the remaining samples are unlike the ones found."""
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    is_far = torch.rand((*shape[:-1], 1), generator=generator, dtype=normal.dtype) > TYPICAL
    return normal * torch.where(
        is_far, LARGEST ** torch.rand(is_far.shape, generator=generator, dtype=torch.float32), 1.0
    )

"""Gauss-Newton from many random starts on all constraints at once, for any activation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from sparsedl.linalg import normalized
from sparsedl_fl.constraints import Constraint
from sparsedl_fl.search.columns_and_forward_pass import WORKING, SampleCoordinates, ScaledForward, leaders
from sparsedl_fl.search.natural_coordinates import NaturalCoordinates, SquaresAt
from sparsedl_fl.solvers import conjugate_gradient, gauss_newton, log_uniform

__all__ = ["Descent"]


@dataclass(eq=False, repr=False, kw_only=True)
class Descent(BaseEstimator):
    """The stage for activations of any shape, and for batches of more than half the width.

    Minimises the residual of all constraints from random starts, by damped Gauss-Newton with a shrinking ridge. Each
    step is solved inexactly by conjugate gradients, in coordinates in which a diagonal preconditions well. An exact
    first step would lead all starts of a nearly linear activation to the same sample.

    The numbers were chosen on single batches of CIFAR-10, GELU and tanh: 80 samples at 200 units, 300 at 1000.

    Parameters
    ----------
    n_steps : int, default=40
        Steps of a start at most.
    n_products : int, default=20
        Steps of conjugate gradients for each, at most.
    inexact : float, default=0.1
        Relative residual at which they stop.
    first_ridges : (float, float), default=(1e-7, 1e-2)
        Range of the first ridge of a start, over the mean curvature: large ones lead to the same few samples.
    start_sizes : (float, float), default=(3, 3)
        Range of the size of a start, over that of prior draws: larger starts reach more samples.
    spread : float, default=1
        Standard deviation of the logarithm of the weight that a start gives each downstream layer.
    last_ridge, shrinking : float and int, default=1e-9 and 15
        Last ridge, over the mean curvature, and the number of steps in which it is reached.
    damping : float, default=1e-3
        First damping, over the mean curvature.
    smoothing, n_smoothed : tuple of float and int, default=(1, 0.5, 0.2, 0.1, 0.05, 0.02) and 5
        Widths over which kinks are smoothed one after the other, where asked for, as shares of what is typical, and the
        steps at each. (Of 64 starts with ten steps each, on one batch each: 56 in place of one reach samples at 200
        units of ELU, 80 samples; 30 in place of none at SELU, 20 samples. Six steps cost a third less a find.)
    n_probes : int, default=2
        Number of prior draws at which the curvature is measured.
    same_end, merging_every : float and int, default=0.9999 and 5
        Cosine of two starts above which one goes on for both, and the number of steps between such merges.
    least_share : float, default=1e-9
        A minimiser is isolated where the smallest eigenvalue of the Gauss-Newton matrix is above this share of the
        largest.
    near, worth_polishing : float, default=1e-4 and 0.02
        Relative distance at which a start stops in single precision, and up to which it is polished in double.
    n_polishing, polishing_inexact, slowest : int, float and float, default=12, 1e-2 and 0.9
        Polishing steps at most, the relative residual of each, and the share of its cost that a step may leave for
        another to follow.
    """

    n_steps: int = 40
    n_products: int = 20
    inexact: float = 0.1
    first_ridges: tuple[float, float] = (1e-7, 1e-2)
    start_sizes: tuple[float, float] = (3.0, 3.0)
    spread: float = 1.0
    last_ridge: float = 1e-9
    shrinking: int = 15
    damping: float = 1e-3
    smoothing: tuple[float, ...] = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)
    n_smoothed: int = 5
    n_probes: int = 2
    same_end: float = 0.9999
    merging_every: int = 5
    least_share: float = 1e-9
    near: float = 1e-4
    worth_polishing: float = 0.02
    n_polishing: int = 12
    polishing_inexact: float = 1e-2
    slowest: float = 0.9

    @classmethod
    def for_tail(cls) -> Descent:
        """Return the stage for the network tail alone, which has fewer equations: some starts are small.

        (Of 64 starts on one batch each: at 200 GELUs, 95 samples, 13 of size 1 and one of size 3 reach samples; at
        Softplus, 80 samples, 27 and 39.)
        """
        return cls(start_sizes=(1.0, 3.0))

    def run(
        self,
        coordinates: SampleCoordinates,
        equations: Constraint,
        starts: int | torch.Tensor,
        generator: torch.Generator,
        whole: NaturalCoordinates | None = None,
        at_first: Constraint | None = None,
        is_smoothed: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run starts and return the local minimisers that fulfil the equations, as unit rows ``p``.

        Parameters
        ----------
        coordinates : SampleCoordinates
            The unknowns, deflated by known samples.
        equations : Constraint
            What pre-activations of samples fulfil.
        starts : int or torch.Tensor of shape (n_starts, b)
            Number of random starts, or ``p`` to start from, at their true scale.
        generator : torch.Generator
            Source of randomness.
        whole : NaturalCoordinates or None, default=None
            The unknowns without deflation, to polish in where columns are less exact than the equations.
        at_first : Constraint or None, default=None
            Constraint to descend before polishing; None takes all equations.
        is_smoothed : bool, default=False
            Whether random starts first descend the equations with their kinks smoothed.

        Returns
        -------
        inputs, is_determined : torch.Tensor of shape (n_found, b), and (n_found,) of bool
            Unit rows ``p``, and whether each is isolated.
        """
        at_first = equations if at_first is None else at_first
        forward = NaturalCoordinates.of(ScaledForward.of(coordinates), at_first, generator, self.n_probes)
        d, working = len(forward.curvature), forward.to(WORKING)
        if d == 0:
            minimisers = torch.zeros((1, 0), dtype=WORKING)
            varied = at_first.settled(forward.preactivations(minimisers.double()))
            if whole is None:  # deflation leaves it as exact as the columns, until it is fitted by itself
                whole = NaturalCoordinates.of(ScaledForward.of(coordinates.whole), equations, generator, self.n_probes)
        elif isinstance(starts, int):
            sizes = log_uniform(self.start_sizes, starts, generator, WORKING)
            minimisers = sizes * torch.randn((starts, d), generator=generator, dtype=WORKING)
            ridges = log_uniform(self.first_ridges[::-1], starts, generator, WORKING)
            varied = at_first.weighted(starts, self.spread, generator)
            for share in self.smoothing if is_smoothed else ():
                smoothed = varied.smoothed(share).to(WORKING)
                minimisers = self._descend(working, smoothed, minimisers, ridges, self.n_smoothed)
                kept = leaders(minimisers, self.same_end).unique()
                varied, minimisers = varied.of_some(kept), minimisers[kept]
                ridges = torch.full_like(minimisers[:, :1], self.last_ridge)
            minimisers = self._descend(working, varied.to(WORKING), minimisers, ridges)
        else:
            minimisers = forward.coordinates(starts).to(WORKING)
            varied = at_first.settled(forward.preactivations(minimisers.double()))
            ridges = torch.full_like(minimisers[:, :1], self.last_ridge)
            minimisers = self._descend(working, varied.to(WORKING), minimisers, ridges)
        here = varied.to(WORKING).at(working.preactivations(minimisers))
        kept = torch.nonzero((here.distances < self.worth_polishing) | here.is_inside)[:, 0]
        kept = kept[leaders(minimisers[kept], self.same_end).unique()] if d else kept
        inputs = forward.inputs(minimisers[kept])
        if len(inputs) == 0:
            return inputs, torch.zeros(0, dtype=torch.bool)
        if equations is at_first:
            equations = varied.of_some(kept).unweighted()
        return self._polished(coordinates, forward if whole is None else whole, equations, inputs)

    def refined(self, forward: NaturalCoordinates, equations: Constraint, inputs: torch.Tensor) -> torch.Tensor:
        """Fit ``p`` at their true scale once more to equations, weighted by their noise; return unit rows."""
        preactivations = forward.preactivations(forward.coordinates(inputs))
        fitted = equations.settled(preactivations).by_noise(preactivations)
        return normalized(forward.inputs(self._descend(forward, fitted, forward.coordinates(inputs))), dim=1)

    def _polished(
        self, coordinates: SampleCoordinates, forward: NaturalCoordinates, equations: Constraint, inputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Descend the equations from some ``p`` at their true scale in double precision; keep those that fulfil it."""
        minimisers = forward.coordinates(inputs)
        preactivations = forward.preactivations(minimisers)
        equations = equations.settled(preactivations)
        minimisers = self._descend(forward, equations, minimisers)
        here = equations.at(forward.preactivations(minimisers))
        balanced, left = equations.balanced(preactivations), torch.nonzero(~here.is_inside)[:, 0]
        if balanced is not equations and len(left):  # the noisier part may have moved them away
            minimisers[left] = self._descend(forward, balanced.of_some(left), minimisers[left])
            here = equations.at(forward.preactivations(minimisers))
        if not coordinates.activation.has_flat_part:
            inputs = normalized(forward.inputs(minimisers[here.is_likely]), dim=1)
            return inputs, torch.ones(len(inputs), dtype=torch.bool)
        kept = torch.nonzero(here.is_inside)[:, 0]
        inputs = normalized(forward.inputs(minimisers[kept]), dim=1)
        least = [self.is_only(forward, equations.of_some(index[None]), minimisers[index]) for index in kept]
        return inputs, torch.tensor(least, dtype=torch.bool)

    def is_only(self, forward: NaturalCoordinates, equations: Constraint, minimiser: torch.Tensor) -> bool:
        """Return whether a minimiser, by its coordinates, is isolated: no other nearby fulfils the equations."""
        return self.least_curvature(forward, equations, minimiser) > self.least_share

    def least_curvature(self, forward: NaturalCoordinates, equations: Constraint, minimiser: torch.Tensor) -> float:
        """Return the smallest eigenvalue of the Gauss-Newton matrix at a minimiser, over the largest."""
        basis = forward.orthonormal
        if basis.shape[1] == 0:
            return 1.0
        here = equations.of_some(torch.zeros(1, dtype=torch.long)).at(forward.preactivations(minimiser[None]))
        curvatures = torch.linalg.eigvalsh(here.gram(basis.T))
        return float(curvatures[0] / curvatures[-1])

    def _descend(
        self,
        forward: NaturalCoordinates,
        equations: Constraint,
        minimisers: torch.Tensor,
        ridges: torch.Tensor | None = None,
        n_steps: int | None = None,
    ) -> torch.Tensor:
        """Minimise the residual from each of some coordinates, with a shrinking ridge, or to the last digit without."""
        if forward.basis.shape[1] == 0 or len(minimisers) == 0:
            return minimisers
        mean, at = forward.curvature.mean(), self._at(forward, equations, len(minimisers))
        if ridges is None:
            return gauss_newton(
                minimisers,
                at,
                self._solver(forward, self.polishing_inexact),
                lambda here, before, after, points, number: after < self.slowest * before,
                n_steps=n_steps or self.n_polishing,
                damping=torch.full_like(minimisers[:, :1], self.last_ridge) * mean,
            )[0]
        return gauss_newton(
            minimisers,
            at,
            self._solver(forward, self.inexact),
            self._is_far_and_alone,
            n_steps=n_steps or self.n_steps,
            damping=torch.full_like(minimisers[:, :1], self.damping) * mean,
            ridge=ridges * mean,
            shrinkage=(self.last_ridge / ridges) ** (1 / self.shrinking),
        )[0]

    @staticmethod
    def _at(forward: NaturalCoordinates, equations: Constraint, n: int) -> Callable[..., SquaresAt]:
        def at(coordinates: torch.Tensor, index: torch.Tensor) -> SquaresAt:
            return forward.at(equations if len(index) == n else equations.of_some(index), coordinates)

        return at

    def _solver(self, forward: NaturalCoordinates, inexact: float) -> Callable[..., torch.Tensor]:
        """Return a function that applies ``(K^T J^T J K + added)^-1`` inexactly, by conjugate gradients."""

        def solve(here: SquaresAt, gradient: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
            return conjugate_gradient(
                lambda direction: here.times(direction) + added * direction,
                lambda left: left / (forward.curvature + added),
                gradient,
                n_products=self.n_products,
                enough=inexact**2,
            )[0]

        return solve

    def _is_far_and_alone(
        self, here: SquaresAt, before: torch.Tensor, after: torch.Tensor, points: torch.Tensor, number: int
    ) -> torch.Tensor:
        """Return which starts are not near enough yet, one of each group that merged."""
        goes_on = here.here.distances > self.near
        if number % self.merging_every == self.merging_every - 1:
            goes_on &= leaders(points, self.same_end) == torch.arange(len(points))
        return goes_on

"""The final fits: each sample by itself to all constraints, and then the whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from sparsedl_fl.constraints import Constraint, TailGradient
from sparsedl_fl.search.natural_coordinates import NaturalCoordinates, SquaresAt
from sparsedl_fl.search.residual_systems import BatchSystem, InputSystems
from sparsedl_fl.solvers import conjugate_gradient, gauss_newton

__all__ = ["JointRefinement"]


@dataclass(eq=False, repr=False, kw_only=True)
class JointRefinement(BaseEstimator):
    """Fits samples to all constraints to the last digits, each by itself, and the batch at once.

    A `Descent` forms no matrix, and where equations hardly outnumber unknowns its steps stop early. Here the matrix of
    each sample is formed, and a few Gauss-Newton steps are exact.

    Where the network tail is known, the samples also have joint equations: the gradients ``D`` that it gives for the
    whole batch have to fulfil ``P Q = I``, with ``Q = U^T D``. Each sample by itself has to lie in the column space as
    the gradient shows it; together they have to give the gradient itself.

    Measured on one batch each of CIFAR-10 (decibels, of standardised pixels; after the descents, each by itself,
    together): sigmoid (80, 200) 76, 102, 110; GELU (80, 200) 118, 119, 125; tanh (125, 200) with two subspaces 70, 94,
    112; GELU (140, 200) with three 78, 92, 115. (By hand, while it was built; no record holds them.)

    Parameters
    ----------
    widest : int, default=400
        Width of layers, other than heads, up to which it is used; beyond, the matrices take longer than the search.
    n_alone, n_together, n_together_wide : int, default=12, 4 and 1
        Steps at most for each sample by itself, for the batch, and for the batch at wider heads. (200 samples in 1000
        classes: the first step took 3 s and left a millionth, the others 18 s and the same errors.)
    n_draws : int, default=2
        Number of draws of the noise that estimate the error of the batch.
    agreeing : float, default=3
        Largest residual of the joint equations over that of each sample's own, both over their noise. Of 100 random
        problems, most stay below 2; three batches with 9 to 15 were off by 5, 9 and 240 expected errors.
    n_products : (int, int), default=(300, 800)
        Steps of conjugate gradients for each step of the batch, and for each draw.
    solved : (float, float), default=(1e-8, 1e-14)
        Relative squared residual at which they stop. Directions that the equations hardly determine do not matter for a
        step, and decide its error: 1e-8 missed them in one of 500 hostile audits, whose inputs were off by 300 expected
        errors.
    lengths : tuple of float, default=(1, 1/4, 1/16)
        Shares of a step that are tried, until the cost of all equations is smaller.
    worth, ended : float, default=0.01 and 0.1
        Relative decrease of the cost that another step has to promise; and above which the iteration has not converged,
        so that there is no expected error: where a step promised 0.8, the batch was off by 300 expected errors.
    ridge : float, default=1e-12
        Keeps matrices with a unit diagonal regular.
    """

    widest: int = 400
    n_alone: int = 12
    n_together: int = 4
    n_together_wide: int = 1
    n_draws: int = 2
    agreeing: float = 3.0
    n_products: tuple[int, int] = (300, 800)
    solved: tuple[float, float] = (1e-8, 1e-14)
    lengths: tuple[float, ...] = (1.0, 0.25, 0.0625)
    worth: float = 0.01
    ended: float = 0.1
    ridge: float = 1e-12

    def alone(self, forward: NaturalCoordinates, equations: Constraint, inputs: torch.Tensor) -> torch.Tensor:
        """Fit ``p`` at their true scale, of shape (n, b), each by itself to equations, weighted by their noise."""
        coordinates, running = forward.coordinates(inputs), torch.arange(len(inputs))

        def solve(here: SquaresAt, gradient: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
            return InputSystems.of(here.matrices, self.ridge).solve(gradient)

        for _ in range(self.n_alone if len(inputs) else 0):
            z = forward.preactivations(coordinates)
            fitted = equations.settled(z).by_noise(z).of_some(running)

            def at(points: torch.Tensor, index: torch.Tensor, fitted: Constraint = fitted) -> SquaresAt:
                return forward.at(fitted.of_some(index), points)

            coordinates[running], is_open = gauss_newton(
                coordinates[running],
                at,
                solve,
                lambda here, before, after, points, number: after < (1 - self.worth) * before,
                n_steps=1,
                damping=torch.zeros_like(coordinates[running, :1]),
                lengths=self.lengths,
            )
            running = running[is_open]
            if len(running) == 0:
                break
        return forward.inputs(coordinates)

    def together(
        self,
        forward: NaturalCoordinates,
        equations: Constraint,
        tail: TailGradient,
        left: torch.Tensor,
        inputs: torch.Tensor,
    ) -> BatchSystem:
        """Fit the whole batch at once; return the equations at the minimiser.

        Parameters
        ----------
        forward : NaturalCoordinates
            The unknowns, without deflation.
        equations : Constraint
            Constraints that each sample fulfils by itself.
        tail : TailGradient
            The constraint of the network tail.
        left : torch.Tensor of shape (m, b)
            ``U``.
        inputs : torch.Tensor of shape (b, b)
            Rows ``p``, at their true scale.
        """
        here = BatchSystem.of(forward, equations, tail, left, inputs, self.ridge)
        for _ in range(self.n_together if len(left) <= self.widest else self.n_together_wide):
            if not here.promise >= self.worth:  # or not a number, where the tail gives an input no gradient
                break
            step = self._solved(here, here.goal, self.n_products[0], self.solved[0])[0] @ forward.axes.T
            for length in self.lengths:
                if here.cost_at(here.inputs + length * step) < here.cost:
                    break
            else:
                break
            here = BatchSystem.of(forward, equations, tail, left, here.inputs + length * step, self.ridge)
        return here

    def errors(self, here: BatchSystem, generator: torch.Generator) -> torch.Tensor | None:
        """Return draws of how the noise moves a batch that was fitted at once, of shape (n_draws, b, b).

        The noise is as large as the residual of all equations. None where these have no surplus to measure it by, where
        the batch is a spurious minimiser or none yet, or where the solver does not converge.

        Parameters
        ----------
        here : BatchSystem
            The equations at the minimiser of `together`.
        generator : torch.Generator
            Source of randomness.
        """
        is_minimum = here.disagreement <= self.agreeing and here.promise <= self.ended  # neither if not a number
        if here.n_spare <= 0 or not is_minimum:
            return None
        draws = []
        for _ in range(self.n_draws):
            change, is_solved = self._solved(here, here.draw(generator), self.n_products[1], self.solved[1])
            if not is_solved:
                return None
            draws.append(change @ here.batch.forward.axes.T)
        return torch.stack(draws) * (here.cost / here.n_spare).clamp(min=1.0).sqrt()

    @staticmethod
    def _solved(here: BatchSystem, goal: torch.Tensor, most_products: int, enough: float) -> tuple[torch.Tensor, bool]:
        """Return the changes with the right-hand side ``goal``, by preconditioned conjugate gradients."""
        return conjugate_gradient(
            here.times, here.blocks.about_solve, goal, n_products=most_products, enough=enough, each=False
        )

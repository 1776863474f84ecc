"""What every optimiser on the sphere shares: the abstract base, the result and the step schedule."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from sparsedl._validation import Strategy
from sparsedl.surrogates import Surrogate


@dataclass(frozen=True)
class OptimizationResult:
    """Where a batch of starts ended.

    Attributes
    ----------
    directions : torch.Tensor of shape (n_starts, n_components)
        Unit vectors, one a row.
    n_iter : int
        Iterations taken.
    """

    directions: torch.Tensor
    n_iter: int


class Optimizer(Strategy):
    """Minimises ``f(q) = mean_r phi((L q)_r)`` over the unit sphere, from many starts at once."""

    wants_white: ClassVar[bool] = False
    """True when the method relies on ``L^T L = n_samples I``, so that the search must not stretch the sphere."""

    ends_at_zeros: ClassVar[bool] = False
    """True when the entries that will vanish are below a hundredth where it ends, whatever the surrogate, so that what
    has too few of them is no column, and what has enough needs no more than polishing."""

    precision: ClassVar[torch.dtype] = torch.float64
    """In which the starts run; where they end is estimated again in double precision."""

    @property
    def starts_are_apart(self) -> bool:
        """Whether a start ends in the same place, whatever others run beside it."""
        return False

    def check_surrogate(self, surrogate: Surrogate) -> None:
        """Raise ``TypeError`` for a surrogate that the method cannot minimise. Called once by ``fit``."""

    @abstractmethod
    def minimize(self, observations: torch.Tensor, starts: torch.Tensor, surrogate: Surrogate) -> OptimizationResult:
        """Run every start at once.

        Parameters
        ----------
        observations : torch.Tensor of shape (n_samples, n_components)
            The whitened observations ``L``, with ``L^T L = n_samples I`` unless the search stretched the sphere.
        starts : torch.Tensor of shape (n_starts, n_components)
            Unit vectors, one a row.
        surrogate : Surrogate
            Supplies ``phi'``.
        """


@dataclass(eq=False, repr=False, kw_only=True)
class ScheduledOptimizer(Optimizer):
    """An optimiser whose learning rate drops by ``decay`` at each milestone.

    Parameters
    ----------
    learning_rate : float
        First learning rate; about the angle, in radians, that a first step covers.
    max_iter : int
        Number of iterations.
    milestones : tuple of int
        Iterations at which the learning rate is multiplied by ``decay``.
    decay : float
        Factor at each milestone, in (0, 1].
    """

    positive, counts = ("learning_rate", "decay"), ("max_iter",)
    learning_rate: float
    max_iter: int = 500
    milestones: tuple[int, ...] = (200, 400)
    decay: float = 0.1

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless rates and counts are positive and ``decay`` is at most one."""
        super().check_parameters()
        if self.decay > 1:
            raise ValueError(f"{type(self).__name__}: decay must be at most 1, got {self.decay!r}")

    def follow(
        self, stepper: torch.optim.Optimizer, observations: torch.Tensor, surrogate: Surrogate
    ) -> OptimizationResult:
        """Let an optimiser of torch's kind drive the steps of its one parameter, the directions."""
        (group,) = stepper.param_groups
        (directions,) = group["params"]
        for iteration in range(self.max_iter):
            group["lr"] = self.learning_rate_at(iteration)
            directions.grad = euclidean_gradient(observations, directions.detach(), surrogate)
            stepper.step()
        return OptimizationResult(directions=directions.detach(), n_iter=self.max_iter)

    def learning_rate_at(self, iteration: int) -> float:
        """Return the learning rate of one iteration, counted from zero."""
        return self.learning_rate * self.decay ** sum(iteration >= milestone for milestone in self.milestones)


@dataclass(eq=False, repr=False, kw_only=True)
class SmoothedOptimizer(Optimizer):
    """An optimiser that smooths the surrogate at zero, less and less.

    Parameters
    ----------
    max_iter : int
        Number of iterations.
    smoothing : float
        First width ``s``; a unit direction has entries of mean square one.
    final_smoothing : float
        Last width; it shrinks geometrically.
    """

    positive, counts = ("smoothing", "final_smoothing"), ("max_iter",)
    max_iter: int
    smoothing: float
    final_smoothing: float

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless all parameters are positive and the smoothing does not grow."""
        super().check_parameters()
        if self.final_smoothing > self.smoothing:
            raise ValueError(f"{type(self).__name__}: final_smoothing must be at most smoothing, {self.smoothing!r}")

    def smoothing_at(self, iteration: int) -> float:
        """Return the smoothing of one iteration, counted from zero."""
        shrinkage = self.final_smoothing / self.smoothing
        return self.smoothing * shrinkage ** (iteration / max(self.max_iter - 1, 1))


def euclidean_gradient(observations: torch.Tensor, directions: torch.Tensor, surrogate: Surrogate) -> torch.Tensor:
    """Return the gradient of ``mean_r phi((L q)_r)`` for each direction: two matrix products for all of them."""
    entries = directions @ observations.T
    return surrogate.derivative(entries) @ observations / observations.shape[0]

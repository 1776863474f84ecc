"""Projected gradient descent, the second optimiser of SPEAR++."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsedl.linalg import normalized
from sparsedl.optimizers.optimizer import OptimizationResult, ScheduledOptimizer, euclidean_gradient
from sparsedl.surrogates import Surrogate


@dataclass(eq=False, repr=False, kw_only=True)
class ProjectedGradient(ScheduledOptimizer):
    """A gradient step in space, then back to the sphere; the schedule of `RiemannianAdam` at a smaller rate.

    Parameters
    ----------
    learning_rate : float, default=0.6
        The paper's rate is not legible in our copy; chosen by measurement.
    max_iter : int, default=500
        Number of iterations.
    milestones : tuple of int, default=(200, 400)
        Iterations at which the learning rate is multiplied by ``decay``.
    decay : float, default=0.1
        Factor at each milestone.

    References
    ----------
    SPEAR++ (2025), Table 2.
    """

    learning_rate: float = 0.6

    def minimize(self, observations: torch.Tensor, starts: torch.Tensor, surrogate: Surrogate) -> OptimizationResult:
        """Run every start for ``max_iter`` iterations."""
        directions = starts
        for iteration in range(self.max_iter):
            step = self.learning_rate_at(iteration) * euclidean_gradient(observations, directions, surrogate)
            directions = normalized(directions - step, dim=1)
        return OptimizationResult(directions=directions, n_iter=self.max_iter)

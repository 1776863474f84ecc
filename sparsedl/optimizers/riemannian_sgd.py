"""Riemannian gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsedl.optimizers.on_sphere import ManifoldParameter, SGDOnManifold, Sphere
from sparsedl.optimizers.optimizer import OptimizationResult, ScheduledOptimizer
from sparsedl.surrogates import Surrogate


@dataclass(eq=False, repr=False, kw_only=True)
class RiemannianSGD(ScheduledOptimizer):
    """Gradient descent on the sphere, as implemented by geoopt, without momentum.

    Parameters
    ----------
    learning_rate : float, default=3.0
        First learning rate: hot enough that starts leave shallow minima before the first milestone.
    max_iter : int, default=500
        Number of iterations.
    milestones : tuple of int, default=(200, 400)
        Iterations at which the learning rate is multiplied by ``decay``.
    decay : float, default=0.1
        Factor at each milestone.

    References
    ----------
    Bonnabel, "Stochastic gradient descent on Riemannian manifolds", IEEE Trans. Autom. Control 2013.
    """

    learning_rate: float = 3.0

    def minimize(self, observations: torch.Tensor, starts: torch.Tensor, surrogate: Surrogate) -> OptimizationResult:
        """Run every start for ``max_iter`` iterations."""
        directions = ManifoldParameter(starts.clone(), manifold=Sphere())
        descent = SGDOnManifold([directions], lr=self.learning_rate, stabilize=1)
        return self.follow(descent, observations, surrogate)

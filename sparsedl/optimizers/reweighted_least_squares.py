"""Iteratively reweighted least squares on the sphere: tens of iterations instead of hundreds."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsedl.linalg import reweight, solve_weighted
from sparsedl.optimizers.optimizer import OptimizationResult, SmoothedOptimizer
from sparsedl.surrogates import Surrogate


@dataclass(eq=False, repr=False, kw_only=True)
class ReweightedLeastSquares(SmoothedOptimizer):
    """Majorise ``phi`` by parabolas and take one step of inverse iteration on the weighted Gram matrix.

    With weights ``w_r = phi'(t_r) / t_r`` at ``t_r = sqrt((L q)_r^2 + s^2)``, each iteration replaces ``q`` by
    ``(L^T diag(w) L)^-1 q``, normalised, and shrinks the smoothing ``s``.

    Parameters
    ----------
    max_iter : int, default=30
        Number of iterations.
    smoothing : float, default=1.0
        First ``s``; a unit direction has entries of mean square one.
    final_smoothing : float, default=1e-3
        Last ``s``; it shrinks geometrically.

    References
    ----------
    Chartrand and Yin, "Iteratively reweighted algorithms for compressive sensing", ICASSP 2008; Qu, Sun and Wright,
    "Finding a sparse vector in a subspace", NeurIPS 2014, for the alternation it accelerates.
    """

    max_iter: int = 30
    smoothing: float = 1.0
    final_smoothing: float = 1e-3

    def minimize(self, observations: torch.Tensor, starts: torch.Tensor, surrogate: Surrogate) -> OptimizationResult:
        """Run every start for ``max_iter`` iterations."""
        directions = reweight(
            starts,
            observations,
            scales=[self.smoothing_at(iteration) for iteration in range(self.max_iter)],
            weigh=surrogate.weights,
            step=lambda weights, last: solve_weighted(observations, weights, last),
        )
        return OptimizationResult(directions=directions, n_iter=self.max_iter)

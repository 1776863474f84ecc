"""The Riemannian subgradient method with geometrically diminishing steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsedl.linalg import normalized
from sparsedl.optimizers.optimizer import OptimizationResult, Optimizer, euclidean_gradient
from sparsedl.surrogates import Surrogate


@dataclass(eq=False, repr=False, kw_only=True)
class DiminishingSubgradient(Optimizer):
    """Subgradient steps of length ``step * ratio ** t``: linear convergence to the sharp minima of `L1` and `LogSum`.

    Parameters
    ----------
    step : float, default=1.0
        Length of the first step, in radians.
    ratio : float, default=0.98
        Factor from one step to the next, in (0, 1).
    max_iter : int, default=400
        Number of iterations.

    References
    ----------
    Zhu, Ding, Robinson, Tsakiris and Vidal, "A linearly convergent method for non-smooth non-convex optimization on
    the Grassmannian", NeurIPS 2019; Bai, Jiang and Sun, ICLR 2019.
    """

    positive, counts = ("step", "ratio"), ("max_iter",)
    step: float = 1.0
    ratio: float = 0.98
    max_iter: int = 400

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless all parameters are positive and ``ratio`` is below one."""
        super().check_parameters()
        if self.ratio >= 1:
            raise ValueError(f"{type(self).__name__}: ratio must be below 1, got {self.ratio!r}")

    def minimize(self, observations: torch.Tensor, starts: torch.Tensor, surrogate: Surrogate) -> OptimizationResult:
        """Run every start for ``max_iter`` iterations."""
        directions, length = starts, self.step
        for _ in range(self.max_iter):
            gradient = euclidean_gradient(observations, directions, surrogate)
            tangent = gradient - (gradient * directions).sum(dim=1, keepdim=True) * directions
            directions = normalized(directions - length * normalized(tangent, dim=1), dim=1)
            length *= self.ratio
        return OptimizationResult(directions=directions, n_iter=self.max_iter)

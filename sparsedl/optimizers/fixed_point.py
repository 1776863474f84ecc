"""The fixed-point iteration of FastICA with a shrinking smoothing: as good as hundreds of gradient steps in tens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsedl.linalg import normalized
from sparsedl.optimizers.optimizer import OptimizationResult, SmoothedOptimizer
from sparsedl.surrogates import Surrogate


@dataclass(eq=False, repr=False, kw_only=True)
class FixedPoint(SmoothedOptimizer):
    """Newton's method with the Hessian ``E[g'(t) x x^T] ~ E[g'(t)] E[x x^T]``: two products an iteration.

    With ``t = L q`` and ``g(t) = phi'(r) t / r`` at ``r = sqrt(t^2 + s^2)``, each iteration replaces ``q`` by
    ``L^T g(t) / n - mean(g'(t)) q``, normalised, and shrinks the smoothing ``s``. The shrinking is what makes it work:
    with a fixed ``s`` far fewer starts end in a column. Where the search stretched the sphere, the covariance is no
    longer the identity but still diagonal, and the Hessian takes that in.

    Parameters
    ----------
    max_iter : int, default=60
        Number of iterations.
    smoothing : float, default=1.0
        First ``s``; a unit direction has entries of mean square one.
    final_smoothing : float, default=0.05
        Last ``s``; it shrinks geometrically. Rounding does the rest.

    References
    ----------
    Hyvarinen, "Fast and robust fixed-point algorithms for independent component analysis", IEEE Trans. Neural Netw.
    1999, Eq. 20.
    """

    max_iter: int = 60
    smoothing: float = 1.0
    final_smoothing: float = 0.05

    def minimize(self, observations: torch.Tensor, starts: torch.Tensor, surrogate: Surrogate) -> OptimizationResult:
        """Run every start for ``max_iter`` iterations."""
        directions, spread = starts, observations.square().mean(dim=0)
        for iteration in range(self.max_iter):
            smoothing = self.smoothing_at(iteration)
            entries = directions @ observations.T
            slopes = _smoothed(surrogate, entries, smoothing)
            step = 1e-4 * smoothing
            ahead = _smoothed(surrogate, entries.abs() + step, smoothing)  # g is odd, so g' may be taken at |t|
            curvature = (ahead - slopes.abs()).mean(dim=1, keepdim=True) / step
            multiplier = (slopes * entries).mean(dim=1, keepdim=True)
            gradient = slopes @ observations / len(observations) - multiplier * directions
            # Newton's step, times the factor that is its denominator on white data: there the ratio is one.
            gap = curvature - multiplier
            ratio = (gap / (curvature * spread - multiplier)).nan_to_num(1.0).clamp(0, 1)
            directions = normalized(gap * directions - ratio * gradient, dim=1)
        return OptimizationResult(directions=directions, n_iter=self.max_iter)


def _smoothed(surrogate: Surrogate, entries: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Return ``phi'(r) t / r`` with ``r = sqrt(t^2 + s^2)``, whose sign at zero is continuous."""
    moduli = (entries.square() + smoothing**2).sqrt_()
    return surrogate.derivative(moduli).mul_(entries).div_(moduli)

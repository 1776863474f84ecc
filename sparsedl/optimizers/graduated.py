"""Graduated non-convexity on the sphere: the surrogate is smoothed hard at first, and less with every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sparsedl._validation import check_positive
from sparsedl.optimizers.optimizer import OptimizationResult, Optimizer
from sparsedl.surrogates import Surrogate


@dataclass(eq=False, repr=False, kw_only=True)
class Graduated(Optimizer):
    """Gradient steps with momentum, as long as the touching parabolas allow, while the smoothing shrinks.

    With weights ``w_r = phi'(t_r) / t_r`` at ``t_r = sqrt((L q)_r^2 + s^2)``, each step is
    ``v <- momentum v - grad / (mean(w) c)``, ``q <- q + v``, normalised, where ``grad`` is the tangent part of
    ``L^T (w L q) / n`` and ``c = mean(L^2)`` for each coordinate: one on white observations, and the square of the
    price along a stretched one. The parabolas that touch the surrogate have the mean curvature ``mean(w) c``. A step
    costs two products for all starts together. It goes with any surrogate: smoothed, `Cauchy` is ``log(t^2 + s^2)``
    and `GemanMcClure` is ``-1 / (t^2 + s^2)``.

    Where samples are few, how hot the smoothing starts decides which columns are reached: no single value reaches all.
    A pair spreads it over the starts.

    Parameters
    ----------
    max_iter : int, default=100
        Number of steps.
    smoothing : float or (float, float), default=1.0
        First ``s``; a unit direction has entries of mean square one. A pair is spread geometrically over the starts,
        in their order.
    final_smoothing : float, default=0.02
        Last ``s``, of all starts; it shrinks geometrically.
    momentum : float, default=0.9
        Share of the last step that is taken again, below 1. With ``log(t^2 + s^2)`` at (k, samples a component,
        zeros) = (50, 5, 0.5), 75 steps with 0.9 hit a column as often as 300 steps without (one problem, 2,048 starts).

    References
    ----------
    Blake and Zisserman, "Visual Reconstruction", MIT Press 1987; Mobahi and Fisher, "On the link between Gaussian
    homotopy continuation and convex envelopes", EMMCVPR 2015, for graduated non-convexity. Polyak, "Some methods of
    speeding up the convergence of iteration methods", 1964, for the momentum.
    """

    ends_at_zeros: ClassVar[bool] = True
    precision: ClassVar[torch.dtype] = torch.float32
    positive, counts = ("final_smoothing", "momentum"), ("max_iter",)
    max_iter: int = 100
    smoothing: float | tuple[float, float] = 1.0
    final_smoothing: float = 0.02
    momentum: float = 0.9

    @property
    def starts_are_apart(self) -> bool:
        """Whether the smoothing is that of all starts."""
        return not isinstance(self.smoothing, tuple)

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless all are positive, the smoothing does not grow and the momentum is below one."""
        super().check_parameters()
        ends = self.smoothing if isinstance(self.smoothing, tuple) and len(self.smoothing) == 2 else (self.smoothing,)
        for end in ends:
            check_positive(self, "smoothing", end)
        if self.final_smoothing > min(ends):
            raise ValueError(f"{type(self).__name__}: final_smoothing must be at most smoothing, {self.smoothing!r}")
        if self.momentum >= 1:
            raise ValueError(f"{type(self).__name__}: momentum must be below 1, got {self.momentum!r}")

    def smoothings(self, n_starts: int) -> torch.Tensor:
        """Return the smoothing of each step and start, of shape (max_iter, n_starts), or (max_iter, 1) if all agree."""
        hot = torch.tensor([self.smoothing], dtype=torch.float64).flatten().log()
        if len(hot) == 2:
            hot = hot[0] + (hot[1] - hot[0]) * torch.linspace(0, 1, n_starts, dtype=torch.float64)
        cold = torch.tensor(self.final_smoothing, dtype=torch.float64).log()
        progress = torch.linspace(0, 1, self.max_iter, dtype=torch.float64)
        return (hot + progress[:, None] * (cold - hot)).exp()

    def minimize(self, observations: torch.Tensor, starts: torch.Tensor, surrogate: Surrogate) -> OptimizationResult:
        """Run every start for ``max_iter`` steps, in the precision of the observations."""
        directions, velocity = starts.clone(), torch.zeros_like(starts)
        transposed = observations.T.contiguous()
        precision = observations.square().mean(dim=0).reciprocal_()
        entries, gradient = starts.new_empty((len(starts), len(observations))), torch.empty_like(starts)
        schedule = self.smoothings(len(starts)).to(observations)[:, :, None]
        for smoothing in schedule:
            torch.mm(directions, transposed, out=entries)
            weights = surrogate.weights(entries, smoothing)
            curvature = weights.sum(dim=1, keepdim=True)
            torch.mm(entries.mul_(weights), observations, out=gradient)
            gradient.addcmul_(_along(gradient, directions), directions, value=-1).div_(curvature).mul_(precision)
            directions.add_(velocity.mul_(self.momentum).sub_(gradient))
            directions.div_(torch.linalg.vector_norm(directions, dim=1, keepdim=True))
            velocity.addcmul_(_along(velocity, directions), directions, value=-1)
        return OptimizationResult(directions=directions, n_iter=self.max_iter)


def _along(vectors: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """Return the part of each vector along its unit direction, of shape (n_vectors, 1)."""
    return torch.linalg.vecdot(vectors, directions).unsqueeze_(1)

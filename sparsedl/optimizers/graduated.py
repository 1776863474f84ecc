"""Graduated non-convexity on the sphere: the surrogate is smoothed hard at first, and less with every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sparsedl._validation import check_positive
from sparsedl.optimizers._base import OptimizationResult, Optimizer
from sparsedl.surrogates import Surrogate


@dataclass(eq=False, repr=False, kw_only=True)
class Graduated(Optimizer):
    """Gradient steps as long as the curvature of the touching parabolas allows, while the smoothing shrinks.

    With weights ``w_r = phi'(t_r) / t_r`` at ``t_r = sqrt((L q)_r^2 + s^2)``, each step is
    ``q <- q - grad / mean(w)``, normalised, where ``grad`` is the tangent part of ``L^T (w L q) / n``: on white
    observations the parabolas that touch the surrogate have the mean curvature ``mean(w)``. A step costs two products
    for all starts together. It goes with any surrogate; the smoothed `Cauchy` is ``log(t^2 + s^2)``.

    Where samples are few, how hot the smoothing starts decides which columns are reached: no single value reaches all.
    A pair spreads it over the starts.

    Parameters
    ----------
    max_iter : int, default=150
        Number of steps.
    smoothing : float or (float, float), default=1.0
        First ``s``; a unit direction has entries of mean square one. A pair is spread geometrically over the starts,
        in their order.
    final_smoothing : float, default=1e-3
        Last ``s``, of all starts; it shrinks geometrically.

    References
    ----------
    Blake and Zisserman, "Visual Reconstruction", MIT Press 1987; Mobahi and Fisher, "On the link between Gaussian
    homotopy continuation and convex envelopes", EMMCVPR 2015, for graduated non-convexity.
    """

    ends_at_zeros: ClassVar[bool] = True
    precision: ClassVar[torch.dtype] = torch.float32
    max_iter: int = 150
    smoothing: float | tuple[float, float] = 1.0
    final_smoothing: float = 1e-3

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless all parameters are positive and the smoothing does not grow."""
        check_positive(self, "max_iter", self.max_iter, integer=True)
        ends = self.smoothing if isinstance(self.smoothing, tuple) and len(self.smoothing) == 2 else (self.smoothing,)
        for end in ends:
            check_positive(self, "smoothing", end)
        check_positive(self, "final_smoothing", self.final_smoothing)
        if self.final_smoothing > min(ends):
            raise ValueError(f"{type(self).__name__}: final_smoothing must be at most smoothing, {self.smoothing!r}")

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
        directions = starts.clone()
        transposed = observations.T.contiguous()
        entries, gradient = starts.new_empty((len(starts), len(observations))), torch.empty_like(starts)
        schedule = self.smoothings(len(starts)).to(observations)[:, :, None]
        for smoothing in schedule:
            torch.mm(directions, transposed, out=entries)
            weights = surrogate.weights(entries, smoothing)
            size = weights.sum(dim=1, keepdim=True)
            torch.mm(entries.mul_(weights), observations, out=gradient)
            # q - (grad - <grad, q> q) / mean(w), times n mean(w): the length is lost anyway.
            size += torch.linalg.vecdot(gradient, directions).unsqueeze_(1)
            directions.mul_(size).sub_(gradient)
            directions.div_(torch.linalg.vector_norm(directions, dim=1, keepdim=True))
        return OptimizationResult(directions=directions, n_iter=self.max_iter)

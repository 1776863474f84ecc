"""Polishing: from directions close to columns to the columns themselves, all of them by a few products.

`sparsedl.rounding` jumps to the sparsest direction around, at one eigenvalue problem after the other; this takes what
is nearly a column to the last digit, where it is.
"""

from __future__ import annotations

import torch

from sparsedl.linalg import normalized
from sparsedl.zeros import ZeroTest

__all__ = ["polish"]

WIDTHS = (1e-2, 1e-3, 1e-5, 1e-8, 0.0)
"""Scales on which entries count as zeros, one after the other, where the noise is less: about the squares of each
other, since what is left of a wrong row after one of them is its weight."""

SINGLE_FROM = 1e-3
"""Widths from which on single precision will do: its rounding is a thousandth of that."""

LEAST_WEIGHT = 1e-3
"""Weights below this are zero: a row so far off says nothing."""


def polish(directions: torch.Tensor, test: ZeroTest, *, max_iter: int = 60, accuracy: float = 1e-2) -> torch.Tensor:
    """Return directions at which the entries near zero vanish, by reweighted least squares on the sphere.

    Parameters
    ----------
    directions : torch.Tensor of shape (n_directions, n_components)
        Unit rows, off by about the first width at most.
    test : ZeroTest
        Observations and their noise: no width is narrower than that.
    max_iter : int, default=60
        Steps of conjugate gradients for each width, at most. On 500 rows of 100 components 20 to 30 do.
    accuracy : float, default=1e-2
        Residual, relative to that at first, at which one width is done with.

    References
    ----------
    Chartrand and Yin, "Iteratively reweighted algorithms for compressive sensing", ICASSP 2008, for the weights.
    """
    if directions.shape[1] == 1:
        return directions
    single = test.observations.to(torch.float32)
    for width in WIDTHS:
        observations = single if width >= SINGLE_FROM else test.observations
        directions = directions.to(observations.dtype)
        entries = directions @ observations.T
        scale = (test.refit_multiple / test.noise_multiple * test.tolerances(directions.double())).clamp(min=width)
        weights = (entries / scale.to(entries.dtype)).square_().add_(1).reciprocal_()
        weights[weights < LEAST_WEIGHT] = 0
        directions = normalized(directions + _step(directions, entries, weights, observations, max_iter, accuracy))
    return directions


def _step(
    directions: torch.Tensor,
    entries: torch.Tensor,
    weights: torch.Tensor,
    observations: torch.Tensor,
    max_iter: int,
    accuracy: float,
) -> torch.Tensor:
    """Return the tangent step that minimises ``sum_r w_r (L (q + step))_r^2`` for each direction, all at once."""

    def tangent(x: torch.Tensor) -> torch.Tensor:
        return x.sub_(torch.linalg.vecdot(x, directions)[:, None] * directions)

    tiny = torch.finfo(directions.dtype).tiny
    residual = tangent((entries * weights) @ observations).neg_()
    step, search = torch.zeros_like(directions), residual.clone()
    size = torch.linalg.vecdot(residual, residual)
    goal = size * accuracy**2
    for iteration in range(max_iter):
        image = tangent((search @ observations.T).mul_(weights) @ observations)
        length = (size / torch.linalg.vecdot(search, image).clamp(min=tiny))[:, None]
        step.addcmul_(length, search)
        residual.addcmul_(length, image, value=-1)
        before, size = size, torch.linalg.vecdot(residual, residual)
        if iteration % 4 == 3 and bool((size <= goal).all()):
            break
        search.mul_((size / before.clamp(min=tiny))[:, None]).add_(residual)
    return step

"""Polishing: from directions close to columns to the columns themselves, all of them by a few products.

`sparsedl.rounding` jumps to the sparsest direction around, at one eigenvalue problem after the other; this takes what
is nearly a column to the last digit, where it is.
"""

from __future__ import annotations

import torch

from sparsedl.linalg import normalized
from sparsedl.zeros import ZeroTest

__all__ = ["polish"]

FIRST_WIDTH, NARROWER, SPREAD = 1e-2, 10.0, 10.0
"""Scale on which entries count as zeros at first; the next one is narrower by this at least, and so many times the root
mean square of what the last one left of the zeros."""

MOST_WIDTHS = 8
"""Widths, one after the other, at most; in double precision five reach rounding."""

SINGLE_FROM = 1e-3
"""Width from which on single precision will do: its rounding is a thousandth of that."""

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
    single, width = test.observations.to(torch.float32), directions.new_full((len(directions), 1), FIRST_WIDTH)
    for _ in range(MOST_WIDTHS):
        observations = single if bool((width >= SINGLE_FROM).all()) else test.observations
        directions = directions.to(observations.dtype)
        entries = directions @ observations.T
        noise = test.refit_multiple / test.noise_multiple * test.tolerances(directions.double())
        weights = (entries / torch.maximum(noise, width).to(entries.dtype)).square_().add_(1).reciprocal_()
        weights[weights < LEAST_WEIGHT] = 0
        directions = normalized(directions + _step(directions, entries, weights, observations, max_iter, accuracy))
        if bool((width <= noise.amax(dim=1, keepdim=True)).all()):
            break
        left = torch.linalg.vector_norm((directions @ observations.T) * (weights > 0.5), dim=1, keepdim=True)
        left = left / (weights > 0.5).sum(dim=1, keepdim=True).clamp(min=1).to(left.dtype).sqrt()
        width = torch.minimum(width / NARROWER, SPREAD * left.double())
    return directions.double()


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
        # One that is solved stays: its next steps are rounding, whose squares underflow in single precision.
        length = torch.where(size > goal, size / torch.linalg.vecdot(search, image).clamp(min=tiny), 0.0)[:, None]
        step.addcmul_(length, search)
        residual.addcmul_(length, image, value=-1)
        before, size = size, torch.linalg.vecdot(residual, residual)
        if iteration % 4 == 3 and bool((size <= goal).all()):
            break
        search.mul_((size / before.clamp(min=tiny))[:, None]).add_(residual)
    return step

"""The last steps of pictures that are nearly right, with the Jacobian formed.

Where some directions of a picture are held a thousand times less than others, conjugate gradients need thousands of
products for what is one linear system. Behind three convolutions with GroupNorm and GELU, a picture of CIFAR-10 came
from an error of 2e-2 to 1e-3 with six Jacobians, 7 s each on a core.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from sparsedl_fl.propagate.pictures.determinacy import MOST_DENSE, jacobian_at
from sparsedl_fl.propagate.pictures.fitting import MOST_BENT, Fit, curvature_along
from sparsedl_fl.propagate.pictures.front import Front

__all__ = ["finished"]

NEARLY = 1e-3
"""Deviation of the features, over their size, from which on a picture is nearly right."""

N_JACOBIANS, SLOW = 20, 0.9
"""Jacobians that are formed for a picture at most, and the share of the cost above which a step was the last one."""

DAMPINGS = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5)
"""Of the steps that are tried with each Jacobian, over the mean of the diagonal of ``J^T J``."""


def finished(front: Front, features: torch.Tensor, fit: Fit, floors: torch.Tensor) -> Fit:
    """Return a fit whose pictures that are nearly right, and not yet at their floor, are right.

    Parameters
    ----------
    front : Front
    features : torch.Tensor of shape (b, n_features)
    fit : Fit
    floors : torch.Tensor of shape (b,)
        Cost that the features' errors explain.
    """
    nearly = NEARLY**2 * features.square().sum(dim=1)
    wanted = ((fit.costs > floors) & (fit.costs <= nearly)).nonzero()[:, 0].tolist()
    if front.n_pixels > MOST_DENSE or not wanted:
        return fit
    pictures, costs, low = fit.pictures.clone(), fit.costs.clone(), front.to(torch.float32)
    for index in wanted:
        pictures[index], costs[index] = _finished(front, low, features[index], pictures[index], costs[index])
    return replace(fit, pictures=pictures, costs=costs)


def _finished(
    front: Front, low: Front, features: torch.Tensor, picture: torch.Tensor, cost: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take Gauss-Newton steps with their second-order part, each with the damping that serves best."""
    with torch.no_grad():
        here = front(picture[None])[0]
        for _ in range(N_JACOBIANS):
            rows = jacobian_at(low, picture.float()).double()
            gram, last = rows @ rows.T, cost
            typical, start = float(gram.diagonal().mean()), picture
            gradient = rows @ (here - features)
            added = 0.0
            for damping in DAMPINGS:
                gram.diagonal().add_((damping - added) * typical)
                added = damping
                factor, failed = torch.linalg.cholesky_ex(gram)
                if failed:
                    continue
                step = _bent(front, rows, factor, start, here, gradient)
                found = front((start - step)[None])[0]
                after = (found - features).square().sum()
                if after < cost:
                    picture, cost = start - step, after
            here = front(picture[None])[0]
            if not cost < SLOW * last:
                break
    return picture, cost


def _bent(
    front: Front,
    rows: torch.Tensor,
    factor: torch.Tensor,
    picture: torch.Tensor,
    here: torch.Tensor,
    gradient: torch.Tensor,
) -> torch.Tensor:
    """Return a step with its second-order part: along what is hardly held, the network bends most."""
    step = torch.cholesky_solve(gradient[:, None], factor)[:, 0]
    curvature = curvature_along(front, picture[None], here[None], step[None], (step @ rows)[None])[0]
    bend = torch.cholesky_solve((rows @ curvature)[:, None], factor)[:, 0]
    return step + 0.5 * bend if bend.norm() < MOST_BENT * step.norm() else step

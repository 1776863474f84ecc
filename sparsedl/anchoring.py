"""The endgame: the last columns by robust regression on the ones already found.

With most columns known, a missing one is ``q = r + F c`` up to scale, ``r`` in the complement of the span ``F`` of
those found. Minimising ``sum_r phi((L q)_r)`` subject to ``<r, q> = 1`` then shuts the known columns out altogether,
since they are orthogonal to ``r``, and for `L1` it is a convex problem: the linear programme of Spielman et al., with
an anchor that knows what was found.
"""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from sparsedl.linalg import reweight, solve_weighted
from sparsedl.surrogates import Surrogate

__all__ = ["anchored_directions", "draw_anchors"]

N_ITERATIONS = 30
SMOOTHING, FINAL_SMOOTHING = 0.3, 1e-3
_TILT = 0.5


def draw_anchors(found: torch.Tensor, n_anchors: int, generator: torch.Generator) -> torch.Tensor:
    """Draw anchors for a basis of which some columns are missing.

    The first half lies in the complement of the columns found, the second half leans out of it: another hyperplane,
    and another chance.

    Parameters
    ----------
    found : torch.Tensor of shape (n_found, n_components)
        Independent columns.
    n_anchors : int
        Number of anchors.
    generator : torch.Generator
        Source of randomness.

    Returns
    -------
    torch.Tensor of shape (n_anchors, n_components)
        Unit rows.
    """
    n_found, n_components = found.shape
    complement = torch.linalg.qr(found.T, mode="complete")[0][:, n_found:]
    weights = torch.randn((n_anchors, n_components - n_found), generator=generator, dtype=found.dtype)
    anchors = normalize(weights @ complement.T, dim=1)
    lean = normalize(torch.randn((n_anchors, n_components), generator=generator, dtype=found.dtype), dim=1)
    size = _TILT * torch.rand((n_anchors, 1), generator=generator, dtype=found.dtype)
    size[: n_anchors // 2] = 0
    return normalize(anchors + size * lean, dim=1)


def anchored_directions(
    observations: torch.Tensor, anchors: torch.Tensor, surrogate: Surrogate, generator: torch.Generator
) -> torch.Tensor:
    """Minimise the surrogate subject to ``<r, q> = 1`` by reweighted least squares, for all anchors at once.

    Parameters
    ----------
    observations : torch.Tensor of shape (n_samples, n_components)
        Whitened observations ``L``.
    anchors : torch.Tensor of shape (n_anchors, n_components)
        Unit rows ``r``.
    surrogate : Surrogate
        Supplies the weights ``phi'(t) / t``.
    generator : torch.Generator
        Draws where each regression starts.

    Returns
    -------
    torch.Tensor of shape (n_anchors, n_components)
        Unit rows.

    References
    ----------
    Spielman, Wang and Wright, "Exact recovery of sparsely-used dictionaries", COLT 2012, for the constraint.
    """
    noise = torch.randn(anchors.shape, generator=generator, dtype=anchors.dtype)
    directions = normalize(anchors + _TILT * normalize(noise, dim=1), dim=1)
    shrinkage = (FINAL_SMOOTHING / SMOOTHING) ** (1 / (N_ITERATIONS - 1))
    return reweight(
        directions,
        observations,
        scales=[SMOOTHING * shrinkage**iteration for iteration in range(N_ITERATIONS)],
        weigh=surrogate.weights,
        step=lambda weights, _: solve_weighted(observations, weights, anchors),
    )

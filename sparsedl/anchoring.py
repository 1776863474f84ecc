"""The endgame: the last columns by robust regression on the ones already found.

With most columns known, a missing one is ``q = r + F c`` up to scale, ``r`` in the complement of the span ``F`` of
those found. Minimising ``sum_r phi((L q)_r)`` subject to ``<r, q> = 1`` then shuts the known columns out altogether,
since they are orthogonal to ``r``, and for `L1` it is a convex problem: the linear programme of Spielman et al., with
an anchor that knows what was found.
"""

from __future__ import annotations

import torch

from sparsedl.linalg import normalized, reweight, solve_weighted
from sparsedl.surrogates import Surrogate

__all__ = ["anchored_directions", "draw_anchors"]


def draw_anchors(found: torch.Tensor, n_anchors: int, generator: torch.Generator, *, lean: float = 0.5) -> torch.Tensor:
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
    lean : float, default=0.5
        How far the second half leans out at most.

    Returns
    -------
    torch.Tensor of shape (n_anchors, n_components)
        Unit rows.
    """
    n_found, n_components = found.shape
    complement = torch.linalg.qr(found.T, mode="complete")[0][:, n_found:]
    weights = torch.randn((n_anchors, n_components - n_found), generator=generator, dtype=found.dtype)
    anchors = normalized(weights @ complement.T, dim=1)
    sideways = normalized(torch.randn((n_anchors, n_components), generator=generator, dtype=found.dtype), dim=1)
    size = lean * torch.rand((n_anchors, 1), generator=generator, dtype=found.dtype)
    size[: n_anchors // 2] = 0
    return normalized(anchors + size * sideways, dim=1)


def anchored_directions(
    observations: torch.Tensor,
    anchors: torch.Tensor,
    surrogate: Surrogate,
    generator: torch.Generator,
    *,
    n_iterations: int = 30,
    smoothings: tuple[float, float] = (0.3, 1e-3),
    lean: float = 0.5,
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
    n_iterations : int, default=30
        Reweightings.
    smoothings : (float, float), default=(0.3, 1e-3)
        First and last scale on which entries count as zeros.
    lean : float, default=0.5
        How far a start leans away from its anchor.

    Returns
    -------
    torch.Tensor of shape (n_anchors, n_components)
        Unit rows.

    References
    ----------
    Spielman, Wang and Wright, "Exact recovery of sparsely-used dictionaries", COLT 2012, for the constraint.
    """
    noise = torch.randn(anchors.shape, generator=generator, dtype=anchors.dtype)
    directions = normalized(anchors + lean * normalized(noise, dim=1), dim=1)
    shrinkage = (smoothings[1] / smoothings[0]) ** (1 / (n_iterations - 1))
    return reweight(
        directions,
        observations,
        scales=[smoothings[0] * shrinkage**iteration for iteration in range(n_iterations)],
        weigh=surrogate.weights,
        step=lambda weights, _: solve_weighted(observations, weights, anchors),
    )

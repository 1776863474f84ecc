"""Preconditioned conjugate gradients, of one system or of many at once."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["conjugate_gradient"]

Map = Callable[[torch.Tensor], torch.Tensor]


def conjugate_gradient(
    times: Map, precondition: Map, goal: torch.Tensor, *, n_products: int, enough: float, each: bool = True
) -> tuple[torch.Tensor, bool]:
    """Solve ``A x = goal`` approximately, for a positive definite ``A`` given by its products.

    Parameters
    ----------
    times, precondition : callable
        Product with ``A``, and approximately with its inverse.
    goal : torch.Tensor of shape (n, d)
        Right-hand sides.
    n_products : int
        Steps at most.
    enough : float
        Relative preconditioned squared residual at which it stops.
    each : bool, default=True
        Whether each row is a system of its own; else all together are one.

    Returns
    -------
    solution : torch.Tensor of shape (n, d)
    is_solved : bool
        Whether all residuals are that small.

    References
    ----------
    Hestenes and Stiefel, J. Res. NBS 1952.
    """

    def dot(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (one * other).sum(dim=1, keepdim=True) if each else (one * other).sum()

    tiny = torch.finfo(goal.dtype).tiny
    solution, residual = torch.zeros_like(goal), goal
    scaled = precondition(residual)
    direction, size = scaled, dot(residual, scaled)
    limit = enough * size
    for _ in range(n_products):
        image = times(direction)
        length = size / dot(direction, image).clamp(min=tiny)
        solution, residual = solution + length * direction, residual - length * image
        scaled = precondition(residual)
        last, size = size, dot(residual, scaled)
        if not (size > limit).any():
            return solution, True
        direction = scaled + size / last.clamp(min=tiny) * direction
    return solution, False

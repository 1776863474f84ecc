"""Douglas-Rachford reflections between subspaces and a set that is not convex."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

__all__ = ["douglas_rachford"]

Points = Sequence[torch.Tensor]


def douglas_rachford(
    points: Points,
    nearest: Callable[[Points], Points],
    fitted: Callable[[Points, int], Points],
    n_reflections: int,
    *,
    step: float = 1.0,
    overshoot: float = 1.0,
    normalize: Callable[[Points], Points] | None = None,
) -> Points:
    """Return the points after some reflections, of all starts at once.

    Parameters
    ----------
    points : sequence of torch.Tensor of shape (n_starts, m)
        The parts of the first points, which lie in a product space.
    nearest : callable
        Projection onto the set, such as pairs ``(z, y)`` with ``y = phi(z)`` at each unit.
    fitted : callable
        Projection of reflected points onto the subspaces; a second argument is the number of the reflection, with which
        it may change.
    n_reflections : int
        Number of reflections.
    step : float, default=1
        Length of the step, as a share of plain Douglas-Rachford's.
    overshoot : float, default=1
        How far a reflection goes beyond the set, as a share of the distance to it.
    normalize : callable or None, default=None
        Scales points that have no scale of their own.

    References
    ----------
    Douglas and Rachford, Trans. AMS 1956; Gravel and Elser, "Divide and concur", Phys. Rev. E 2008, for reflections
    between a subspace and a set that is not convex, in a product space.
    """
    for number in range(n_reflections):
        near = nearest(points)
        if overshoot == 1.0:
            reflected = [2 * at - point for at, point in zip(near, points, strict=True)]
        else:
            reflected = [at.lerp(point, -overshoot) for at, point in zip(near, points, strict=True)]
        targets = fitted(reflected, number)
        points = [point + step * (to - at) for point, to, at in zip(points, targets, near, strict=True)]
        points = points if normalize is None else normalize(points)
    return points

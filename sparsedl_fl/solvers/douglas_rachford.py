"""Douglas and Rachford's reflections between subspaces and a set that is not convex."""

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
    """Return where points end after some reflections: all starts at once.

    Parameters
    ----------
    points : sequence of torch.Tensor of shape (n_starts, m)
        The parts of the first points: a point is one of a product space.
    nearest : callable
        Takes points to the nearest ones of the set, such as pairs ``(z, y)`` with ``y = phi(z)`` at each unit.
    fitted : callable
        Takes reflected points, and the number of the reflection, to the nearest ones of the subspaces; what these
        prefer may change with that number.
    n_reflections : int
        Reflections.
    step : float, default=1
        How much of the way to the next points is gone.
    overshoot : float, default=1
        How far a reflection goes on behind the set, as a share of the way to it.
    normalize : callable or None, default=None
        Brings points that have no scale to a common one.

    References
    ----------
    Douglas and Rachford, Trans. AMS 1956; Gravel and Elser, "Divide and concur", Phys. Rev. E 2008, for reflections
    between a subspace and a set that is not convex, in a product space.
    """
    for number in range(n_reflections):
        near = nearest(points)
        if overshoot == 1.0:
            behind = [2 * at - point for at, point in zip(near, points, strict=True)]
        else:
            behind = [at.lerp(point, -overshoot) for at, point in zip(near, points, strict=True)]
        targets = fitted(behind, number)
        points = [point + step * (to - at) for point, to, at in zip(points, targets, near, strict=True)]
        points = points if normalize is None else normalize(points)
    return points

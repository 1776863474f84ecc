"""The symmetric fixed point of FastICA: all directions of white observations at once."""

from __future__ import annotations

import torch

from sparsedl.workers import Share, in_turn, shared_rows

__all__ = ["symmetric_fixed_point"]

FEWEST, ENTRIES = 32, 60_000
"""Directions, and their entries, of one block at least: 40 of 150 at 1,500 rows, and all where the work is too short to
be shared."""


def symmetric_fixed_point(
    white: torch.Tensor,
    start: torch.Tensor,
    *,
    max_iter: int,
    tolerance: float,
    settled_share: float = 1.0,
    share: Share = in_turn,
) -> torch.Tensor:
    """Return orthonormal directions that the contrast ``log cosh`` finds, in the precision of the observations.

    Each step is Newton's for every direction, and then all are made orthogonal, so that no two go to the same column.

    Parameters
    ----------
    white : torch.Tensor of shape (n_samples, k)
        Observations with ``white^T white = n_samples I``.
    start : torch.Tensor of shape (n_sets, k, k)
        Rows to start from; those of a set are made orthonormal.
    max_iter : int
        Steps at most.
    tolerance : float
        Change of a cosine at which a direction counts as settled.
    settled_share : float, default=1.0
        Share of the directions that have to be for all to stop.
    share : callable
        What may share the work (`sparsedl.workers.Share`).

    Returns
    -------
    torch.Tensor of shape (n_sets, k, k)

    References
    ----------
    Hyvarinen, "Fast and robust fixed-point algorithms for independent component analysis", IEEE Trans. Neural Netw.
    1999, Eq. 20 and Sec. IV (symmetric decorrelation).
    """
    W = _orthogonal(start).to(white.dtype)
    n, k = white.shape
    for _ in range(max_iter if k > 1 else 0):
        moved = shared_rows(share, lambda part: _newton_step(white, part), W.view(-1, k), max(FEWEST, ENTRIES // n))
        before, W = W, _orthogonal(moved.view_as(W))
        settled = (W * before).sum(dim=2).abs() > 1 - tolerance
        if settled.sum() >= settled_share * settled.numel():
            break
    return W


def _newton_step(white: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    slopes = torch.mm(directions, white.T).tanh_()
    gradient = (slopes @ white).div_(len(white))
    return gradient - slopes.square_().mean(dim=1, keepdim=True).neg_().add_(1) * directions


def _orthogonal(W: torch.Tensor) -> torch.Tensor:
    """Return the nearest orthogonal matrix of each, computed in double precision."""
    if W.numel() == 0:
        return W
    V = W.double()
    values, vectors = torch.linalg.eigh(V @ V.mT)
    if not bool((values[:, 0] > 1e-12 * values[:, -1]).all()):  # rows that depend on each other: by singular vectors
        left, _, right = torch.linalg.svd(V, full_matrices=False)
        return (left @ right).to(W.dtype)
    return ((vectors * values.rsqrt()[:, None, :]) @ vectors.mT @ V).to(W.dtype)

"""The symmetric fixed point of FastICA: all directions of white observations at once."""

from __future__ import annotations

import torch

__all__ = ["symmetric_fixed_point"]


def symmetric_fixed_point(
    white: torch.Tensor, start: torch.Tensor, *, max_iter: int, tolerance: float, share: float = 1.0
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
    share : float, default=1.0
        Share of the directions that have to be for all to stop.

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
        slopes = torch.mm(W.view(-1, k), white.T).tanh_()
        gradient = (slopes @ white).div_(n).view_as(W)
        curvature = slopes.square_().mean(dim=1).neg_().add_(1).view(len(W), k, 1)
        before, W = W, _orthogonal(gradient - curvature * W)
        settled = (W * before).sum(dim=2).abs() > 1 - tolerance
        if settled.sum() >= share * settled.numel():
            break
    return W


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

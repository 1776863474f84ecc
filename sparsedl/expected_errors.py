"""How far components are off that zeros have proven: what the noise at the zeros leaves open."""

from __future__ import annotations

import numpy as np
import torch

from sparsedl.linalg import weighted_gram
from sparsedl.zeros import ZeroTest

__all__ = ["component_errors"]

SMALL_WORK = 2e8
"""Products from which on the inverse of a Gram matrix of zero rows is not computed but taken for its mean."""

UNKNOWN = 1.0
"""Sine that stands for "not known"."""


def component_errors(
    basis: np.ndarray, proven: np.ndarray, test: ZeroTest, mixing: np.ndarray, n_rows: int, *, n_known: int = 0
) -> np.ndarray:
    """Return the expected sine (root mean square) of the angle of each component to the true one.

    A direction ``q_i`` whose zeros have the Gram matrix ``G_i`` and whose entries have the noise ``s_i`` is off by a
    ``delta q_i`` of the covariance ``s_i^2 G_i^-1``. Components are the rows ``c_j = b_j M`` of an inverse, so that
    ``delta c_j = - sum_i (b_j . delta q_i) c_i``: what counts is the part of ``c_i`` orthogonal to ``c_j``. Where there
    are more features than components, the noise outside their span comes on top.

    Parameters
    ----------
    basis : ndarray of shape (k, k)
        Directions in whitened coordinates, as columns.
    proven : ndarray of shape (k,) of bool
        Which of them are; of the others nothing is known.
    test : ZeroTest
        Observations that prove them, and their noise.
    mixing : ndarray of shape (k, n_features)
        From whitened coordinates to observations.
    n_rows : int
        Observations from which they were estimated.
    n_known : int, default=0
        How many of the last directions are known beforehand, as that of an offset is: they are not off.

    Returns
    -------
    ndarray of shape (k,)
        1 for the components that are not proven, and for those that change with these.
    """
    inverse = np.linalg.inv(basis)
    components = inverse @ mixing
    lengths = np.linalg.norm(components, axis=1)
    cosines = (components @ components.T) / np.outer(lengths, lengths)
    across = np.outer(1 / lengths**2, lengths**2) * np.maximum(1 - cosines**2, 0.0)  # of c_i against c_j, at [j, i]
    spread = np.full(across.shape, np.inf)
    spread[:, proven] = _variances(basis[:, proven], inverse, test, n_rows)
    spread[:, len(basis) - n_known :] = 0.0
    np.fill_diagonal(spread, 0.0)
    with np.errstate(invalid="ignore"):
        square = np.where(across > 0, spread * across, 0.0).sum(axis=1)
    amplitude = test.noise_level.square().mean().sqrt().item()
    n_beyond = mixing.shape[1] - len(mixing)
    square += n_beyond * amplitude**2 / lengths**2 * np.sum(inverse**2, axis=1) / n_rows
    return np.where(proven, np.minimum(np.sqrt(square), UNKNOWN), UNKNOWN)


def _variances(directions: np.ndarray, inverse: np.ndarray, test: ZeroTest, n_rows: int) -> np.ndarray:
    """Return the variance of ``b_j . delta q_i``, shape (k, n_directions), for the rows ``b_j`` of an inverse."""
    own = torch.from_numpy(np.ascontiguousarray(directions.T))
    n_part, k = test.observations.shape
    zeros = test.likely_zeros(own)
    amplification = torch.linalg.vector_norm(own @ test.unmixing.T, dim=1)
    noise = (test.noise_level.square().mean() * amplification.square()).numpy() * n_part / n_rows
    rows = torch.from_numpy(np.ascontiguousarray(inverse))
    if n_part * k**3 > SMALL_WORK:  # the mean of the inverse of the Gram matrix of so many white rows
        free = (zeros.sum(dim=1) - k).clamp(min=1).numpy()
        return np.sum(inverse**2, axis=1)[:, None] * noise / free
    gram = weighted_gram(test.observations, zeros.to(torch.float64))
    gram += gram.diagonal(dim1=1, dim2=2).sum(dim=1)[:, None, None] * own[:, :, None] * own[:, None, :]
    factor, info = torch.linalg.cholesky_ex(gram)
    half = torch.linalg.solve_triangular(factor, rows.T.expand(len(own), -1, -1), upper=False)
    sums = half.square().sum(dim=1).T.numpy()
    return np.where(info.numpy() == 0, sums, np.inf) * noise

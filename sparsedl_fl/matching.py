"""The sparsity matching coefficient, and the greedy filter that maximises it.

Notation: ``Qbar`` holds unit columns, ``P = Qbar^-1`` has one row a sample, and with ``h = U^T g`` the scale of sample
``i`` is ``s_i = P_i h`` [SPEAR Thm 3.5]. Its pre-activations are then ``Z_i = W V S P_i / s_i + bias``, so that a swap
of one column of ``Qbar`` changes ``P``, ``s`` and ``Z`` by rank-one formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsedl.selection import complete_basis, select_independent
from sparsedl_fl.directions import Candidates
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.lowrank import LowRankGradient

__all__ = ["ForwardView", "greedy_filter", "sample_agreement"]

_PIVOT = 1e-3
_CHUNK_ENTRIES = 16_000_000


@dataclass(frozen=True)
class ForwardView:
    """What the known weights say about the pre-activations of a hypothesis.

    Attributes
    ----------
    matrix : ndarray of shape (m, b)
        ``W V S``.
    bias : ndarray of shape (m,)
        Bias of the layer.
    scale : ndarray of shape (b,)
        ``h = U^T g``.
    """

    matrix: np.ndarray
    bias: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, layer_gradient: LayerGradient, factors: LowRankGradient) -> ForwardView:
        """Multiply the weights with the right factor, once."""
        matrix = layer_gradient.weight @ (factors.singular_values[:, None] * factors.right).T
        return cls(matrix, layer_gradient.bias, factors.left.T @ layer_gradient.bias_grad)

    def preactivations(self, inverse: np.ndarray) -> np.ndarray:
        """Return ``Z`` of shape (m, b) for ``P`` of shape (b, b); a sample without scale gets NaN."""
        return _divide(self.matrix @ inverse.T, inverse @ self.scale) + self.bias[:, None]


def sample_agreement(preactivations: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Return the share of units at which ReLU pattern and gradient agree, for each sample.

    Its mean over the samples is the sparsity matching coefficient ``lambda``.

    Parameters
    ----------
    preactivations : ndarray of shape (..., m, b)
        ``Z`` of a hypothesis.
    zeros : ndarray of shape (..., m, b) of bool
        Where ``D`` is zero.

    References
    ----------
    SPEAR (2024), Definition 4.1.

    Examples
    --------
    >>> sample_agreement(np.array([[1.0, -1.0], [-2.0, 3.0]]), np.array([[False, True], [True, True]])).tolist()
    [1.0, 0.5]
    """
    return np.mean((preactivations > 0) != zeros, axis=-2)


def greedy_filter(view: ForwardView, factors: LowRankGradient, candidates: Candidates) -> tuple[np.ndarray, np.ndarray]:
    """Choose ``b`` columns: the sparsest independent ones, then swaps that raise the matching coefficient.

    Parameters
    ----------
    view : ForwardView
        The known weights.
    factors : LowRankGradient
        The factorised gradient.
    candidates : Candidates
        The pool.

    Returns
    -------
    basis : ndarray of shape (b, b)
        Unit columns ``Qbar``.
    proposed : ndarray of shape (b,) of bool
        Which columns come from the pool; the others complete the basis.

    References
    ----------
    SPEAR (2024), Algorithm 3. A swap is a rank-one update of the inverse here.
    """
    chosen = select_independent(candidates.directions, candidates.n_zeros)
    basis = complete_basis(candidates.directions[:, chosen])
    proposed = np.arange(factors.batch_size) < len(chosen)
    left_out = np.setdiff1d(np.arange(candidates.directions.shape[1]), chosen)
    if not len(left_out):
        return basis, proposed
    pool = candidates.directions[:, left_out]
    pool_zeros, zeros = factors.zeros(pool), factors.zeros(basis)
    inverse = np.linalg.inv(basis)
    best = sample_agreement(view.preactivations(inverse), zeros).sum()
    while True:
        gains = [_swap_scores(view, inverse, zeros, pool[:, c], pool_zeros[:, c]) for c in range(pool.shape[1])]
        c, j = np.unravel_index(np.argmax(gains), (pool.shape[1], factors.batch_size))
        if gains[c][j] <= best + 0.5 / len(zeros):
            return basis, proposed
        best = gains[c][j]
        basis[:, j], pool[:, c] = pool[:, c].copy(), basis[:, j].copy()
        zeros[:, j], pool_zeros[:, c] = pool_zeros[:, c].copy(), zeros[:, j].copy()
        proposed[j] = True
        inverse = np.linalg.inv(basis)


def _swap_scores(
    view: ForwardView, inverse: np.ndarray, zeros: np.ndarray, candidate: np.ndarray, candidate_zeros: np.ndarray
) -> np.ndarray:
    """Return the summed agreement after swapping each column in turn for one candidate.

    With ``w = P c``, a swap of column ``j`` turns row ``j`` of ``P`` into ``P_j / w_j`` and each other row into
    ``P_i - (w_i / w_j) P_j``; ``Z`` before its division by ``s`` and ``s`` itself change in the same way.
    """
    m, b = zeros.shape
    weights = inverse @ candidate
    projected, scale = view.matrix @ inverse.T, inverse @ view.scale
    scores = np.full(b, -np.inf)
    usable = np.flatnonzero(np.abs(weights) > _PIVOT)
    for part in np.array_split(usable, max(1, len(usable) * m * b // _CHUNK_ENTRIES)):
        ratio = weights / weights[part, None]
        ratio[np.arange(len(part)), part] = 1 - 1 / weights[part]
        swapped = projected - projected.T[part][:, :, None] * ratio[:, None, :]
        swapped_scale = scale - scale[part, None] * ratio
        preactivations = _divide(swapped, swapped_scale[:, None, :]) + view.bias[:, None]
        swapped_zeros = np.repeat(zeros[None], len(part), axis=0)
        swapped_zeros[np.arange(len(part)), :, part] = candidate_zeros
        scores[part] = sample_agreement(preactivations, swapped_zeros).sum(axis=-1)
    return scores


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return numerator / denominator

"""The sparsity matching coefficient, and the greedy filter that maximises it.

Notation: ``Qbar`` holds unit columns, ``P = Qbar^-1`` has one row a sample, and with ``h = U^T g`` the scale of sample
``i`` is ``s_i = P_i h`` [SPEAR Thm 3.5]. Its pre-activations are then ``Z_i = W V S P_i / s_i + bias``, so that a swap
of one column of ``Qbar`` changes ``P``, ``s`` and ``Z`` by rank-one formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsedl.selection import complete_basis, select_independent
from sparsedl_fl.blocks import times
from sparsedl_fl.candidates import Candidates
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.lowrank import LowRankGradient

__all__ = [
    "TRUSTED_AGREEMENT",
    "ForwardView",
    "basis_agreement",
    "choose",
    "greedy_filter",
    "repair",
    "sample_agreement",
]

TRUSTED_AGREEMENT = 0.9
"""Share of agreeing units above which the ReLU pattern of a recovered input counts as that of its gradient.

Patterns of different samples agree on half of the units, give or take. An active unit whose gradient is zero disagrees
and is legitimate; an inactive unit with a gradient is not, and shows in the residual.
"""


_PIVOT = 1e-3
_MAX_REPAIRS = 32
_CHUNK_ENTRIES = 16_000_000


@dataclass(frozen=True)
class ForwardView:
    """What the known weights say about the pre-activations of a hypothesis.

    A FedAvg client moves its weights. Both ends of the way are known, and a unit counts as active when it is active at
    either end: its pre-activation is then the larger of the two.

    Attributes
    ----------
    ends : tuple of (matrix, bias)
        ``W V S`` of shape (m, b) and the bias of shape (m,): at the weights sent out, then, for FedAvg, at those sent
        back.
    scale : ndarray of shape (b,)
        ``h = U^T g``.
    """

    ends: tuple[tuple[np.ndarray, np.ndarray], ...]
    scale: np.ndarray

    @classmethod
    def of(cls, layer_gradient: LayerGradient, factors: LowRankGradient) -> ForwardView:
        """Multiply the weights with the right factor, once."""
        U, S, bias, rate = factors.left, factors.singular_values, layer_gradient.bias, layer_gradient.learning_rate
        matrix = times(layer_gradient.weight, (S[:, None] * factors.right).T)
        ends = [(matrix, bias)]
        if rate is not None:
            ends.append((matrix - rate * U * S**2, bias - rate * layer_gradient.bias_grad))
        return cls(tuple(ends), U.T @ layer_gradient.bias_grad)

    @property
    def moves(self) -> bool:
        """Whether the client's weights moved between two ends."""
        return len(self.ends) > 1

    @property
    def regressors(self) -> np.ndarray:
        """The matrix ``F`` of shape (m, b) with ``z = F p`` for the row ``p`` of ``Q^-1`` of every sample.

        The bias enters as ``bias h^T``, since ``h^T p = 1``. Of a FedAvg update it is the one half way.
        """
        return np.mean([matrix + np.outer(bias, self.scale) for matrix, bias in self.ends], axis=0)

    def preactivations(self, inverse: np.ndarray) -> np.ndarray:
        """Return ``Z`` of shape (m, b) for ``P`` of shape (b, b); a sample without scale gets NaN."""
        return np.maximum.reduce(self.at_ends(self.project(inverse), inverse @ self.scale))

    def drift(self, inverse: np.ndarray) -> np.ndarray:
        """Return how far the pre-activations of each sample moved, as a root mean square over the units."""
        at_ends = self.at_ends(self.project(inverse), inverse @ self.scale)
        return np.sqrt(np.mean((at_ends[-1] - at_ends[0]) ** 2, axis=0))

    def project(self, inverse: np.ndarray) -> list[np.ndarray]:
        """Return ``W V S P^T`` at each end."""
        return [matrix @ inverse.T for matrix, _ in self.ends]

    def at_ends(self, projected: list[np.ndarray], scale: np.ndarray) -> list[np.ndarray]:
        """Return ``Z`` of shape (..., m, b) at each end, from `project` and the scale of shape (..., b)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return [
                part / scale[..., None, :] + bias[:, None] for part, (_, bias) in zip(projected, self.ends, strict=True)
            ]


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


def basis_agreement(view: ForwardView, factors: LowRankGradient, basis: np.ndarray) -> np.ndarray:
    """Return `sample_agreement` for the hypothesis that the columns of a basis are the batch's."""
    return sample_agreement(view.preactivations(np.linalg.inv(basis)), factors.likely_zeros(basis))


def choose(view: ForwardView, factors: LowRankGradient, candidates: Candidates) -> tuple[np.ndarray, np.ndarray]:
    """Filter the candidates and repair what is doubtful; an interrupt keeps what was chosen before.

    Returns
    -------
    basis, proposed
        As of `greedy_filter`.
    """
    try:
        basis, proposed = greedy_filter(view, factors, candidates)
    except KeyboardInterrupt:
        chosen = select_independent(candidates.directions, candidates.n_zeros)
        return complete_basis(candidates.directions[:, chosen]), np.arange(factors.batch_size) < len(chosen)
    if not proposed.any():
        return basis, proposed
    try:
        return repair(view, factors, basis, proposed)
    except KeyboardInterrupt:
        return basis, proposed


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
    pool_zeros, zeros = factors.likely_zeros(pool), factors.likely_zeros(basis)
    inverse = np.linalg.inv(basis)
    best = sample_agreement(view.preactivations(inverse), zeros).sum()
    while True:
        projected = view.project(inverse)
        gains = [
            _swap_scores(view, projected, inverse @ view.scale, zeros, inverse @ pool[:, c], pool_zeros[:, c])
            for c in range(pool.shape[1])
        ]
        c, j = np.unravel_index(np.argmax(gains), (pool.shape[1], factors.batch_size))
        if gains[c][j] <= best + 0.5 / len(zeros):
            return basis, proposed
        best = gains[c][j]
        basis[:, j], pool[:, c] = pool[:, c].copy(), basis[:, j].copy()
        zeros[:, j], pool_zeros[:, c] = pool_zeros[:, c].copy(), zeros[:, j].copy()
        proposed[j] = True
        inverse = np.linalg.inv(basis)


def repair(
    view: ForwardView, factors: LowRankGradient, basis: np.ndarray, proposed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate doubtful columns again from the ReLU pattern of their own sample, the one that helps most first.

    Row ``i`` of ``P`` is orthogonal to every column but the ``i``-th: where the others are right it is right whatever
    the ``i``-th is, and so is its pattern, at whose inactive units ``U q_i`` has to vanish. This finds the last missing
    column, and a mixture of columns that passed for one.

    Parameters
    ----------
    view, factors
        As in `greedy_filter`.
    basis : ndarray of shape (b, b)
        Unit columns.
    proposed : ndarray of shape (b,) of bool
        Which of them come from the pool.

    Returns
    -------
    basis, proposed
        Both anew; a column that was repaired counts as proposed.
    """
    basis, proposed = basis.copy(), proposed.copy()
    while True:
        inverse = np.linalg.inv(basis)
        preactivations = view.preactivations(inverse)
        agreement = sample_agreement(preactivations, factors.likely_zeros(basis))
        doubtful = np.flatnonzero(~proposed | (agreement < TRUSTED_AGREEMENT))
        best, repaired = agreement.sum() + 0.5 / len(preactivations), None
        for i in doubtful[np.lexsort((agreement[doubtful], proposed[doubtful]))][:_MAX_REPAIRS]:
            trial = basis.copy()
            trial[:, i] = factors.vanishing(np.maximum(-preactivations[:, [i]], 0))[:, 0]
            if abs(inverse[i] @ trial[:, i]) <= _PIVOT:
                continue  # a column that is there already
            trial_agreement = basis_agreement(view, factors, trial)
            if trial_agreement.sum() > best:
                best, repaired = trial_agreement.sum(), (i, trial, trial_agreement[i] >= TRUSTED_AGREEMENT)
        if repaired is None:
            return basis, proposed
        i, basis, is_trusted = repaired
        proposed[i] |= is_trusted


def _swap_scores(
    view: ForwardView,
    projected: list[np.ndarray],
    scale: np.ndarray,
    zeros: np.ndarray,
    weights: np.ndarray,
    candidate_zeros: np.ndarray,
) -> np.ndarray:
    """Return the summed agreement after swapping each column in turn for one candidate ``c``.

    With ``w = P c``, a swap of column ``j`` turns row ``j`` of ``P`` into ``P_j / w_j`` and each other row into
    ``P_i - (w_i / w_j) P_j``; ``Z`` before its division by ``s`` and ``s`` itself change in the same way.
    """
    m, b = zeros.shape
    scores = np.full(b, -np.inf)
    usable = np.flatnonzero(np.abs(weights) > _PIVOT)
    for part in np.array_split(usable, max(1, len(usable) * m * b // _CHUNK_ENTRIES)):
        ratio = weights / weights[part, None]
        ratio[np.arange(len(part)), part] = 1 - 1 / weights[part]
        swapped = [matrix - matrix.T[part][:, :, None] * ratio[:, None, :] for matrix in projected]
        preactivations = np.maximum.reduce(view.at_ends(swapped, scale - scale[part, None] * ratio))
        swapped_zeros = np.repeat(zeros[None], len(part), axis=0)
        swapped_zeros[np.arange(len(part)), :, part] = candidate_zeros
        scores[part] = sample_agreement(preactivations, swapped_zeros).sum(axis=-1)
    return scores

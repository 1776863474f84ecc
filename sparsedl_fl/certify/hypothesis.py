"""The hypothesis of a batch: a basis of columns, and what follows from it, computed once each.

Notation: ``Qbar`` holds unit columns, ``P = Qbar^-1`` has one row an input, and with ``h = U^T g`` the scale of input
``i`` is ``s_i = P_i h`` [SPEAR Thm 3.5]. Its pre-activations are then ``Z_i = W V S P_i / s_i + bias``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sparsedl_fl.constraints.problem import LayerProblem

__all__ = ["Hypothesis", "overlaps_of", "pattern_agreement"]


def pattern_agreement(is_active: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Return the share of units at which pattern and gradient agree, for each input.

    Its mean over the inputs is the sparsity matching coefficient ``lambda``.

    Parameters
    ----------
    is_active : ndarray of shape (..., m, b) of bool
        Which units are active, by the weights.
    zeros : ndarray of shape (..., m, b) of bool
        Where ``D`` is zero.

    References
    ----------
    SPEAR (2024), Definition 4.1.

    Examples
    --------
    >>> pattern_agreement(np.array([[True, False], [False, True]]), np.array([[False, True], [True, True]])).tolist()
    [1.0, 0.5]
    """
    return np.mean(is_active != zeros, axis=-2)


def overlaps_of(inputs: np.ndarray, columns: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the cosine of each ``x = V S p`` and the dual of each column (see `SampleCoordinates.overlaps`)."""
    inputs, duals = inputs * sizes, columns / sizes[:, None]
    return inputs @ duals / np.linalg.norm(inputs, axis=1, keepdims=True) / np.linalg.norm(duals, axis=0)


@dataclass(frozen=True)
class Hypothesis:
    """The hypothesis that the columns of a basis are the batch's.

    Attributes
    ----------
    problem : LayerProblem
        The layer's gradient.
    basis : ndarray of shape (b, b)
        Unit columns ``Qbar``.
    proposed : ndarray of shape (b,) of bool
        Which of them a search has found; the others complete the basis.
    known : ndarray of shape (b, b) or None, default=None
        Rows ``p`` of the inputs that were found by themselves, in the order of the columns; NaN for the others.
    known_errors : ndarray of shape (b,) or None, default=None
        Their expected errors, if all are right; infinite where nothing is known.
    is_interrupted : bool, default=False
        Whether Ctrl-C ended the choice of it early.
    trusted_agreement : float, default=0.9
        Share of agreeing units above which the pattern of a recovered input counts as that of its gradient. Patterns of
        different inputs agree on half of the units, give or take. An active unit whose gradient is zero disagrees and
        is legitimate; an inactive unit with a gradient is not, and shows in the residual.
    """

    problem: LayerProblem
    basis: np.ndarray
    proposed: np.ndarray
    known: np.ndarray | None = None
    known_errors: np.ndarray | None = None
    is_interrupted: bool = False
    trusted_agreement: float = 0.9

    @cached_property
    def inverse(self) -> np.ndarray:
        """``P``, one row an input, of shape (b, b)."""
        return np.linalg.inv(self.basis)

    @cached_property
    def scale(self) -> np.ndarray:
        """``s = P h`` of shape (b,)."""
        return self.inverse @ self.problem.forward.scale

    @cached_property
    def preactivations(self) -> list[np.ndarray]:
        """``Z`` of shape (m, b) at initial (and final) weights; NaN for an input without scale."""
        return self.problem.forward.preactivations(self.inverse)

    @cached_property
    def is_active(self) -> np.ndarray:
        """Which units are active, by the weights, shape (m, b)."""
        return self.problem.is_active(self.preactivations)

    @cached_property
    def zeros(self) -> np.ndarray:
        """Where ``U Qbar`` is zero up to noise, shape (m, b)."""
        return self.problem.factors.zeros(self.basis)

    @cached_property
    def likely_zeros(self) -> np.ndarray:
        """Where ``U Qbar`` is likelier zero than not, shape (m, b)."""
        return self.problem.factors.likely_zeros(self.basis)

    @cached_property
    def agreement(self) -> np.ndarray:
        """Share of units at which pattern and gradient agree, shape (b,)."""
        return pattern_agreement(self.is_active, self.likely_zeros)

    @property
    def fits(self) -> np.ndarray:
        """Which inputs have the pattern of their gradient, shape (b,)."""
        return self.agreement >= self.trusted_agreement

    def swapped(self, index: int, column: np.ndarray) -> Hypothesis:
        """Return the hypothesis with one column replaced."""
        basis = self.basis.copy()
        basis[:, index] = column
        known = None if self.known is None else np.where(np.arange(len(basis))[:, None] == index, np.nan, self.known)
        return replace(self, basis=basis, known=known)

    def scaled(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ``Q`` and ``P`` at the scale of each input; an input without one keeps its own."""
        scale = np.where(np.abs(self.scale) > np.finfo(float).tiny, self.scale, 1.0)
        return self.basis * scale, self.inverse / scale[:, None]

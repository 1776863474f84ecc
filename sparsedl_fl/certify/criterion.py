"""Base class of criteria, and the case that they decide."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.certify.hypothesis import Hypothesis, pattern_agreement
from sparsedl_fl.certify.sent_back_columns import SentBackColumns
from sparsedl_fl.certify.shared_zeros import SharedZeros, in_groups, leave_another, radii_of
from sparsedl_fl.certify.uncertainty import errors_from_zeros
from sparsedl_fl.constraints import LEAST_DISTANCE
from sparsedl_fl.layers.blocks import row_norms

__all__ = ["Case", "Criterion", "EvidenceKind"]

ALIKE = 0.99
"""Cosine of the gradients of two units above which only one of them counts; not varied."""


@dataclass(frozen=True)
class Case:
    """The batch to certify, after the last estimate.

    Attributes
    ----------
    hypothesis : Hypothesis
        The columns.
    inputs : ndarray of shape (b, n)
        The recovered batch.
    whitened : ndarray of shape (b, b)
        Their rows ``p``, at their true scale.
    columns : ndarray of shape (b,) of bool
        Columns that their zeros certify.
    rows : ndarray of shape (m, b) of bool
        Zero rows that each column was estimated from.
    determined : ndarray of shape (b,) of bool
        Which columns these determine.
    disaggregation : ndarray of shape (b, b)
        ``Q``, scaled.
    is_active : ndarray of shape (m, b) of bool
        Which units are active for the recovered inputs, by the weights.
    sent_back : SentBackColumns
        Columns that were certified, and maybe estimated, by what the next layer sends back.
    shared : tuple of SharedZeros, default=()
        Groups of columns that span what the zeros that they share determine.
    """

    hypothesis: Hypothesis
    inputs: np.ndarray
    whitened: np.ndarray
    columns: np.ndarray
    rows: np.ndarray
    determined: np.ndarray
    disaggregation: np.ndarray
    is_active: np.ndarray
    sent_back: SentBackColumns
    shared: tuple[SharedZeros, ...] = ()

    @cached_property
    def preactivations(self) -> torch.Tensor:
        """``z`` of each input at the initial weights, of shape (b, m)."""
        return as_tensor(self.hypothesis.problem.at(self.whitened)[0].T.copy())

    @property
    def nothing(self) -> tuple[np.ndarray, np.ndarray]:
        """The result of a criterion that certifies no input."""
        return np.zeros(len(self.columns), dtype=bool), np.full(len(self.columns), np.inf)

    @cached_property
    def agreement(self) -> np.ndarray:
        """Share of units at which pattern and gradient agree, shape (b,)."""
        return pattern_agreement(self.is_active, self.hypothesis.likely_zeros)

    @property
    def fits(self) -> np.ndarray:
        """Which inputs have the pattern of their gradient, shape (b,)."""
        return self.agreement >= self.hypothesis.trusted_agreement

    @cached_property
    def errors_by_columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Expected errors from the zeros of the columns (see `errors_from_zeros`)."""
        factors, sent_back = self.hypothesis.problem.factors, self.sent_back
        determined = self.determined & ~sent_back.is_proven
        return errors_from_zeros(factors, self.inputs, self.rows, determined, sent_back, self.shared)

    @property
    def follows(self) -> np.ndarray:
        """Which inputs have the columns of all others certified by zeros, or the space that these span."""
        is_missing = ~self.columns & ~self.in_group
        return ~self.in_group & (is_missing.sum() - is_missing == 0)

    @cached_property
    def leaves_another(self) -> np.ndarray:
        """Of which missing column the zeros leave another that none is certified of, shape (b,): one of these is none.

        See `sparsedl_fl.certify.shared_zeros.leave_another`.
        """
        found, certified = np.zeros(len(self.columns), dtype=bool), self.hypothesis.basis[:, self.columns]
        for missing in np.flatnonzero(self.follows & self.fits & ~self.columns):
            rows = self.hypothesis.zeros[:, missing] & ~self.is_active[:, missing]
            found[missing] = leave_another(self.hypothesis.problem.factors, rows, certified)
        return found

    @property
    def in_group(self) -> np.ndarray:
        """Which columns are known by what they span with others alone, shape (b,)."""
        return in_groups(self.shared, len(self.columns))

    @property
    def radii(self) -> np.ndarray:
        """Largest distance of the centre of a group from the inputs of that, and zero of other inputs, shape (b,)."""
        return radii_of(self.shared, len(self.columns))

    @cached_property
    def log_chances_of_zeros(self) -> np.ndarray:
        """Log10 of the chance of each zero that a column has by the weights, shape (m, b); 0 where it is none.

        Units that are active for the same inputs have parallel gradients: only the first of them counts.
        """
        left = self.hypothesis.problem.factors.left
        gradients = left @ self.disaggregation
        n_active = np.maximum(self.is_active.sum(axis=1, keepdims=True), 1)
        typical = np.sqrt(np.sum(gradients**2, axis=1, keepdims=True) / n_active)
        sizes = np.linalg.norm(left, axis=1)
        alike = np.abs(left @ left.T) > ALIKE * np.outer(sizes, sizes)
        is_first = ~np.tril(alike, -1).any(axis=1) & (sizes > LEAST_DISTANCE * sizes.max())
        shares = np.abs(gradients) / np.maximum(typical, np.finfo(float).tiny)
        chances = np.log10(np.clip(shares, LEAST_DISTANCE, 1.0))
        return np.where(is_first[:, None] & ~self.is_active, chances, 0.0)

    def is_clear(self, errors: np.ndarray, times: float) -> np.ndarray:
        """Return which pre-activations are further from a kink than some times the errors of inputs, shape (m, b)."""
        problem = self.hypothesis.problem
        allowed = times * row_norms(problem.layer_gradient.weight)[:, None] * errors
        return problem.distance_to_kink(problem.at(self.whitened)) > np.where(np.isfinite(allowed), allowed, np.inf)

    @property
    def consistency(self) -> np.ndarray:
        """Share of each input's units with a gradient that are active by the weights.

        Dropout makes active units inactive, never the reverse.
        """
        has_gradient = ~self.hypothesis.likely_zeros
        return np.sum(self.is_active & has_gradient, axis=0) / np.maximum(has_gradient.sum(axis=0), 1)


class EvidenceKind(StrEnum):
    """The criterion that certifies an input, in words."""

    NONE = "none"
    ZEROS_OF_OTHERS = "zeros of the gradient"
    SENT_BACK = "zeros and weights of the next layer"
    SHARED_ZEROS = "zeros that several inputs share"
    THROUGH_REST = "rest of the network"
    SPAN_OF_NEXT_LAYER = "span of the next layer"
    THROUGH_REST_AND_SPANS = "rest of the network and spans"
    REPLAY_OF_ALL = "replay of all"
    ZEROS_OF_INPUT = "zeros of the input"
    ZEROS_OF_ALL = "columns alone, pattern not confirmed"


class Criterion(ABC):
    """A criterion that certifies inputs.

    Attributes
    ----------
    kind : str
        Its name in results: one of `EvidenceKind`, or another word.
    """

    kind: ClassVar[str]

    def may_add(self, case: Case, certified: np.ndarray) -> bool:
        """Return whether it applies and may add to the criteria before, which certify the inputs ``certified``.

        Where it may not, it is skipped.
        """
        return True

    @abstractmethod
    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Return which inputs it certifies, and their expected errors by this alone; infinite where not known."""

"""Criteria by zeros: of the gradient's columns, or of the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from sparsedl.arrays import rows_of
from sparsedl_fl.certify.criterion import Case, Criterion, EvidenceKind
from sparsedl_fl.certify.uncertainty import errors_from_inputs
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["SentBackByNext", "ZerosOfAll", "ZerosOfGroup", "ZerosOfInput", "ZerosOfOthers"]


class ZerosOfOthers(Criterion):
    """The columns of all other inputs are certified, and the pattern fits."""

    kind = EvidenceKind.ZEROS_OF_OTHERS

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Certify by the columns; the expected errors by their zeros hold for every input, certified or not."""
        has_pattern = case.hypothesis.problem.activation.has_flat_part
        follows = case.follows & ~case.leaves_another
        return follows & case.fits & has_pattern, case.errors_by_columns[0]


class SentBackByNext(Criterion):
    """All columns are certified by their zeros or by what the next layer sends back, and each pattern is no chance.

    Samples that differ at fewer units than there are of them have mixtures that fulfil all that is sent back. The
    forward pass tells: a mixture has the active units of its column by chance alone, unless most units are active, or
    inactive, for all samples. (17 samples at 60 units, of which 57 were active: five mixtures, off by their size.)
    It is one more test of columns that are proven, once for each, and no start chose them by it: so a millionth will
    do, where what a search chooses from needs 1e-10. (125 batches of up to 29 samples at 60 and 80 units, mostly
    active: the worst pattern of right ones had 3e-4 to 1e-22, of those with a mixture 0.2 and more.)
    """

    kind = EvidenceKind.SENT_BACK
    log_chance: ClassVar[float] = -6.0

    def may_add(self, case: Case, certified: np.ndarray) -> bool:
        """Return whether any column was certified so."""
        return bool(case.sent_back.is_proven.any())

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Certify by the columns and the patterns, all of them or none, but for groups known by what they span."""
        is_no_chance = self._log_chances_of_patterns(case) <= self.log_chance
        is_known = (case.columns | case.sent_back.is_proven) & case.fits & is_no_chance
        is_all = (is_known | case.in_group).all() and self._are_alone(case)
        return is_all & ~case.in_group, case.errors_by_columns[0]

    @staticmethod
    def _are_alone(case: Case) -> bool:
        """Return whether nothing else is sent back to the units that are active by the weights.

        Two samples with the same active units have mixtures of which one more unit has no gradient. At the units that
        have one, such a mixture is alone.
        """
        is_proven = case.sent_back.is_proven
        columns, is_active = rows_of(case.hypothesis.basis[:, is_proven]), torch.from_numpy(case.is_active.T[is_proven])
        return bool(case.sent_back.by.are_alone(columns, is_active).all())

    @staticmethod
    def _log_chances_of_patterns(case: Case) -> np.ndarray:
        """Return log10 of the chance that a pattern drawn from the batch's shares is that of each column, (b,).

        A unit that disagrees may be any.
        """
        sent_back = case.sent_back
        by_column = np.where(sent_back.is_proven, sent_back.is_active, ~case.hypothesis.likely_zeros)
        is_live = case.hypothesis.problem.factors.zero_test.distinct_rows.numpy()
        by_column, by_weights = by_column[is_live], case.is_active[is_live]
        shares = (by_column.sum(axis=1, keepdims=True) + 1) / (by_column.shape[1] + 2)
        chances = np.log10(np.where(by_column, shares, 1 - shares))
        agrees = by_column == by_weights
        return np.sum(chances * agrees, axis=0) + np.sum(~agrees, axis=0) * np.log10(len(by_column))


class ZerosOfGroup(Criterion):
    """All other inputs are certified by their columns, and those of a group share zeros: its centre stands for it.

    It is off by the radius of the region that the group's inactive units leave (`sparsedl_fl.certify.shared_region`).
    """

    kind = EvidenceKind.SHARED_ZEROS

    def may_add(self, case: Case, certified: np.ndarray) -> bool:
        """Return whether there is a group with a bounded region."""
        return bool(case.radii.any())

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Certify the centres."""
        by_columns = ZerosOfOthers().prove(case)[0]
        if case.sent_back.is_proven.any():
            by_columns = by_columns | SentBackByNext().prove(case)[0]
        are_known = (by_columns | case.in_group).all()
        return are_known & case.fits & (case.radii > 0), case.errors_by_columns[0]


class ZerosOfInput(Criterion):
    """Zeros of the input determine it, as those of the gradient a column: ``G^T`` is the same problem.

    But inputs are data, and some mixtures of them have more zeros than chance: ``2 (x, 1) - (2 x, 1)`` has no entry but
    that of a constant feature, and where one stroke is a tenth of another a mixture makes all of it zero. So zeros of
    the input certify it only together with another fact. With a zero-slope region: at its inactive units one column and
    no other vanishes. For other activations: the activation subspaces or the network tail confirm it.
    """

    kind = EvidenceKind.ZEROS_OF_INPUT
    narrow: ClassVar[float] = 0.02  # relative to the entries, as for columns: under noise mixtures vanish as well
    clearly: ClassVar[float] = 10.0  # distance from a kink, in expected errors, for a unit to count; not varied
    own_overlap: ClassVar[float] = 1e-3  # cosine of an input and the dual of a column that makes it its own
    fewest: ClassVar[int] = 10  # inactive units at which a column found otherwise vanishes by no chance

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Certify by the zeros of the inputs, where pattern or constraints confirm them."""
        transposed, inputs = case.hypothesis.problem.factors.transposed, case.inputs
        certified, errors = case.nothing
        if len(inputs) == 1 or case.hypothesis.problem.factors.is_coarse:  # in which small ones round to zero
            return certified, errors
        directions = transposed.left.T @ inputs.T
        directions = directions / np.maximum(np.linalg.norm(directions, axis=0), np.finfo(float).tiny)
        zeros = transposed.zeros(directions)
        widths = np.sqrt(len(zeros)) * transposed.tolerances(directions).mean(axis=0)
        certified = transposed.prove(directions, zeros) & (widths < self.narrow)
        if not certified.any():
            return certified, errors
        by_zeros = errors_from_inputs(transposed, inputs[certified], zeros[:, certified])
        errors[certified] = np.hypot(by_zeros, case.errors_by_columns[2][certified])
        errors[certified] = np.hypot(errors[certified], self._beside_own_zeros(transposed, inputs[certified]))
        errors[certified] *= case.hypothesis.problem.beyond_noise(case.whitened[certified])
        return certified & self._is_confirmed(case, errors), errors

    @staticmethod
    def _beside_own_zeros(transposed: LowRankGradient, inputs: np.ndarray) -> np.ndarray:
        """Return the root mean square distances of inputs from those that all of their zeros determine."""
        within = inputs @ transposed.left
        preactivations = transposed.zero_test.refit(rows_of(within.T / np.linalg.norm(within, axis=1))).numpy()
        along = np.sum(within * preactivations, axis=1, keepdims=True) * preactivations
        return np.linalg.norm(within - along, axis=1) / np.sqrt(inputs.shape[1])

    def _is_confirmed(self, case: Case, errors: np.ndarray) -> np.ndarray:
        """Return which inputs the pattern or the constraints confirm, each by itself."""
        problem = case.hypothesis.problem
        if problem.activation.has_flat_part:
            return self._is_confirmed_by_pattern(case, errors)
        constraints = [
            constraint
            for constraint in (problem.subspaces, problem.tail)
            if constraint is not None and constraint.identifies
        ]
        if not constraints or not case.preactivations.isfinite().all():
            return np.zeros(len(errors), dtype=bool)
        return np.all([constraint.at(case.preactivations).is_inside.numpy() for constraint in constraints], axis=0)

    def _is_confirmed_by_pattern(self, case: Case, errors: np.ndarray) -> np.ndarray:
        """Return for which inputs a column vanishes at all clearly inactive units, and at no others.

        That is the column that these units determine, if it is the input's own; or, where they are too few, the column
        that the input has in the batch.
        """
        factors, is_clear = case.hypothesis.problem.factors, case.is_clear(errors, self.clearly)
        inactive, active = is_clear & ~case.is_active, is_clear & case.is_active
        determined = factors.vanishing(inactive)
        duals, within = determined / factors.singular_values[:, None], case.whitened * factors.singular_values
        overlaps = np.abs(np.sum(within.T * duals, axis=0))
        is_own = overlaps > self.own_overlap * np.linalg.norm(within, axis=1) * np.linalg.norm(duals, axis=0)
        fits, zeros = self._fits(factors, determined, inactive, active)
        columns = case.disaggregation / np.linalg.norm(case.disaggregation, axis=0)
        is_like_own = self._fits(factors, columns, inactive, active)[0] & (inactive.sum(axis=0) >= self.fewest)
        return (is_own & fits & factors.prove(determined, zeros & inactive, inactive)) | is_like_own

    @staticmethod
    def _fits(
        factors: LowRankGradient, columns: np.ndarray, inactive: np.ndarray, active: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return which columns vanish at inactive units and not at active ones, and all of their zeros.

        One inactive unit may be wrong, and a tenth of the active ones may have a gradient of zero.
        """
        zeros = factors.zeros(columns)
        has_gradient = active & np.any(factors.left, axis=1)[:, None]
        n_vanishing = np.sum(has_gradient & zeros, axis=0)
        return (np.sum(inactive & ~zeros, axis=0) <= 1) & (n_vanishing <= 0.1 * has_gradient.sum(axis=0)), zeros


@dataclass(frozen=True)
class ZerosOfAll(Criterion):
    """All columns are certified, but their pattern does not fit: dropout, or slightly different weights.

    Parameters
    ----------
    consistent : float, default=0.8
        Share of the units with a gradient that have to be active by the weights: one half by chance. Of weights of
        another initialisation 2 of 16 columns reached 0.6.
    """

    kind = EvidenceKind.ZEROS_OF_ALL
    consistent: float = 0.8

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Certify all inputs where weights and gradient do not contradict each other."""
        shares = case.consistency
        certified = case.columns.all() & (shares >= self.consistent) & np.all(shares > 0.5)
        return certified, np.full(len(shares), np.inf)

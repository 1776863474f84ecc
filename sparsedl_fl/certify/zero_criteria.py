"""Evidence by zeros: of the gradient's columns, or of the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparsedl.arrays import rows_of
from sparsedl_fl.certify.criterion import Case, Criterion, EvidenceKind
from sparsedl_fl.certify.uncertainty import errors_from_inputs
from sparsedl_fl.layers.blocks import row_norms
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["ZerosOfAll", "ZerosOfInput", "ZerosOfOthers"]


class ZerosOfOthers(Criterion):
    """All other columns are proven, and the pattern fits."""

    kind = EvidenceKind.ZEROS_OF_OTHERS

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Look at the columns; what their zeros determine is an estimate of every input, proven or not."""
        has_pattern = case.hypothesis.problem.activation.has_flat_part
        return case.follows & case.fits & has_pattern, case.errors_by_columns[0]


class ZerosOfInput(Criterion):
    """Narrow zeros of its own lead to the input, as those of the gradient to a column: ``G^T`` is the same problem.

    But inputs are data, and some mixtures of them have more zeros than chance: ``2 (x, 1) - (2 x, 1)`` has no entry but
    that of a constant feature, and where one stroke is a tenth of another a mixture makes all of it zero. So zeros of
    the input prove nothing until what follows the layer confirms it: behind a flat part the units that are off for it,
    at which one column and no other has to vanish; behind the others the spans or the rest of the network.
    """

    kind = EvidenceKind.ZEROS_OF_INPUT
    narrow: ClassVar[float] = 0.02  # relative to the entries, as for columns: under noise mixtures vanish as well
    clearly: ClassVar[float] = 10.0  # expected errors by which a unit has to be off or on to say something; not varied
    own_overlap: ClassVar[float] = 1e-3  # cosine of an input and what a column is dual to that makes it its own
    fewest: ClassVar[int] = 10  # units off at which a column that was found otherwise vanishes by no chance

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Count the zeros of the inputs, and ask what follows the layer."""
        transposed, inputs = case.hypothesis.problem.factors.transposed, case.inputs
        proven, errors = case.nothing
        if len(inputs) == 1 or case.hypothesis.problem.factors.is_coarse:  # in which small ones round to zero
            return proven, errors
        directions = transposed.left.T @ inputs.T
        directions = directions / np.maximum(np.linalg.norm(directions, axis=0), np.finfo(float).tiny)
        zeros = transposed.zeros(directions)
        widths = np.sqrt(len(zeros)) * transposed.tolerances(directions).mean(axis=0)
        proven = transposed.prove(directions, zeros) & (widths < self.narrow)
        if not proven.any():
            return proven, errors
        by_zeros = errors_from_inputs(transposed, inputs[proven], zeros[:, proven])
        errors[proven] = np.hypot(by_zeros, case.errors_by_columns[2][proven])
        errors[proven] = np.hypot(errors[proven], self._beside_own_zeros(transposed, inputs[proven]))
        errors[proven] *= case.hypothesis.problem.beyond_noise(case.whitened[proven])
        return proven & self._is_confirmed(case, errors), errors

    @staticmethod
    def _beside_own_zeros(transposed: LowRankGradient, inputs: np.ndarray) -> np.ndarray:
        """Return how far inputs lie from where all of their zeros lead, as root mean squares."""
        within = inputs @ transposed.left
        preactivations = transposed.zero_test.refit(rows_of(within.T / np.linalg.norm(within, axis=1))).numpy()
        along = np.sum(within * preactivations, axis=1, keepdims=True) * preactivations
        return np.linalg.norm(within - along, axis=1) / np.sqrt(inputs.shape[1])

    def _is_confirmed(self, case: Case, errors: np.ndarray) -> np.ndarray:
        """Return which inputs what follows the layer confirms, each by itself."""
        problem = case.hypothesis.problem
        if problem.activation.has_flat_part:
            return self._is_confirmed_by_pattern(case, errors)
        coordinates = [
            constraint
            for constraint in (problem.subspaces, problem.tail)
            if constraint is not None and constraint.identifies
        ]
        if not coordinates or not case.preactivations.isfinite().all():
            return np.zeros(len(errors), dtype=bool)
        return np.all([constraint.at(case.preactivations).is_inside.numpy() for constraint in coordinates], axis=0)

    def _is_confirmed_by_pattern(self, case: Case, errors: np.ndarray) -> np.ndarray:
        """Return for which inputs a column vanishes at all units that are clearly off, and at no others.

        That is the one that these units determine, if it is the input's own; or, where they are too few, the one that
        the input has beside all others.
        """
        problem, factors = case.hypothesis.problem, case.hypothesis.problem.factors
        distances = problem.distance_to_kink(problem.at(case.whitened))
        allowed = self.clearly * row_norms(problem.layer_gradient.weight)[:, None] * errors
        is_clear = distances > np.where(np.isfinite(allowed), allowed, np.inf)
        off, on = is_clear & ~case.is_active, is_clear & case.is_active
        determined = factors.vanishing(off.astype(float))
        duals, within = determined / factors.singular_values[:, None], case.whitened * factors.singular_values
        overlaps = np.abs(np.sum(within.T * duals, axis=0))
        is_own = overlaps > self.own_overlap * np.linalg.norm(within, axis=1) * np.linalg.norm(duals, axis=0)
        fits, zeros = self._fits(factors, determined, off, on)
        beside = case.disaggregation / np.linalg.norm(case.disaggregation, axis=0)
        is_like_own = self._fits(factors, beside, off, on)[0] & (off.sum(axis=0) >= self.fewest)
        return (is_own & fits & factors.prove(determined, zeros & off, off)) | is_like_own

    @staticmethod
    def _fits(
        factors: LowRankGradient, columns: np.ndarray, off: np.ndarray, on: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return which columns vanish where units are off and not where they are on, and all of their zeros.

        One unit that is off may be wrong, and a tenth of those that are on may have a gradient of zero.
        """
        zeros = factors.zeros(columns)
        has_gradient = on & np.any(factors.left, axis=1)[:, None]
        n_vanishing = np.sum(has_gradient & zeros, axis=0)
        return (np.sum(off & ~zeros, axis=0) <= 1) & (n_vanishing <= 0.1 * has_gradient.sum(axis=0)), zeros


@dataclass(frozen=True)
class ZerosOfAll(Criterion):
    """All columns are proven, whose pattern does not fit: dropout, or weights that are a little off.

    Parameters
    ----------
    consistent : float, default=0.8
        Share of the units with a gradient that have to be active by the weights: one half by chance. Of weights of
        another initialisation 2 of 16 columns reached 0.6.
    """

    kind = EvidenceKind.ZEROS_OF_ALL
    consistent: float = 0.8

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Look for a contradiction of weights and gradient."""
        shares = case.consistency
        proven = case.columns.all() & (shares >= self.consistent) & np.all(shares > 0.5)
        return proven, np.full(len(shares), np.inf)

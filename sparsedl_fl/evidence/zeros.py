"""Evidence by zeros: of the gradient's columns, or of the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparsedl.arrays import rows_of
from sparsedl_fl.blocks import row_norms
from sparsedl_fl.evidence._base import Case, Evidence
from sparsedl_fl.lowrank import LowRankGradient
from sparsedl_fl.uncertainty import errors_from_inputs

__all__ = ["ZerosOfAll", "ZerosOfInput", "ZerosOfOthers"]


class ZerosOfOthers(Evidence):
    """All other columns are proven, and the pattern fits."""

    kind = "zeros of the gradient"

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Look at the columns; what their zeros determine is an estimate of every input, proven or not."""
        has_pattern = case.hypothesis.problem.activation.has_flat_part
        return case.follows & case.fits & has_pattern, case.errors_by_columns[0]


class ZerosOfInput(Evidence):
    """Narrow zeros of its own prove the input, as those of the gradient prove a column: ``G^T`` is the same problem.

    But inputs are data: what is in one ratio all over a stroke of two digits, a mixture makes zero all at once, twelve
    times in one that was certified. So the pattern must not contradict.
    """

    kind = "zeros of the input"
    narrow: ClassVar[float] = 0.02  # relative to the entries, as for columns: under noise mixtures vanish as well
    clearly: ClassVar[float] = 10.0  # expected errors by which a unit has to be off to contradict; not varied

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Count the zeros of the inputs."""
        transposed, inputs = case.hypothesis.problem.factors.transposed, case.inputs
        errors = np.full(len(inputs), np.inf)
        if len(inputs) == 1 or case.hypothesis.problem.factors.is_coarse:  # in which small ones round to zero
            return np.zeros(len(inputs), dtype=bool), errors
        directions = transposed.left.T @ inputs.T
        directions = directions / np.maximum(np.linalg.norm(directions, axis=0), np.finfo(float).tiny)
        zeros = transposed.zeros(directions)
        widths = np.sqrt(len(zeros)) * transposed.tolerances(directions).mean(axis=0)
        proven = transposed.prove(directions, zeros) & (widths < self.narrow)
        by_zeros = errors_from_inputs(transposed, inputs[proven], zeros[:, proven])
        errors[proven] = np.hypot(by_zeros, case.errors_by_columns[2][proven])
        errors[proven] = np.hypot(errors[proven], self._beside_own_zeros(transposed, inputs[proven]))
        errors[proven] *= case.hypothesis.problem.beyond_noise(case.whitened[proven])
        return proven & ~self._is_contradicted(case, errors), errors

    @staticmethod
    def _beside_own_zeros(transposed: LowRankGradient, inputs: np.ndarray) -> np.ndarray:
        """Return how far inputs lie from where all of their zeros lead, as root mean squares."""
        within = inputs @ transposed.left
        ends = transposed.zero_test.refit(rows_of(within.T / np.linalg.norm(within, axis=1))).numpy()
        along = np.sum(within * ends, axis=1, keepdims=True) * ends
        return np.linalg.norm(within - along, axis=1) / np.sqrt(inputs.shape[1])

    def _is_contradicted(self, case: Case, errors: np.ndarray) -> np.ndarray:
        """Return for which inputs units are off by the weights, clearly, that a column known by itself says are on."""
        problem = case.hypothesis.problem
        if problem.layer_gradient.is_update or not problem.activation.has_flat_part:
            return np.zeros(len(errors), dtype=bool)
        distances = problem.distance_to_kink(problem.at(case.whitened))
        is_clear = distances > self.clearly * row_norms(problem.layer_gradient.weight)[:, None] * errors
        n_contradicting = np.sum(is_clear & ~case.is_active & ~case.hypothesis.zeros, axis=0)
        return case.columns & case.determined & (n_contradicting > 1)


@dataclass(frozen=True)
class ZerosOfAll(Evidence):
    """All columns are proven, whose pattern does not fit: dropout, or weights that are a little off.

    Parameters
    ----------
    consistent : float, default=0.8
        Share of the units with a gradient that have to be active by the weights: one half by chance. Of weights of
        another initialisation 2 of 16 columns reached 0.6.
    """

    kind: ClassVar[str] = "columns alone, pattern not confirmed"
    consistent: float = 0.8

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Look for a contradiction of weights and gradient."""
        shares = case.consistency
        proven = case.columns.all() & (shares >= self.consistent) & np.all(shares > 0.5)
        return proven, np.full(len(shares), np.inf)

"""Columns estimated from all of their zero rows, and which of them their zeros certify."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sparsedl_fl.certify.hypothesis import Hypothesis
from sparsedl_fl.certify.shared_region import centred
from sparsedl_fl.certify.shared_zeros import SharedZeros, in_groups, radii_of, with_shared_zeros
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["ColumnsFromZeros", "without_outliers"]


@dataclass(frozen=True)
class ColumnsFromZeros:
    """The columns of a hypothesis after they were estimated from their zeros.

    Attributes
    ----------
    hypothesis : Hypothesis
        With the new columns.
    rows : ndarray of shape (m, b) of bool
        The zero rows of each column.
    determined : ndarray of shape (b,) of bool
        Which columns these determine.
    certified : ndarray of shape (b,) of bool
        Which columns they certify.
    shared : tuple of SharedZeros
        Groups of columns that zeros tell from all others alone.
    """

    hypothesis: Hypothesis
    rows: np.ndarray
    determined: np.ndarray
    certified: np.ndarray
    shared: tuple[SharedZeros, ...] = ()

    @classmethod
    def of(cls, hypothesis: Hypothesis, *, outlier: float, narrow: float) -> ColumnsFromZeros:
        """Estimate the columns, and certify them.

        Parameters
        ----------
        hypothesis : Hypothesis
            The columns chosen.
        outlier, narrow : float
            As in `Assembly`.
        """
        estimated = _from_all_zeros(hypothesis, outlier)
        return cls(*estimated, _certified(*estimated[:2], narrow))

    def grouped(self, chosen: Hypothesis, *, outlier: float, narrow: float) -> ColumnsFromZeros | None:
        """Return the columns with those that share their zeros in groups; None where there are no groups.

        Parameters
        ----------
        chosen : Hypothesis
            The columns before they were estimated: zeros that several share determine none of them.
        outlier, narrow : float
            As in `Assembly`.
        """
        hypothesis, shared = with_shared_zeros(chosen, self.certified, narrow)
        if not shared:
            return None
        found = ColumnsFromZeros.of(hypothesis, outlier=outlier, narrow=narrow)
        placed, shared = centred(found.hypothesis, shared, found.certified)
        for group in shared:
            found.rows[:, group.members] = group.rows[:, None]
        return replace(found, hypothesis=placed, shared=shared)

    @property
    def are_centres(self) -> np.ndarray:
        """Which inputs are the centre of a group's region, shape (b,)."""
        return radii_of(self.shared, len(self.determined)) > 0

    @property
    def others_determined(self) -> np.ndarray:
        """For which inputs zeros determine the columns of all others, or what these span, shape (b,).

        Those of a group stay open, but for its centre.
        """
        in_group = in_groups(self.shared, len(self.determined))
        is_open = ~self.determined & ~in_group
        return (~in_group | self.are_centres) & (is_open.sum() - is_open == 0)


def _from_all_zeros(hypothesis: Hypothesis, outlier: float) -> tuple[Hypothesis, np.ndarray, np.ndarray]:
    """Estimate each proposed column again, where its zero rows determine it, as their smallest singular vector.

    Where the pattern can be trusted, rows that are zero although the unit was active are left out.

    The first three of `ColumnsFromZeros`.
    """
    factors, basis = hypothesis.problem.factors, hypothesis.basis
    rows = np.where(hypothesis.fits, hypothesis.zeros & ~hypothesis.is_active, hypothesis.likely_zeros)
    if hypothesis.problem.layer_gradient.is_update:
        rows = without_outliers(factors, basis, rows, outlier)
    determined = factors.determined(basis, rows) & hypothesis.proposed
    refitted = basis.copy()
    if determined.any():
        columns = factors.vanishing(rows[:, determined])
        refitted[:, determined] = np.copysign(1.0, np.sum(columns * basis[:, determined], axis=0)) * columns
    is_basis = np.linalg.matrix_rank(refitted) == len(basis)
    return (replace(hypothesis, basis=refitted) if is_basis else hypothesis), rows, determined & is_basis


def without_outliers(factors: LowRankGradient, basis: np.ndarray, rows: np.ndarray, outlier: float) -> np.ndarray:
    """Leave out zero rows that the others of a column contradict, the worst first (by studentised residuals)."""
    if len(basis) == 1:  # a single column is right whatever its zeros
        return rows
    rows = rows.copy()
    for j in range(rows.shape[1]):
        amplification = np.linalg.norm(basis[:, j] / factors.singular_values)
        while rows[:, j].sum() > len(basis):
            index = np.flatnonzero(rows[:, j])
            left, values, _ = np.linalg.svd(factors.left[index], full_matrices=False)
            entries = left[:, -1] * values[-1]
            remaining = np.maximum(1 - np.sum(left[:, :-1] ** 2, axis=1), np.finfo(float).eps)
            residuals = np.abs(entries) / (factors.noise_level[index] * amplification * np.sqrt(remaining))
            worst = int(np.argmax(residuals))
            if residuals[worst] <= outlier or values[-2] <= np.finfo(float).eps * values[0]:
                break
            rows[index[worst], j] = False
    return rows


def _certified(hypothesis: Hypothesis, rows: np.ndarray, narrow: float) -> np.ndarray:
    """Return which columns their zeros certify, counted where the pattern expects them if that can be trusted."""
    factors, zeros, fits = hypothesis.problem.factors, hypothesis.zeros, hypothesis.fits
    expected = np.where(fits, ~hypothesis.is_active, True)
    # Where noise makes zero wide, mixtures of columns have zeros as well, and only the pattern rejects them.
    widths = np.sqrt(len(zeros)) * factors.tolerances(hypothesis.basis).mean(axis=0)
    counted = zeros & (rows | ~fits)
    is_certified = factors.prove(hypothesis.basis, counted, expected) & (fits | (widths < narrow))
    return hypothesis.proposed & is_certified & factors.apart(hypothesis.basis, counted, expected)

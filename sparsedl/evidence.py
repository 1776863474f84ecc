"""What a search works on and what bears its columns out: a part of many observations, and all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from sparsedl.arrays import as_tensor, chunks
from sparsedl.linalg import normalized, smallest_eigenvectors, zero_gram
from sparsedl.observations import Observations
from sparsedl.preconditioning import Whitening
from sparsedl.repetitions import distinct_rows
from sparsedl.zeros import ZeroTest

__all__ = ["Evidence"]

PART_FROM, ROWS_PER_COMPONENT, LEAST_ROWS = 4, 20, 1000
"""Observations beyond ``PART_FROM`` times what the search works on are left to bear it out. It works on rows for each
component, and at least so many: the first 1,000 of 20,000 x 50 are as exact as all of them, in a twentieth of the
time."""


@dataclass(frozen=True)
class Evidence:
    """The zero test that is searched, and the observations behind it.

    Attributes
    ----------
    whitening : Whitening
        Of all observations.
    part : ZeroTest
        What is searched.
    n_different : int
        Observations that are no multiple of another one; estimated from the part where they are many.
    is_whole : bool
        Whether the part is all there is.
    """

    whitening: Whitening
    part: ZeroTest
    n_different: int
    is_whole: bool

    @classmethod
    def of(cls, observed: Observations, whitening: Whitening, generator: torch.Generator) -> Evidence:
        """Return the evidence that observations are."""
        n_rows, n_wanted = len(observed.values), max(LEAST_ROWS, ROWS_PER_COMPONENT * whitening.n_components)
        if n_rows <= PART_FROM * n_wanted:
            different = _different_rows(np.asarray(observed.values), whitening.noise_level)
            return cls(whitening, _zero_test(whitening, slice(None), different), int(different.sum()), True)
        nonzero = np.concatenate([observed.values[rows].any(axis=1) for rows in whitening.chunks()])
        rows = _drawn(np.flatnonzero(nonzero), n_wanted, generator)
        different = _different_rows(observed.values[rows], whitening.noise_level[rows])
        n_different = round(float(different.double().mean()) * n_rows)
        if 2 * int(different.sum()) < n_wanted:  # most rows repeat others: only those that do not are worth a place
            all_different = _different_rows(np.asarray(observed.values), whitening.noise_level)
            rows = _drawn(np.flatnonzero(all_different.numpy()), n_wanted, generator)
            different, n_different = torch.ones(len(rows), dtype=torch.bool), int(all_different.sum())
        return cls(whitening, _zero_test(whitening, rows, different), n_different, False)

    def count_zeros(self, directions: torch.Tensor) -> torch.Tensor:
        """Return the number of zeros of each direction among all observations."""
        counts = torch.zeros(len(directions), dtype=torch.int64)
        for test in self._tests():
            counts += test.zeros(directions).sum(dim=1)
        return counts

    def refit(self, directions: torch.Tensor) -> torch.Tensor:
        """Return directions estimated again from their likely zeros among all observations (`ZeroTest.vanishing`)."""
        whitener, _ = self.part.in_units_of_noise
        parts = [
            self._refit_some(directions[part], whitener) for part in chunks(len(directions), whitener.numel(), 2**21)
        ]
        return torch.cat([directions[:0], *parts])

    def _refit_some(self, directions: torch.Tensor, whitener: torch.Tensor) -> torch.Tensor:
        grams = (zero_gram(test.observations @ whitener, test.likely_zeros(directions)) for test in self._tests())
        return normalized(smallest_eigenvectors(sum(grams, start=torch.zeros(())))[1] @ whitener.T)

    def _tests(self) -> Iterator[ZeroTest]:
        if self.is_whole:
            yield self.part
            return
        for rows in self.whitening.chunks():
            yield _zero_test(self.whitening, rows, torch.ones(0, dtype=torch.bool))


def _drawn(rows: np.ndarray, n_wanted: int, generator: torch.Generator) -> np.ndarray:
    return rows[torch.randperm(len(rows), generator=generator)[:n_wanted].numpy()]


def _different_rows(X: np.ndarray, noise_level: np.ndarray) -> torch.Tensor:
    """Return which observations are no multiple of another one, up to noise: what repeats proves nothing again."""
    rows = torch.from_numpy(np.array(X, dtype=np.float64))
    lengths = torch.linalg.vector_norm(rows, dim=1).clamp(min=np.finfo(float).tiny)
    widths = ZeroTest.noise_multiple * X.shape[1] ** 0.5 * torch.from_numpy(np.ascontiguousarray(noise_level))
    return distinct_rows(rows / lengths[:, None], widths / lengths)


def _zero_test(whitening: Whitening, rows: slice | np.ndarray, evidence: torch.Tensor) -> ZeroTest:
    return ZeroTest(
        observations=as_tensor(whitening.rows(rows)),
        unmixing=as_tensor(whitening.unmixing),
        noise_level=as_tensor(whitening.noise_level[rows]),
        evidence=evidence,
    )

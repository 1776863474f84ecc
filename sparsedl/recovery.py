"""One attempt to recover a dictionary: whiten, search a part of the observations, prove on all of them.

With an offset, ``X = codes @ components + offset``, a column of ones is appended. The codes then have one column more,
which is constant and known, and the offset is its component: centring, or a scaler in a pipeline, loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike

from sparsedl.floor import noise_of_zeros
from sparsedl.linalg import normalized
from sparsedl.pools import CandidatePool, assemble_basis, without_mixtures
from sparsedl.preconditioning import Whitening, whiten
from sparsedl.repetitions import distinct_rows
from sparsedl.search import INTERRUPTED, Search, SearchResult
from sparsedl.zeros import ZeroTest

__all__ = ["Recovery", "recover", "with_ones"]


@dataclass(frozen=True)
class Recovery:
    """What an attempt found.

    Attributes
    ----------
    basis : ndarray of shape (k, k)
        Directions in whitened coordinates as columns; the constant one, if any, is last.
    proven : ndarray of shape (k,) of bool
        Which of them are proven, without the constant one.
    n_zeros : ndarray of shape (k,)
        Zeros of each, over all observations.
    candidates : ndarray of shape (k, n_candidates)
        All distinct proven directions.
    whitening : Whitening
        Of all observations.
    result : SearchResult
        How the search went.
    n_repetitive : int
        Columns with zeros enough that hold few values and are not proven for that.
    """

    basis: np.ndarray
    proven: np.ndarray
    n_zeros: np.ndarray
    candidates: np.ndarray
    whitening: Whitening
    result: SearchResult
    n_repetitive: int = 0

    @property
    def status(self) -> str:
        """``"complete"``, or in words why not."""
        return "complete" if self.proven.all() else self.result.status

    @property
    def advice(self) -> str:
        """What is missing, and what may help."""
        n_found, k = int(self.proven.sum()), len(self.proven)
        text = "raise max_rounds or n_starts"
        if self.n_repetitive:
            text = (
                f"the codes of {self.n_repetitive} directions take few values, whose mixtures have zeros too: "
                "they may be right, but their zeros do not prove it"
            )
        elif n_found == 0:
            text = (
                "the observations may be dense in every direction, have fewer than about 2 samples with a zero for "
                "each component, or be noisier than noise_level says: set noise_level, or give more observations"
            )
        return f"recovered {n_found} of {k} components ({self.status}); {text}"

    def solution(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return components of shape (k, n_features), directions of shape (n_features, k), and the offset."""
        n_features, k = X.shape[1], len(self.proven)
        components = np.linalg.solve(self.basis, self.whitening.mixing)
        directions = self.whitening.unmixing @ self.basis[:, :k]
        offset = np.zeros(n_features)
        if len(components) > k:  # the last one is that of the constant code
            offset = X.mean(axis=0) + components[-1, :n_features] / components[-1, -1] * with_ones(X)[0, -1]
        return components[:k, :n_features], directions[:n_features], offset

    @property
    def quality(self) -> tuple[int, int]:
        """What makes one attempt better than another: complete first, then the number of zeros that are proven."""
        return int(self.proven.all()), int(self.n_zeros[self.proven].sum())


def recover(
    X: np.ndarray,
    n_components: int | None,
    noise_level: ArrayLike | None,
    make_search: Callable[[ZeroTest, torch.Tensor], Search],
    generator: torch.Generator,
    report: Callable[[int, str], None],
    with_offset: bool = False,
    *,
    clearly_noisier: float = 3.0,
) -> Recovery:
    """Attempt a recovery.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Observations.
    n_components : int or None
        Number of components, the constant one not counted.
    noise_level : float, array-like of shape (n_samples,) or None
        Noise on the entries of ``X``; None derives it, at last from the zeros of the directions found.
    make_search : callable
        Makes a `Search` of a zero test and of directions known beforehand.
    generator : torch.Generator
        Source of randomness.
    report : callable
        Takes the number of columns found, and a text.
    with_offset : bool, default=False
        Whether to append a column of ones.
    clearly_noisier : float, default=3
        Noise that the zeros show, over what was assumed, from which on it is worth another search.
    """
    if not np.any(X):
        raise ValueError("X is all zeros: there is no dictionary to recover")
    observed = X
    if with_offset:
        X = with_ones(X)
        n_components = None if n_components is None else n_components + 1
    whitening = whiten(X, n_components, noise_level)
    test = _zero_test(whitening, _different_rows(observed, whitening.noise_level))
    known = torch.zeros((0, whitening.whitened.shape[1]), dtype=torch.float64)
    if with_offset:
        known = normalized(torch.from_numpy(whitening.mixing[:, -1].copy())[None], dim=1)
    part = _part_of(test, generator)
    search = make_search(part, known)
    result = search.run(generator, report)
    floor = None
    if noise_level is None and result.status not in ("complete", INTERRUPTED):
        floor = noise_of_zeros(search, result)
    if floor is not None and floor > clearly_noisier * np.median(whitening.noise_level):
        whitening = replace(whitening, noise_level=np.maximum(whitening.noise_level, floor))
        test = _zero_test(whitening, _different_rows(observed, whitening.noise_level))
        part = _part_of(test, generator)
        again = make_search(part, known).run(generator, report)
        result = replace(again, n_starts=again.n_starts + result.n_starts, n_rounds=again.n_rounds + result.n_rounds)
    return _on_all_rows(test, part, known, whitening, result)


def with_ones(X: np.ndarray) -> np.ndarray:
    """Return observations without their mean, and a column of a constant of their size."""
    centred = np.asarray(X, dtype=np.float64) - X.mean(axis=0, dtype=np.float64)
    ones = np.full(len(X), np.sqrt(np.mean(centred**2)) or 1.0)
    return np.column_stack([centred, ones]).astype(X.dtype)


def _different_rows(X: np.ndarray, noise_level: np.ndarray) -> torch.Tensor:
    """Return which observations are no multiple of another one, up to noise: what repeats proves nothing again."""
    rows = torch.from_numpy(np.array(X, dtype=np.float64))
    lengths = torch.linalg.vector_norm(rows, dim=1).clamp(min=np.finfo(float).tiny)
    widths = ZeroTest.noise_multiple * X.shape[1] ** 0.5 * torch.from_numpy(np.ascontiguousarray(noise_level))
    return distinct_rows(rows / lengths[:, None], widths / lengths)


def _zero_test(whitening: Whitening, evidence: torch.Tensor) -> ZeroTest:
    return ZeroTest(
        observations=torch.from_numpy(whitening.whitened),
        unmixing=torch.from_numpy(whitening.unmixing),
        noise_level=torch.from_numpy(np.ascontiguousarray(whitening.noise_level)),
        evidence=evidence,
    )


def _part_of(
    test: ZeroTest,
    generator: torch.Generator,
    *,
    part_from: int = 4,
    rows_per_component: int = 20,
    least_rows: int = 1000,
) -> ZeroTest:
    """Return the zero test on a random part of many observations.

    Those beyond ``part_from`` times what the search works on are left to the proof: rows for each component, and at
    least so many (the first 1,000 of 20,000 x 50 are as exact as all of them, in a twentieth of the time).
    """
    n_rows, k = test.observations.shape
    n_wanted = max(least_rows, rows_per_component * k)
    if n_rows <= part_from * n_wanted:
        return test
    candidates = torch.nonzero(test.distinct_rows)[:, 0]
    rows = candidates[torch.randperm(len(candidates), generator=generator)[:n_wanted]]
    return ZeroTest(test.observations[rows], test.unmixing, test.noise_level[rows], test.evidence[rows])


def _proven(directions: torch.Tensor, test: ZeroTest) -> torch.Tensor:
    """Return which directions of a selection are proven, after all of them are there.

    Observations with a single code are multiples of its component, and of each other: once all columns are there, they
    can be told from repetitions, and count.
    """
    zeros = test.zeros(directions)
    proven = test.prove(directions, zeros)
    if len(directions) and not proven.all():
        plain = replace(test, evidence=None)
        single = (~zeros).sum(dim=0) == 1
        wider = replace(test, evidence=test.evidence | (single & plain.distinct_rows))
        proven |= wider.prove(directions, zeros)
    return proven


def _takes_few_values(
    directions: torch.Tensor,
    zeros: torch.Tensor,
    test: ZeroTest,
    *,
    different: float = 0.7,
    fewest_entries: int = 3,
    visible: float = 0.2,
) -> torch.Tensor:
    """Return which columns hold few values: those of a mixture then cancel often, and zeros are no evidence.

    They do where the share of different values among its entries is smaller than ``different``, a column has
    ``fewest_entries``, and zeros are not so wide that the ``visible`` share of the range of all falls into one.
    """
    few = torch.zeros(len(directions), dtype=torch.bool)
    entries, tolerances = (directions @ test.observations.T).abs(), test.tolerances(directions)
    for index in range(len(directions)):
        used = test.distinct_rows & ~zeros[index]
        moduli, order = entries[index, used].sort()
        widths = 2 * tolerances[index, used][order][1:]
        # Where noise is wide, different values look the same, and nothing can be said.
        if len(moduli) < fewest_entries or len(moduli) * widths.mean() > visible * moduli.mean():
            continue
        n_values = 1 + int((moduli.diff() > widths).sum())
        few[index] = n_values <= different * len(moduli)
    return few


def _on_all_rows(
    test: ZeroTest,
    part: ZeroTest,
    known: torch.Tensor,
    whitening: Whitening,
    result: SearchResult,
    *,
    borne_out: float = 0.5,
) -> Recovery:
    """Estimate the columns found from all observations, and prove them there.

    The share of zeros among all of them, relative to that in the part, has to be ``borne_out`` at least.
    """
    pool = result.pool
    if part is not test and len(pool.directions):
        directions = test.vanishing(test.likely_zeros(pool.directions).to(torch.float64))
        pool = CandidatePool.empty(directions.shape[1])
        pool.add(directions, test.zeros(directions).sum(dim=1))
    # A constant code makes nothing sparse, and mixtures with it are no columns.
    selection = without_mixtures(pool.selection(known), part).selection(known)
    proven = _proven(selection.directions, part)
    repeats = proven & _takes_few_values(selection.directions, part.zeros(selection.directions), part)
    proven = (proven & ~repeats).numpy()
    # The part proves them, and the other rows have to bear it out.
    shares = part.zeros(selection.directions).double().mean(dim=1)
    proven &= (selection.n_zeros >= borne_out * shares * len(test.observations)).numpy()
    kept = CandidatePool(selection.directions[proven], selection.n_zeros[proven])
    unproven = result.unproven
    unproven.add(selection.directions[~proven], torch.zeros(int((~proven).sum()), dtype=torch.float64))
    basis = assemble_basis(kept, unproven, known)
    n_proven, k = len(kept.directions), basis.shape[1] - len(known)
    n_zeros = np.zeros(k, dtype=int)
    n_zeros[:n_proven] = kept.n_zeros.numpy()
    return Recovery(
        basis=basis,
        proven=np.arange(k) < n_proven,
        n_zeros=n_zeros,
        candidates=pool.directions.numpy().T,
        whitening=whitening,
        result=replace(result, pool=pool),
        n_repetitive=int(repeats.sum()),
    )

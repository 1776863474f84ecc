"""One attempt to recover a dictionary: whiten, search a part of the observations, prove on all of them.

With an offset, ``X = codes @ components + offset``, a column of ones is appended. The codes then have one column more,
which is constant and known, and the offset is its component: centring, or a scaler in a pipeline, loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from sparsedl.candidates import CandidatePool, assemble_basis
from sparsedl.evidence import Evidence
from sparsedl.floor import noise_of_zeros
from sparsedl.linalg import normalized
from sparsedl.mixtures import without_mixtures
from sparsedl.observations import Observations
from sparsedl.preconditioning import Whitening
from sparsedl.repetitions import takes_few_values
from sparsedl.search import INTERRUPTED, Search, SearchResult
from sparsedl.zeros import ZeroTest

__all__ = ["Recovery", "recover"]


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
    observations : Observations
        What was searched.
    result : SearchResult
        How the search went.
    n_different : int
        Observations that are no multiple of another one.
    n_repetitive : int
        Columns with zeros enough that hold few values and are not proven for that.
    """

    basis: np.ndarray
    proven: np.ndarray
    n_zeros: np.ndarray
    candidates: np.ndarray
    whitening: Whitening
    observations: Observations
    result: SearchResult
    n_different: int
    n_repetitive: int = 0

    @property
    def is_certain(self) -> np.ndarray:
        """Which components are certain: all if all are proven, and where one is not, that one.

        Its component is what the proven directions do not see. Theirs change with the code that is missing.
        """
        is_open = ~self.proven
        return is_open if is_open.sum() == 1 and len(is_open) > 1 else np.full(len(is_open), not is_open.any())

    def solution(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return unit components of shape (k, n_features), directions of shape (n_features, k), and the offset.

        In the units of ``X``, of which components of unit length and their directions have none.
        """
        observed, k = self.observations, len(self.proven)
        n_features, largest = len(observed.columns), observed.columns.max()
        found = np.linalg.solve(self.basis, self.whitening.mixing)
        components = np.ldexp(found[:k, :n_features], observed.columns - largest)
        directions = np.ldexp(
            (self.whitening.unmixing @ self.basis[:, :k])[:n_features], (largest - observed.columns)[:, None]
        )
        scale = np.linalg.norm(components, axis=1)
        scale *= np.sign(components[np.arange(k), np.abs(components).argmax(axis=1)])
        offset = np.zeros(n_features)
        if observed.mean is not None:  # the last component is that of the constant code
            offset = observed.mean + found[-1, :n_features] / found[-1, -1] * observed.one
        return components / scale[:, None], directions * scale, np.ldexp(offset, observed.base + observed.columns)

    def all_candidates(self) -> np.ndarray:
        """Return all proven directions in the units of ``X``, of shape (n_features, n_candidates)."""
        columns = self.observations.columns
        directions = (self.whitening.unmixing @ self.candidates)[: len(columns)]
        return np.ldexp(directions, -(self.observations.base + columns)[:, None])

    @property
    def quality(self) -> tuple[int, int]:
        """What makes one attempt better than another: complete first, then the number of zeros that are proven."""
        return int(self.proven.all()), int(self.n_zeros[self.proven].sum())


def recover(
    observations: Observations,
    n_components: int | None,
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
    observations : Observations
        Observations in units of their own; without a noise level it is derived, at last from the zeros of the
        directions found.
    n_components : int or None
        Number of components, the constant one not counted.
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
    if with_offset:
        observations = observations.with_offset()
    observed, whitening = _without_rows_alone(observations, n_components)
    if with_offset and whitening.n_components == 1:
        raise ValueError("X is one offset in all rows: there is no component beside it to recover")
    known = torch.zeros((0, whitening.n_components), dtype=torch.float64)
    if with_offset:
        known = normalized(torch.from_numpy(whitening.mixing[:, -1].copy())[None])
    evidence = Evidence.of(observed, whitening, generator)
    search = make_search(evidence.part, known)
    result = search.run(generator, report)
    floor = None
    if observed.noise_level is None and result.status not in ("complete", INTERRUPTED):
        floor = noise_of_zeros(search, result)
    if floor is not None and floor > clearly_noisier * np.median(whitening.noise_level):
        whitening = replace(whitening, noise_level=np.maximum(whitening.noise_level, floor))
        evidence = Evidence.of(observed, whitening, generator)
        again = make_search(evidence.part, known).run(generator, report)
        result = replace(again, n_starts=again.n_starts + result.n_starts, n_rounds=again.n_rounds + result.n_rounds)
    return _on_all_rows(evidence, known, observed, result)


def _without_rows_alone(observed: Observations, n_components: int | None) -> tuple[Observations, Whitening]:
    """Return the observations, and whitened, without those that lie outside the span of all others.

    A row with a wrong entry does. It has a component of its own, mixed with which every other column has as many zeros:
    nothing is proven with it, and without it all may be.
    """
    whitening = observed.whitened(n_components)
    alone = whitening.leverages > 1 - observed.eps**0.5
    n_rows, rank = len(alone), len(whitening.singular_values)
    n_left = rank - int(alone.sum()) - (observed.mean is not None)
    # Where there are hardly more rows than components all are alone, and nothing is proven either way.
    if not alone.any() or n_rows < rank + 2 or n_left < (n_components or 1):
        return observed, whitening
    observed = observed.only(~alone)
    return observed, observed.whitened(n_components)


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


def _only_component(evidence: Evidence, observed: Observations, result: SearchResult) -> Recovery:
    """Return the one direction that there is: certain where what lies beyond it is rounding, and else not."""
    one, is_certain = torch.ones((1, 1), dtype=torch.float64), len(evidence.whitening.singular_values) == 1
    return Recovery(
        basis=one.numpy(),
        proven=np.array([is_certain]),
        n_zeros=evidence.count_zeros(one).numpy() * is_certain,
        candidates=one.numpy()[:, : int(is_certain)],
        whitening=evidence.whitening,
        observations=observed,
        result=result,
        n_different=evidence.n_different,
    )


def _on_all_rows(
    evidence: Evidence, known: torch.Tensor, observed: Observations, result: SearchResult, *, borne_out: float = 0.5
) -> Recovery:
    """Estimate the columns found from all observations, and prove them there.

    The share of zeros among all of them, relative to that in the part, has to be ``borne_out`` at least.
    """
    part, n_rows = evidence.part, len(observed.values)
    if part.observations.shape[1] == 1:
        return _only_component(evidence, observed, result)
    pool = result.pool
    if not evidence.is_whole and len(pool.directions):
        directions = evidence.refit(pool.directions)
        pool = CandidatePool.empty(directions.shape[1])
        pool.add(directions, evidence.count_zeros(directions))
    # A constant code makes nothing sparse, and mixtures with it are no columns.
    selection = without_mixtures(pool.selection(known), part).selection(known)
    proven = _proven(selection.directions, part)
    used = part.distinct_rows & ~part.zeros(selection.directions)
    entries, tolerances = selection.directions @ part.observations.T, part.tolerances(selection.directions)
    repeats = proven & takes_few_values(entries.abs(), tolerances, used)
    proven = (proven & ~repeats).numpy()
    # The part proves them, and the other rows have to bear it out.
    shares = part.zeros(selection.directions).double().mean(dim=1)
    proven &= (selection.n_zeros >= borne_out * shares * n_rows).numpy()
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
        whitening=evidence.whitening,
        observations=observed,
        result=replace(result, pool=pool),
        n_different=evidence.n_different,
        n_repetitive=int(repeats.sum()),
    )

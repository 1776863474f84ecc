"""What an attempt found: which directions of the search are proven, and the dictionary that they are part of."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from sparsedl.candidates import CandidatePool, assemble_basis
from sparsedl.evidence import Evidence
from sparsedl.expected_errors import component_errors
from sparsedl.mixtures import without_mixtures
from sparsedl.noisy import NoisyEstimate
from sparsedl.observations import Observations
from sparsedl.preconditioning import Whitening
from sparsedl.repetitions import takes_few_values
from sparsedl.stages import SearchResult
from sparsedl.zeros import ZeroTest

__all__ = ["Recovery", "conclude", "proven_directions"]


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
    errors : ndarray of shape (k,)
        Expected sine of the angle of each component to the true one; 1 where nothing is known.
    n_repetitive : int
        Columns with zeros enough that hold few values and are not proven for that.
    estimate : NoisyEstimate or None
        Under noise, the maximum of the likelihood: components and directions are taken from it.
    """

    basis: np.ndarray
    proven: np.ndarray
    n_zeros: np.ndarray
    candidates: np.ndarray
    whitening: Whitening
    observations: Observations
    result: SearchResult
    n_different: int
    errors: np.ndarray
    n_repetitive: int = 0
    estimate: NoisyEstimate | None = None

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
        directions = (self.whitening.unmixing @ self.basis[:, :k])[:n_features]
        if self.estimate is not None:
            found, directions = self.estimate.components, self.estimate.directions
        components = np.ldexp(found[:k, :n_features], observed.columns - largest)
        directions = np.ldexp(directions, (largest - observed.columns)[:, None])
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


def proven_directions(directions: torch.Tensor, test: ZeroTest) -> torch.Tensor:
    """Return which directions of a selection are proven, after all of them are there.

    Observations with a single code are multiples of its component, and of each other: once all columns are there, they
    can be told from repetitions, and count.
    """
    zeros = test.zeros(directions)
    proven = test.prove(directions, zeros)
    if len(directions) and not proven.all():
        plain = replace(test, evidence=None)
        single = (~zeros).sum(dim=0) == 1
        wider = replace(test, evidence=test.distinct_rows | (single & plain.distinct_rows))
        proven |= wider.prove(directions, zeros)
    return proven


def _strong_enough(n_zeros: np.ndarray, proven: np.ndarray, part: ZeroTest) -> np.ndarray:
    """Return which columns have the zeros that are asked of them where most are missing: twice those that come free.

    Codes of few values make rows depend on each other, and a search that goes through thousands of starts finds the
    direction where 16 rows of 96 do (12 components of signs, `hostile_data(50901)`). With all columns there it shows.
    """
    n_components = part.observations.shape[1]
    if 2 * proven.sum() >= n_components:
        return np.ones(len(proven), dtype=bool)
    return n_zeros >= 2 * (n_components - 1)


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
        errors=np.array([0.0 if is_certain else 1.0]),
    )


def conclude(
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
    by_zeros = proven_directions(selection.directions, part)
    zeros = part.zeros(selection.directions)
    used = part.distinct_rows & ~zeros
    entries, tolerances = selection.directions @ part.observations.T, part.tolerances(selection.directions)
    repeats = by_zeros & takes_few_values(entries.abs(), tolerances, used)
    # Where most repeat their values, mixtures of these cancel too, to values of their own.
    proven = (by_zeros & ~repeats & (2 * repeats.sum() <= by_zeros.sum())).numpy()
    # The part proves them, and the other rows have to bear it out.
    shares = zeros.double().mean(dim=1)
    proven &= (selection.n_zeros >= borne_out * shares * n_rows).numpy()
    proven &= _strong_enough(zeros[:, part.distinct_rows].sum(dim=1).numpy(), proven, part)
    kept = CandidatePool(selection.directions[proven], selection.n_zeros[proven])
    unproven = result.unproven
    unproven.add(selection.directions[~proven], torch.zeros(int((~proven).sum()), dtype=torch.float64))
    basis = assemble_basis(kept, unproven, known)
    n_proven, k = len(kept.directions), basis.shape[1] - len(known)
    n_zeros = np.zeros(k, dtype=int)
    n_zeros[:n_proven] = kept.n_zeros.numpy()
    is_kept = np.arange(basis.shape[1]) < n_proven
    return Recovery(
        basis=basis,
        proven=is_kept[:k],
        n_zeros=n_zeros,
        candidates=pool.directions.numpy().T,
        whitening=evidence.whitening,
        observations=observed,
        result=replace(result, pool=pool),
        n_different=evidence.n_different,
        errors=component_errors(basis, is_kept, part, evidence.whitening.mixing, n_rows, n_known=len(known))[:k],
        n_repetitive=int(repeats.sum()),
    )

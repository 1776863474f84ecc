"""Which tokens stand at which positions: each candidate is run through the model's front and held against a row space.

References
----------
Petrov et al., "DAGER: Exact gradient inversion for large language models", NeurIPS 2024, Sec. 4.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from sparsedl_fl.audit.text.front import Fronts
from sparsedl_fl.audit.text.layer_space import WITHIN, LayerSpace

__all__ = ["Pairs", "find_pairs"]

SIGNIFICANCE = 1e-3
"""Chance that any wrong candidate counts as found, over all candidates."""

CLEARLY_OUTSIDE = 10.0
"""Distance over the expected one from which on a candidate is a wrong one."""

N_OTHERS = 64
"""Tokens that the embedding's gradient does not show and that are tried all the same: they are what wrong candidates
look like, and one may be in the batch whose row was zeroed."""

MOST_CANDIDATES = 2**21
"""Candidates that are tried at most: MiniLM's 30,522 tokens at 68 positions."""

MOST_POSITIONS = 2**12
"""Longest text that is tried."""

MOST_NEAR = 2**12
"""Candidates in the row space beyond which nothing is concluded."""

CHUNK = 2**14
"""Candidates whose vectors are held at the same time, at least."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Tokens with their positions that lie in the row space of the first layers.

    Attributes
    ----------
    tokens, positions : ndarray of shape (k,) of int
        The pairs, in the order of positions; a position is -1 where the model adds none.
    vectors : ndarray of shape (k, n)
        What the layers are fed for them.
    distances : ndarray of shape (k,)
        From the row space, relative to the vectors.
    p_values : ndarray of shape (k,)
        Chance that any wrong candidate lies as near as that would be counted, over all candidates.
    is_single : ndarray of shape (k,) of bool
        Whether a pair is certain: it lies outside the span of the others, else one of them may be wrong, chance does
        not explain it, and no pair is missing that the gradients show.
    left_over : float
        What the gradients have outside the span of the pairs, over the noise: at most one where they are all.
    nearest_wrong : float
        Least distance of any other candidate, relative to it; infinity without any.
    n_unclear : int
        Candidates that are neither in the row space nor clearly outside.
    n_candidates : int
        Number of candidates.
    length : int
        Positions that were tried.
    """

    tokens: np.ndarray
    positions: np.ndarray
    vectors: np.ndarray = field(repr=False)
    distances: np.ndarray
    p_values: np.ndarray
    is_single: np.ndarray
    left_over: float
    nearest_wrong: float
    n_unclear: int
    n_candidates: int
    length: int

    @property
    def is_whole(self) -> bool:
        """Whether the gradients are of these pairs alone, each of which they need."""
        return len(self.tokens) > 0 and bool(self.is_single.all()) and self.left_over <= 1

    @property
    def n_certified(self) -> int:
        """Number of pairs that are certain."""
        return int(self.is_single.sum())

    def at(self, position: int) -> list[int]:
        """Return the certain tokens at a position."""
        return self.tokens[self.is_single & (self.positions == position)].tolist()


def find_pairs(fronts: Fronts, space: LayerSpace, shown: Collection[int]) -> Pairs:
    """Return the tokens at their positions that a batch holds, as far as the first layers show them.

    First the tokens that the embedding's gradient shows are tried at the example's positions, with a few others; then
    at more positions; then the whole vocabulary, as far as the number of candidates allows.

    Parameters
    ----------
    fronts : Fronts
        The model up to these layers.
    space : LayerSpace
        Row space of their gradients.
    shown : collection of int
        Token ids that the embedding's gradient shows; empty where it shows none.
    """
    best: Pairs | None = None
    for tokens, length in _trials(fronts, space, shown):
        if best is not None and (best.is_whole or (length > best.length and not _may_be_longer(best))):
            continue
        found = _pairs_among(fronts, space, tokens, length)
        if best is None or (found.left_over, -found.n_certified) < (best.left_over, -best.n_certified):
            best = found
    return best


def _may_be_longer(pairs: Pairs) -> bool:
    """Return whether texts may go on beyond the positions tried: one has a token at the last of them."""
    return bool(np.any(pairs.positions == pairs.length - 1))


def _trials(fronts: Fronts, space: LayerSpace, shown: Collection[int]) -> Iterator[tuple[np.ndarray, int]]:
    """Yield tokens and numbers of positions to try, the fewest first."""
    everything = np.arange(fronts.vocabulary_size)
    known = np.array(sorted(shown), dtype=int)
    others = np.setdiff1d(everything, known)
    rng = np.random.default_rng(0)
    few = np.concatenate([known, rng.choice(others, min(len(others), N_OTHERS), replace=False)])
    pools = [few, everything] if len(known) and len(few) < len(everything) else [everything]
    longest = min(MOST_POSITIONS, max(fronts.length, space.space.n_directions))
    for tokens in pools:
        length = fronts.length if fronts.first.has_positions else 1
        while len(tokens) * length <= MOST_CANDIDATES:
            yield tokens, length
            longer = min(2 * length, longest)
            while longer > length and not fronts.takes(longer):
                longer = (length + longer) // 2
            if longer <= length or not fronts.first.has_positions:
                break
            length = longer


def _pairs_among(fronts: Fronts, space: LayerSpace, tokens: np.ndarray, length: int) -> Pairs:
    """Test each of some tokens at each of some positions."""
    run_length = length if fronts.first.has_positions else fronts.length
    at_once = max(1, CHUNK // run_length)
    distances, expected, vectors = [], [], []
    for start in range(0, len(tokens), at_once):
        some = torch.from_numpy(tokens[start : start + at_once])
        rows = fronts.grid(some, run_length)[:, :length].reshape(len(some) * length, -1).numpy()
        far, near = space.distances(rows)
        distances.append(far)
        expected.append(near)
        vectors.append(rows[far <= WITHIN * near])
    far, near = np.concatenate(distances), np.concatenate(expected)
    is_near, is_outside = far <= WITHIN * near, far >= CLEARLY_OUTSIDE * near
    p_values = np.minimum(len(far) * space.chance(far[is_outside], WITHIN * near[is_near]), 1.0)
    index, own = np.flatnonzero(is_near), np.concatenate(vectors)
    if len(index) > MOST_NEAR:  # noise hides what is what
        kept = p_values <= SIGNIFICANCE
        index, own, p_values = index[kept][:MOST_NEAR], own[kept][:MOST_NEAR], p_values[kept][:MOST_NEAR]
    positions = index % length if fronts.first.has_positions else np.full(len(index), -1)
    picked = tokens[index // length]
    order = np.lexsort((picked, positions))
    constants = fronts.constants(run_length).numpy()
    known = own[order]
    if len(constants):
        in_space = np.less_equal(
            *(part * factor for part, factor in zip(space.distances(constants), (1, WITHIN), strict=True))
        )
        constants = constants[in_space]
    spanning = np.vstack([known, constants])
    left_over = space.left_over(spanning) if 0 < len(spanning) <= MOST_NEAR else np.inf
    return Pairs(
        tokens=picked[order],
        positions=positions[order],
        vectors=known,
        distances=far[index][order],
        p_values=p_values[order],
        # Where pairs are missing, a wrong one may stand in for them: (a, 1) - (b, 1) + (b, 2) is nearly (a, 2).
        is_single=_are_single(spanning, near[index][order]) & (p_values[order] <= SIGNIFICANCE) & (left_over <= 1),
        left_over=left_over,
        nearest_wrong=float(far[~is_near].min(initial=np.inf)),
        n_unclear=int(np.sum(~is_near & ~is_outside)),
        n_candidates=len(far),
        length=length,
    )


def _are_single(vectors: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return which of the first vectors lie clearly outside the span of all others.

    Parameters
    ----------
    vectors : ndarray of shape (k, n)
        Pairs first, then others that lie in the row space.
    expected : ndarray of shape (j,)
        Distance from the row space that is expected of each pair, relative to it.
    """
    if not len(expected):
        return np.zeros(0, dtype=bool)
    rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    _, S, right = np.linalg.svd(rows, full_matrices=False)
    left = rows @ right.T / np.maximum(S, np.finfo(float).tiny)
    least = np.finfo(float).eps * S[0] * max(rows.shape)
    if len(rows) > rows.shape[1]:
        return np.zeros(len(expected), dtype=bool)
    # The distance of a row from the span of the others is one over the norm of its column of the pseudoinverse.
    apart = 1 / np.linalg.norm(left / np.maximum(S, least), axis=1)
    return apart[: len(expected)] > CLEARLY_OUTSIDE * np.maximum(expected, least)

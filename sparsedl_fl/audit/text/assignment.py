"""Which tokens belong to the same sentence: a search among the tokens of each position, which a later layer decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from sparsedl_fl.audit.text.contexts import Contexts, Verified

__all__ = ["Assigned", "assign"]

MOST_TOKENS, FIRST_TOKENS = 2**19, 2**17
"""Tokens that the model is run on at most in a search, and in one that finds nothing. (Four sentences of 32 tokens took
280,000.)"""

MOST_STARTS, FEW_STARTS = 40, 4
"""Starts for a token whose sentence is not found, and for one of a sentence that is."""

SHARE = 0.5
"""Exchanges that bring as much of the best one's gain are made at the same time."""


@dataclass
class Assigned:
    """The sentences that were found.

    Attributes
    ----------
    sentences : dict of tuple of int to Verified
        Their token ids, with their proof.
    left_over : float
        What the later layer's gradient has outside the span of their rows, over the noise.
    is_complete : bool
        Whether the gradients are of these sentences alone.
    n_tokens : int
        Tokens that the model was run on.
    """

    sentences: dict[tuple[int, ...], Verified] = field(default_factory=dict)
    left_over: float = np.inf
    is_complete: bool = False
    n_tokens: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether the search has come to its end."""
        return self.n_tokens >= (MOST_TOKENS if self.sentences else FIRST_TOKENS)


def assign(
    contexts: Contexts,
    choices: list[list[int]],
    certain: set[tuple[int, int]],
    spans: Callable[[set[tuple[int, int]]], bool],
) -> Assigned:
    """Find the sentences of a batch among the tokens of each position.

    A token that is certain and whose sentence is not known yet is held fixed, if there is one; from random tokens at
    the other positions, preferably unknown ones too, exchanges that bring the rows nearer are made until none does. A
    sentence may end wherever a later position has fewer tokens, or anywhere where that finds none.

    Parameters
    ----------
    contexts : Contexts
        The later layer.
    choices : list of list of int
        Tokens of the batch at each position, and some that only seem to be.
    certain : set of (int, int)
        Positions with tokens that certainly are.
    spans : callable
        Whether the first layers' gradients are of nothing else than given positions with tokens.
    """
    found, rng = Assigned(), np.random.default_rng(0)
    pairs = {(place, token) for place, tokens in enumerate(choices) for token in tokens}
    covered: set[tuple[int, int]] = set()
    given_up: set[tuple[int, int] | None] = set()
    while not found.is_spent and not found.is_complete:
        left = certain - covered - given_up
        # Longer sentences first: the last positions have the fewest tokens.
        anchor = max(left, key=lambda pair: (pair[0], -pair[1]), default=None)
        if anchor in given_up or not pairs - covered:
            break
        for ids in _descents(contexts, choices, anchor, pairs - covered, rng, found):
            verified = contexts.verified(list(ids), choices[: len(ids)])
            if verified.is_in_batch and ids not in found.sentences:
                _add(contexts, ids, verified, found)
                covered |= set(enumerate(ids))
                found.is_complete = found.left_over <= 1 and spans(covered)
                break
        else:
            given_up.add(anchor)
    if found.sentences and not found.is_complete and spans(covered):
        _add_covered(contexts, choices, rng, found)
    return found


def _add(contexts: Contexts, ids: tuple[int, ...], verified: Verified, found: Assigned) -> None:
    found.sentences[ids] = verified
    found.left_over = contexts.left_over([one.rows for one in found.sentences.values()])


def _add_covered(contexts: Contexts, choices: list[list[int]], rng: np.random.Generator, found: Assigned) -> None:
    """Look for sentences all of whose tokens others have too, at the same positions."""
    own = {pair for ids in found.sentences for pair in enumerate(ids)}
    for anchor in sorted(own, reverse=True):
        for ids in _descents(contexts, choices, anchor, set(), rng, found, n_starts=FEW_STARTS):
            verified = contexts.verified(list(ids), choices[: len(ids)]) if ids not in found.sentences else None
            if verified is not None and verified.is_in_batch:
                _add(contexts, ids, verified, found)
            found.is_complete = found.left_over <= 1
            if found.is_complete or found.is_spent:
                return


def _ends(contexts: Contexts, choices: list[list[int]], place: int) -> tuple[list[int], list[int]]:
    """Return where a sentence with a token at a position may end: likely, and anywhere that the model takes."""
    every = [n for n in range(len(choices), place, -1) if contexts.fronts.takes(n, contexts.layers)]
    likely = [n for n in every if n == len(choices) or len(choices[n]) < len(choices[n - 1])]
    return likely[::-1], [*likely[::-1], *(n for n in every if n not in likely)]


def _descents(
    contexts: Contexts,
    choices: list[list[int]],
    anchor: tuple[int, int] | None,
    open_pairs: set[tuple[int, int]],
    rng: np.random.Generator,
    found: Assigned,
    n_starts: int = MOST_STARTS,
) -> Iterator[tuple[int, ...]]:
    """Yield local minimisers, which hold one token where one is given, each once."""
    fixed = 0 if anchor is None else anchor[0]
    (likely, ends), seen = _ends(contexts, choices, fixed), set()
    for number in range(max(n_starts, len(ends)) if ends else 0):
        among = likely if likely and number < n_starts // 2 else ends
        end = among[number % len(among)]
        if found.is_spent:
            return
        start = []
        for place, tokens in enumerate(choices[:end]):
            unknown = [token for token in tokens if (place, token) in open_pairs]
            start.append(int(rng.choice(unknown or tokens)))
        if anchor is not None:
            start[fixed] = anchor[1]
        ids = _descended(contexts, start, choices, -1 if anchor is None else fixed, found)
        if ids not in seen:
            seen.add(ids)
            yield ids
        if all(len(tokens) == 1 for tokens in choices) and len(seen) >= min(len(ends), FEW_STARTS):
            return


def _descended(
    contexts: Contexts, start: list[int], choices: list[list[int]], fixed: int, found: Assigned
) -> tuple[int, ...]:
    """Exchange tokens of a sentence, but for one, as long as that brings its rows nearer."""
    ids = np.array(start)
    moves = [
        (place, token)
        for place, tokens in enumerate(choices[: len(ids)])
        for token in tokens
        if place != fixed and len(tokens) > 1
    ]
    if not moves:
        return tuple(start)
    cost = float(_costs(contexts, ids[None], found)[0])
    while not found.is_spent:
        open_moves = [move for move in moves if ids[move[0]] != move[1]]
        trials = np.repeat(ids[None], len(open_moves), axis=0)
        for row, (place, token) in zip(trials, open_moves, strict=True):
            row[place] = token
        gains = cost - _costs(contexts, trials, found)
        best = int(np.argmax(gains))
        if gains[best] <= 0:
            break
        together = ids.copy()
        for i in np.argsort(gains):  # the best exchange of a position comes last
            if gains[i] >= SHARE * gains[best]:
                together[open_moves[i][0]] = open_moves[i][1]
        of_all = float(_costs(contexts, together[None], found)[0])
        ids, cost = (together, of_all) if of_all < cost - gains[best] else (trials[best], cost - gains[best])
    return tuple(ids.tolist())


def _costs(contexts: Contexts, ids: np.ndarray, found: Assigned) -> np.ndarray:
    found.n_tokens += ids.size
    return contexts.costs(torch.from_numpy(ids))

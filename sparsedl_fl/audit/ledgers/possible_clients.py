"""To which clients a record can belong, by which of them took part in the rounds in which it was recovered.

Secure aggregation shows the server the sum of a round's clients, and who took part. A record is of a client that took
part in every round in which it occurs. Where the server averages clients by their numbers of records, the weight of a
record in the sum tells more: ``b_k`` records of client k share ``n_k / sum(n)`` of it.

SRATTA (Marchand et al., ICML 2023) groups records of several local steps by which units they switch on; nothing here
needs several steps, or ReLU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsedl_fl.audit.ledgers.distinct_records import Found, numbered
from sparsedl_fl.audit.record_weights import DEVIATIONS, ROUNDING

__all__ = ["Round", "clients_of_round", "possible_clients"]


@dataclass(frozen=True, eq=False)
class Round:
    """Records of one round of several clients.

    Attributes
    ----------
    found : Found
        The records.
    clients : mapping of str to float
        Who took part, with the number of records by which the server weighted each; NaN where it is not known.
    weights : ndarray of shape (n_records, 2) or None
        Each record's weight in the sum, as a share of all, and what that may be off by, relative; None for not known.
    """

    found: Found
    clients: Mapping[str, float]
    weights: np.ndarray | None = None


def clients_of_round(given: Iterable[str] | Mapping[str, float]) -> dict[str, float]:
    """Return the clients of a round with their numbers of records, NaN where these are not known; `ValueError` else."""
    if isinstance(given, str):
        raise ValueError(f"participants must hold the names of each round's clients, got the text {given!r}")
    found = dict(given) if isinstance(given, Mapping) else dict.fromkeys(given, math.nan)
    sizes = list(found.values())
    if not found or not all(isinstance(name, str) for name in found):
        raise ValueError("participants must name one client or more of each round, by texts")
    if isinstance(given, Mapping) and not all(_is_size(size) for size in sizes):
        raise ValueError(f"participants must give each client's number of records, above zero, got {sizes}")
    return {name: float(size) for name, size in found.items()}


def _is_size(size: Any) -> bool:
    return isinstance(size, (int, float)) and not isinstance(size, bool) and 0 < size < math.inf


def possible_clients(rounds: list[Round]) -> list[frozenset[str]]:
    """Return the clients to which each different record can belong; none where it must be held by several.

    That is so where no record is held by two clients. Nothing certifies it: a record of two clients may be left with a
    third, that took part whenever one of the two did.

    Parameters
    ----------
    rounds : list of Round
        Of records whose numbers mean the same.

    Examples
    --------
    >>> one, other = Found(np.eye(3)[:2], np.full(2, 1e-6)), Found(np.eye(3)[1:], np.full(2, 1e-6))
    >>> nan = float("nan")
    >>> who = possible_clients([Round(one, {"A": nan, "B": nan}), Round(other, {"B": nan, "C": nan})])
    >>> [sorted(names) for names in who]
    [['A', 'B'], ['B'], ['B', 'C']]
    """
    possible: dict[int, frozenset[str]] = {}
    for numbers, one in zip(numbered([one.found for one in rounds]), rounds, strict=True):
        for number, names in zip(numbers.tolist(), _of_round(one), strict=True):
            possible[number] = possible.get(number, names) & names
    return [possible[number] for number in sorted(possible)]


def _of_round(one: Round) -> list[frozenset[str]]:
    """Return the clients of a round to which each record can belong, by its weight where that fits their numbers."""
    names, sizes = list(one.clients), np.array(list(one.clients.values()), dtype=np.float64)
    everyone = [frozenset(names)] * len(one.found.errors)
    if one.weights is None or not np.isfinite(sizes).all():
        return everyone
    weights, errors = one.weights.T
    room = DEVIATIONS * np.hypot(errors, errors.max(initial=0.0)) + ROUNDING
    # How many records of its weight a client would hold: a whole number, and no more than there are.
    counts = sizes / sizes.sum() / weights[:, None]
    whole = np.maximum(np.rint(counts), 1)
    n_alike = np.sum(np.abs(weights / weights[:, None] - 1) <= np.hypot(room, room[:, None]), axis=1)
    fits = (np.abs(counts / whole - 1) <= room[:, None]) & (whole <= n_alike[:, None])
    if not fits.any(axis=1).all():  # the server weights otherwise
        return everyone
    return [frozenset(name for name, is_fit in zip(names, row, strict=True) if is_fit) for row in fits]

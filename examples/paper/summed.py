"""Sums of several clients, as secure aggregation shows them: what comes back, and to whom a record can belong."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from paper.data import load_images
from paper.experiments import Experiment
from paper.methods import Budget
from sparsedl_fl.audit import AuditResult, audit_model, ledger
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import fully_connected

__all__ = ["SUMMED_ROWS", "SummedRounds"]

RATE = 0.1
"""Of the server's step between two rounds."""

SMALLEST, LARGEST = 50, 500
"""Numbers of records by which clients are weighted, drawn evenly."""

EXACT = 1e-2
"""Root-mean-square error, relative to the size of a record, up to which a certified one is that record."""


@dataclass(frozen=True)
class _Federation:
    """Who holds what, and with which weight it counts."""

    inputs: torch.Tensor
    labels: torch.Tensor
    holders: np.ndarray
    numbers: np.ndarray

    def weights(self, clients: np.ndarray) -> np.ndarray:
        return self.numbers[clients] / self.numbers[clients].sum()


@dataclass(frozen=True)
class SummedRounds(Experiment):
    """CIFAR-10 behind two hidden layers of ``width``; a client sends the gradient of ``batch_size`` records a round.

    Attributes
    ----------
    n_clients, n_taking_part : int
        Clients there are, and those of them that are drawn for a round; the server sees the mean of their gradients.
    n_rounds : int
        Rounds, between which the server takes a step of 0.1.
    n_held : int
        Records that each client holds and draws its own from.
    by_numbers : bool
        Whether the mean is weighted by the clients' numbers of records, 50 to 500 and known to the server, as in
        FedAvg; else all clients count alike.
    """

    metrics: ClassVar[tuple[str, ...]] = ("share", "together", "of_one", "wrong")
    n_clients: int = 5
    n_taking_part: int = 5
    n_rounds: int = 1
    n_held: int = 8
    by_numbers: bool = False

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Audit each round and put them into a ledger; exact is every record certified, and none laid to others alone.

        ``share`` is that of the records certified, over all rounds; ``together`` that of those whose weight no record
        of another client has; ``of_one`` that of the different ones that can belong to one client alone by the ledger;
        ``wrong`` counts those that cannot belong to who holds them.
        """
        parts = self._federation(seed, data)
        start, audits, sent, who = time.perf_counter(), [], [], []
        for audit, records, clients in self._rounds(parts, seed):
            audits.append(audit)
            sent.append(records)
            who.append({f"client {k}": float(parts.numbers[k]) for k in clients})
        found = ledger(audits, participants=who if self.by_numbers else [list(names) for names in who])
        seconds = time.perf_counter() - start
        n_certified = sum(len(audit.samples) for audit in audits)
        n_sent, possible = sum(map(len, sent)), found.possible_clients
        holders = _holders_by_place(audits, parts)
        return {
            "share": n_certified / n_sent,
            "together": float(np.mean([share for one in audits for share in _together(one, parts)] or [0.0])),
            "of_one": float(np.mean([len(names) == 1 for names in possible] or [0.0])),
            "wrong": sum(f"client {k}" not in names for k, names in zip(holders, possible, strict=True)),
            "certified": self.batch_size if n_certified == n_sent else 0,
            "exact": n_certified == n_sent and len(possible) == len(np.unique(np.concatenate(sent))),
            "starts": 0,
            "seconds": round(seconds, 3),
            "status": found.summary,
        }

    def _federation(self, seed: int, data: str | None) -> _Federation:
        images = load_images("cifar10", data)
        pixels, classes = images.draw(self.n_clients * self.n_held, seed)
        numbers = np.random.default_rng(seed).integers(SMALLEST, LARGEST, self.n_clients, endpoint=True)
        return _Federation(
            images.normalize(pixels),
            torch.from_numpy(classes),
            np.repeat(np.arange(self.n_clients), self.n_held),
            numbers if self.by_numbers else np.ones_like(numbers),
        )

    def _rounds(self, parts: _Federation, seed: int) -> Iterator[tuple[AuditResult, np.ndarray, np.ndarray]]:
        """Yield each round's audit, the records that were sent, and the clients that took part."""
        rng = np.random.default_rng([seed, 1])
        model = fully_connected(parts.inputs.shape[1], width=self.width, n_hidden=2, random_state=seed)
        for _ in range(self.n_rounds):
            clients = rng.choice(self.n_clients, self.n_taking_part, replace=False)
            drawn = [rng.choice(np.flatnonzero(parts.holders == k), self.batch_size, replace=False) for k in clients]
            losses = [cross_entropy(model(parts.inputs[rows]), parts.labels[rows]) for rows in drawn]
            total = sum(weight * loss for weight, loss in zip(parts.weights(clients).tolist(), losses, strict=True))
            gradients = torch.autograd.grad(total, list(model.parameters()))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                yield audit_model(model, gradients, example=parts.inputs[:1]), np.concatenate(drawn), clients
            _step(model, gradients)


def _step(model: nn.Module, gradients: tuple[torch.Tensor, ...]) -> None:
    with torch.no_grad():
        for tensor, gradient in zip(model.parameters(), gradients, strict=True):
            tensor -= RATE * gradient


def _records_of(audit: AuditResult, parts: _Federation) -> np.ndarray:
    """Return which record each certified sample is, by the truth."""
    values = np.stack([sample.values for sample in audit.samples])
    match = match_batches(torch.from_numpy(values), parts.inputs.double().numpy())
    errors = np.sqrt(match.squared_errors / np.mean(values**2, axis=1))
    if (errors > EXACT).any():
        raise AssertionError(f"{int(np.sum(errors > EXACT))} certified records are none of those that were sent")
    return match.order


def _together(audit: AuditResult, parts: _Federation) -> Iterator[bool]:
    """Yield of each certified sample whether all records of its weight are of one client."""
    if not audit.weight_groups or audit.replay.start != audit.best.name:
        return
    holders = dict(
        zip([sample.index for sample in audit.samples], parts.holders[_records_of(audit, parts)], strict=True)
    )
    for group in audit.weight_groups:
        of_group = {holders[i] for i in group.records}
        yield from [len(of_group) == 1] * len(group.records)


def _holders_by_place(audits: list[AuditResult], parts: _Federation) -> list[int]:
    """Return the true client of each different record, in the ledger's order: that in which they were first found."""
    records = [int(record) for audit in audits if audit.samples for record in _records_of(audit, parts)]
    return [int(parts.holders[record]) for record in dict.fromkeys(records)]


SUMMED_ROWS: dict[str, Experiment] = {
    "5of5-8x200-alike": SummedRounds(8, 200),
    "5of5-8x200-by-numbers": SummedRounds(8, 200, by_numbers=True),
    "10of10-8x400-by-numbers": SummedRounds(8, 400, 10, 10, by_numbers=True),
    **{f"5of10-4x200-alike-rounds{n}": SummedRounds(4, 200, 10, 5, n, n_held=20) for n in (4, 8, 16)},
    "5of10-4x200-by-numbers-rounds4": SummedRounds(4, 200, 10, 5, 4, n_held=20, by_numbers=True),
}
"""Clients that take part of those there are, records of each and width, how they are weighted, rounds."""

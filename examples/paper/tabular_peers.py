"""Census rows attacked by TabLeak and by us, in its own setting: the same network, batch and float32 gradient.

Adult, one-hot and standardised (see `paper.census`), two hidden layers of 100 units behind ReLU, untrained, FedSGD,
batches of 1 to 128. The measure is TabLeak's: the share of features that are right, a number within 0.319 deviations,
after the rows are matched. A record that an attack does not return has no feature right.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from paper.census import EXACT, TOLERANCE, Census, load_census, right_features
from paper.experiments import Experiment
from paper.methods import Budget
from paper.tableak import TabLeak
from sparsedl_fl.audit import audit_model
from sparsedl_fl.simulation import client_gradient, fully_connected

__all__ = ["TABULAR_PEER_ROWS", "TabularPeerBatch"]

N_HIDDEN, N_CLASSES = 2, 2

Attacked = tuple[np.ndarray, dict[str, Any]]
"""Standardised inputs of shape (n_found, n_columns), and what is said of them."""


@dataclass(frozen=True)
class TabularPeerBatch(Experiment):
    """Rows of Adult behind two hidden layers, for TabLeak (see `paper.tableak`), for us, and for a guess."""

    metrics: ClassVar[tuple[str, ...]] = ("features", "records")

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Attack the batch of a seed; exact is every record, its numbers to a thousandth of a deviation.

        ``features`` is the share of features of each record that are right, numbers within TabLeak's tolerance, and
        ``records`` the share of records that are exact, certified or not. ``seconds`` are those of the processor.
        """
        census = load_census(data)
        raw = census.one_hot(census.rows)
        mean, deviation = raw.mean(axis=0), raw.std(axis=0, ddof=1)
        index = np.random.default_rng(seed).choice(len(raw), self.batch_size, replace=False)
        inputs = torch.tensor((raw[index] - mean) / deviation, dtype=torch.float32)
        labels = torch.from_numpy(census.labels[index])
        model = fully_connected(
            inputs.shape[1], width=self.width, n_hidden=N_HIDDEN, n_classes=N_CLASSES, random_state=seed
        )
        gradients = client_gradient(model, inputs, labels)
        peer = TabLeak(census) if method == "tableak" else None
        start = time.process_time()
        if peer is not None:
            found, said = peer.invert(model, gradients, labels, budget.members, seed), {"peer": peer.version}
        elif method == "guess":
            found, said = (_guess(census, self.batch_size, seed) - mean) / deviation, {}
        elif method == "activation":
            found, said = _by_audit(model, gradients, inputs[:1], self.batch_size)
        else:
            raise ValueError(f"tables are attacked by activation, tableak and guess, not by {method!r}")
        seconds = time.process_time() - start
        rows = census.decode(found * deviation + mean)
        right = right_features(census.rows[index], rows, census.tolerances(TOLERANCE)).mean(axis=1)
        whole = right_features(census.rows[index], rows, census.tolerances(EXACT)).all(axis=1)
        return {
            "exact": bool(whole.all()),
            "features": [round(float(share), 4) for share in right],
            "records": float(whole.mean()),
            "starts": 0,
            "seconds": round(seconds, 3),
            **said,
        }


def _by_audit(model: nn.Module, gradients: Mapping[str, torch.Tensor], example: torch.Tensor, n: int) -> Attacked:
    """Return what our audit finds of the records, the certified first and at most ``n``, and what it says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        audit = audit_model(model, gradients, example=example)
    first = audit.layers[0]
    found = np.empty((0, example.numel()))
    if first.batch is not None and len(first.batch.inputs):
        found = first.batch.inputs[np.argsort(~first.batch.certified, kind="stable")][:n]
    said = {"certified": first.n_certified, "verdict": str(audit.verdict), "status": f"{audit.reason}; {first.reason}"}
    return found, said


def _guess(census: Census, n: int, seed: int) -> np.ndarray:
    """Return ``n`` rows, one-hot, of which each feature is that of a row drawn at random: no gradient is looked at."""
    rng = np.random.default_rng((seed, 1))
    return census.one_hot(np.stack([rng.choice(column, n) for column in census.rows.T], axis=1))


TABULAR_PEER_ROWS: dict[str, Experiment] = {
    f"adult-{b}": TabularPeerBatch(b, 100) for b in (1, 2, 4, 8, 16, 32, 48, 64, 128)
}
"""Of the table of peers on census rows: TabLeak's batch sizes, one between them, and its network."""

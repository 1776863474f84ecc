"""Which records a client trained on, from the model before and after its local training."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from paper.data import encoder_of, load_adult, load_images
from paper.experiments import Experiment
from paper.methods import Budget
from sparsedl_fl.audit import members
from sparsedl_fl.simulation import fully_connected

__all__ = ["MEMBERSHIP_ROWS", "TrainedRecords"]

RATE, MINI_BATCH = 0.05, 32


@dataclass(frozen=True)
class TrainedRecords(Experiment):
    """Local training on ``batch_size`` records behind three hidden layers of ``width``, and as many others to tell.

    Attributes
    ----------
    dataset : str
        "adult", or a name in `DATASETS`.
    n_steps : int
        Local steps, of mini-batches of 32.
    momentum, weight_decay : float
        Of the client.
    n_others : int
        Records that were not trained on.
    """

    metrics: ClassVar[tuple[str, ...]] = ("found", "wrong", "in_range", "farthest", "nearest_other")
    dataset: str = "mnist"
    n_steps: int = 200
    momentum: float = 0.0
    weight_decay: float = 0.0
    n_others: int = 300

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Train and test; exact is every record found that was trained on, no other, and all others in range.

        ``found`` and ``in_range`` are the shares of the trained records and of the others; ``wrong`` counts others that
        were found; ``farthest`` is the largest distance of a trained record from the row space, ``nearest_other`` the
        least of another.
        """
        records, labels = self._records(seed, data)
        before = fully_connected(records.shape[1], width=self.width, random_state=seed)
        after, used = self._trained(before, records[: self.batch_size], labels[: self.batch_size], seed)
        start = time.perf_counter()
        result = members(before, after, records, random_state=seed)
        seconds = time.perf_counter() - start
        inside = np.arange(len(records)) < self.batch_size
        found = result.is_member[: self.batch_size][used]
        others = result.in_range[~inside]
        return {
            "exact": bool(found.all() and others.all() and not result.is_member[~inside].any()),
            "found": float(found.mean()),
            "wrong": int(result.is_member[~inside].sum()),
            "in_range": float(others.mean()),
            "farthest": float(f"{result.distances[: self.batch_size][used].max():.2g}"),
            "nearest_other": float(f"{result.distances[~inside].min():.2g}"),
            "certified": int(found.sum()) + self.batch_size - int(used.sum()),
            "starts": 0,
            "seconds": round(seconds, 3),
            "status": str(result),
        }

    def _records(self, seed: int, data: str | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return records, those to train on first, and labels; equal records once."""
        if self.dataset == "adult":
            table, classes = load_adult(data)
            encoded = np.asarray(encoder_of(table).transform(table))
            order = np.random.default_rng(seed).permutation(len(encoded))
        else:
            images = load_images(self.dataset, data)
            pixels, classes = images.draw(self.batch_size + self.n_others, seed)
            encoded, order = images.normalize(pixels).double().numpy(), np.arange(len(pixels))
        _, first = np.unique(encoded[order], axis=0, return_index=True)
        kept = order[np.sort(first)][: self.batch_size + self.n_others]
        return torch.tensor(encoded[kept], dtype=torch.float32), torch.tensor(classes[kept])

    def _trained(
        self, before: torch.nn.Module, records: torch.Tensor, labels: torch.Tensor, seed: int
    ) -> tuple[torch.nn.Module, np.ndarray]:
        """Return the model after training, and which records it has seen."""
        after, rng = deepcopy(before), np.random.default_rng(seed)
        optimizer = torch.optim.SGD(after.parameters(), lr=RATE, momentum=self.momentum, weight_decay=self.weight_decay)
        used = np.zeros(len(records), dtype=bool)
        for _ in range(self.n_steps):
            index = rng.integers(len(records), size=MINI_BATCH)
            used[index] = True
            optimizer.zero_grad()
            cross_entropy(after(records[index]), labels[index]).backward()
            optimizer.step()
        return after, used


MEMBERSHIP_ROWS: dict[str, Experiment] = {
    "mnist-300x400": TrainedRecords(300, 400),
    "mnist-300x400-momentum": TrainedRecords(300, 400, momentum=0.9),
    "mnist-300x400-momentum-decay": TrainedRecords(300, 400, momentum=0.9, weight_decay=1e-3),
    "mnist-150x200-500-momentum": TrainedRecords(150, 200, n_steps=500, momentum=0.9),
    "mnist-380x400-400": TrainedRecords(380, 400, n_steps=400),
    "mnist-380x400-400-momentum-decay": TrainedRecords(380, 400, n_steps=400, momentum=0.9, weight_decay=5e-3),
    "mnist-500x400-400": TrainedRecords(500, 400, n_steps=400),
    "cifar10-180x200": TrainedRecords(180, 200, "cifar10"),
    "cifar10-350x400-momentum": TrainedRecords(350, 400, "cifar10", momentum=0.9),
    **{f"adult-{b}x200": TrainedRecords(b, 200, "adult") for b in (10, 20, 30, 40, 60)},
}
"""Of the table of membership: data, records trained on, width, and what is not 200 steps of plain SGD."""

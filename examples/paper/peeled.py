"""A whole network, attacked where there is most room and peeled to the pixels."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from paper.data import load_images
from paper.experiments import Experiment
from paper.methods import Budget
from paper.models.activations import MODULES
from sparsedl_fl.audit import audit_model
from sparsedl_fl.metrics import match_batches, psnr
from sparsedl_fl.simulation import client_gradient

__all__ = ["PEELING_ROWS", "PeeledBatch"]


@dataclass(frozen=True)
class PeeledBatch(Experiment):
    """Images behind a network with a narrow first layer and a wide one behind; ``width`` is that of the first.

    Attributes
    ----------
    hidden : tuple of int
        Widths of all hidden layers.
    activation : str
        A name in `MODULES`.
    """

    metrics: ClassVar[tuple[str, ...]] = ("psnr", "labels", "error_ratio")
    hidden: tuple[int, ...] = (200, 1000, 200)
    activation: str = "relu"

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Audit the network of a seed; exact is a mean PSNR above 90 dB in the pixels."""
        images = load_images("cifar10", data)
        pixels, classes = images.draw(self.batch_size, seed)
        inputs, labels = images.normalize(pixels), torch.from_numpy(classes)
        sizes, layers = [inputs.shape[1], *self.hidden], []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for n, m in zip(sizes[:-1], sizes[1:], strict=True):
                layers += [nn.Linear(n, m), MODULES[self.activation]()]
            model = nn.Sequential(*layers, nn.Linear(sizes[-1], images.dataset.n_classes))
        gradients = client_gradient(model, inputs, labels)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            audit = audit_model(model, gradients, max_seconds=budget.seconds)
        seconds = round(time.perf_counter() - start, 3)
        first = audit["0"]
        record = {
            "exact": False,
            "psnr": [0.0],
            "labels": 0.0,
            "error_ratio": [],
            "certified": first.n_certified,
            "starts": 0,
            "seconds": seconds,
            "status": f"{first.source}; {audit.replay or audit.replay_reason}",
        }
        if first.batch is None:
            return record
        quality = psnr(pixels.reshape(len(pixels), -1), images.denormalize(first.batch.inputs))
        match = match_batches(inputs, first.batch.inputs)
        found = match.order >= 0
        errors = np.sqrt(match.squared_errors[found])
        return record | {
            "exact": bool(quality.mean() > 90),
            "psnr": [round(float(value), 2) for value in quality],
            "labels": float(np.mean(first.batch.labels[match.order[found]] == classes[found])),
            "error_ratio": [float(f"{ratio:.3g}") for ratio in errors / first.batch.errors[match.order[found]]],
        }


PEELING_ROWS = {
    f"{name}-{b}-{'-'.join(map(str, hidden))}": PeeledBatch(b, hidden[0], hidden=hidden, activation=name)
    for name, b, hidden in (
        ("relu", 60, (200, 1000, 200)),
        ("relu", 150, (200, 1000, 200)),
        ("relu", 190, (200, 1000, 200)),
        ("relu", 56, (60, 400, 60)),
        ("gelu", 60, (200, 1000, 200)),
        ("gelu", 90, (200, 600, 300)),
        ("tanh", 60, (200, 1000, 200)),
        ("leaky-relu-0.01", 60, (200, 1000, 200)),
    )
}
"""Of the table of peeling: activation, batch, widths of the hidden layers."""

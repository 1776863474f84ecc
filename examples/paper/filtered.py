"""Updates of which a filter zeroed and clipped entries: an audit of the whole model."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from paper.audited import compared
from paper.data import load_images
from paper.experiments import Experiment
from paper.methods import Budget
from sparsedl_fl.audit import audit_model
from sparsedl_fl.simulation import client_gradient, fully_connected

__all__ = ["FILTERED_ROWS", "FilteredBatch"]

N_HIDDEN = 2


@dataclass(frozen=True)
class FilteredBatch(Experiment):
    """CIFAR-10 behind two hidden layers, filtered tensor by tensor.

    Attributes
    ----------
    zeroed, clipped : float
        Percentile of an entry's size up to which it is zeroed, and from which on it is clipped.
    dropped : float
        Share of entries that a random mask zeroes.
    """

    metrics: ClassVar[tuple[str, ...]] = ("psnr", "share", "error_ratio")
    zeroed: float = 0.0
    clipped: float = 100.0
    dropped: float = 0.0

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Audit the filtered gradient of a seed; exact is every record certified, and above 80 dB.

        ``share`` is that of records certified; ``error_ratio`` is true over expected error.
        """
        images = load_images("cifar10", data)
        pixels, classes = images.draw(self.batch_size, seed)
        inputs, labels = images.normalize(pixels), torch.from_numpy(classes)
        model = fully_connected(inputs.shape[1], width=self.width, n_hidden=N_HIDDEN, random_state=seed)
        generator = torch.Generator().manual_seed(seed)
        sent = {name: self._filtered(g, generator) for name, g in client_gradient(model, inputs, labels).items()}
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            audit = audit_model(model, sent, example=inputs[:1])
        record = {"starts": 0, "seconds": round(time.perf_counter() - start, 3), "status": audit.reason}
        record |= compared(audit["0"].samples, inputs, images)
        return record | {"exact": record["certified"] > 0 and min(record["psnr"]) > 80}

    def _filtered(self, gradient: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        moduli = gradient.abs()
        low, high = np.percentile(moduli.numpy(), [self.zeroed, self.clipped])
        kept = torch.where(moduli > low, gradient, 0.0) if self.zeroed else gradient
        is_dropped = torch.rand(gradient.shape, generator=generator) < self.dropped
        return torch.where(is_dropped, 0.0, kept.clamp(-float(high), float(high)))


FILTERED_ROWS: dict[str, Experiment] = {
    **{
        f"{b}x200-lowest{zeroed}-clip{clipped}": FilteredBatch(b, 200, zeroed=zeroed, clipped=clipped)
        for b in (16, 32)
        for zeroed in (10, 50)
        for clipped in (90, 95, 99)
    },
    "8x200-lowest80-clip99": FilteredBatch(8, 200, zeroed=80, clipped=99),
    **{f"16x200-random{share}": FilteredBatch(16, 200, dropped=share / 100) for share in (50, 80)},
}
"""Of the table of filtered updates: batch and width, percentiles zeroed and clipped, percentage of a random mask."""

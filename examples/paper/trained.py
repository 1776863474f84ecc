"""Records behind trained networks: their gradients differ in size by seven decades, and the weakest are rounding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from paper.experiments import Score
from paper.methods import Problem
from paper.raw import Draw, RawBatch
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.simulation import fully_connected

__all__ = ["TRAINED_ROWS", "TrainedDigits"]


@dataclass(frozen=True)
class TrainedDigits(RawBatch):
    """Digits of scikit-learn, 64 pixels in [0, 1], behind two hidden layers that were trained on digits."""

    metrics: ClassVar[tuple[str, ...]] = ("counted", "share", "wrong", "error_ratio")

    @property
    def training(self) -> dict[str, float]:
        """Rate, momentum and batch size of the training."""
        return {"lr": 0.1, "momentum": 0.9, "batch": 64}

    def setting(self, seed: int, data: str | None) -> tuple[nn.Module, Draw, str]:
        """Return the network and the digits."""
        pixels, classes = _digits()

        def draw(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
            index = np.random.default_rng(seed).choice(len(pixels), n, replace=False)
            return pixels[index], classes[index]

        model = fully_connected(pixels.shape[1], width=self.width, n_hidden=2, n_classes=10, random_state=seed)
        return model, draw, "0"

    def measure(self, problem: Problem, score: Score, inverter: GradientInverter) -> dict[str, Any]:
        """Add shares of the batch: ``counted``, what the rank shows, and ``share``, what is certified.

        ``error_ratio`` is true over expected error, of each certified input.
        """
        true, certified = problem.truth.double().numpy(), inverter.recovered_
        apart = inverter.inputs_[certified, None] - true[None]
        errors = np.sqrt(np.mean(apart**2, axis=2)).min(axis=1, initial=np.inf)
        return super().measure(problem, score, inverter) | {
            "counted": inverter.batch_size_ / self.batch_size,
            "share": certified.sum() / self.batch_size,
            "error_ratio": [float(f"{ratio:.2g}") for ratio in errors / inverter.uncertainty_[certified]],
        }


@lru_cache(maxsize=1)
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16, dtype=torch.float32), torch.from_numpy(classes)


TRAINED_ROWS = {
    f"digits-{b}x{m}-{n_steps}": TrainedDigits(b, m, n_steps)
    for b, m in ((16, 120), (24, 120), (40, 200))
    for n_steps in (100, 300, 1000)
}
"""Rows of the table `trained`."""

"""Models and updates to try an audit on: `model` with `WEIGHTS` and `UPDATE`, `convolutional` with those of its own.

The updates are gradients of 16 and 8 handwritten digits of `sklearn.datasets.load_digits`, as `make` computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

__all__ = [
    "CONVOLUTIONAL_UPDATE",
    "CONVOLUTIONAL_WEIGHTS",
    "UPDATE",
    "WEIGHTS",
    "convolutional",
    "make",
    "model",
    "records",
]

WEIGHTS = Path(__file__).with_name("weights.safetensors")
UPDATE = Path(__file__).with_name("update.safetensors")
CONVOLUTIONAL_WEIGHTS = Path(__file__).with_name("convolutional_weights.safetensors")
CONVOLUTIONAL_UPDATE = Path(__file__).with_name("convolutional_update.safetensors")


def model() -> nn.Module:
    """Return a classifier of 8 x 8 digits."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def convolutional() -> nn.Module:
    """Return a convolutional classifier of 8 x 8 digits."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(1024, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip


def records() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the digits of scikit-learn in [0, 1], of shape (1797, 1, 8, 8), and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.tensor(digits.images[:, None] / 16, dtype=torch.float32), torch.tensor(digits.target)


def make(
    batch_size: int = 16, seed: int = 0, build: Callable[[], nn.Module] = model
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the state of a model that was trained a little, and a client's gradient."""
    from sparsedl_fl.simulation import client_gradient

    inputs, labels = records()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trained = build()
        order = torch.randperm(len(inputs))
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for part in order[batch_size:].split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(inputs[part]), labels[part]).backward()
        optimizer.step()
    private = order[:batch_size]
    return trained.state_dict(), client_gradient(trained, inputs[private], labels[private])

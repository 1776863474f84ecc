"""Peers that invert gradients of convolutional networks, run by their own packages; nothing of them is copied.

- `invert`: "Inverting gradients" (Geiping et al., NeurIPS 2020), as breaching runs it: cosine of gradients, total
  variation, Adam. Labels and batch size are told. It takes any network.
- `recurse`: R-GAP (Zhu and Blaschko, ICLR 2021), in breaching's version for several classes: layer by layer, by least
  squares. It takes one record, and chains of convolutions without bias and pooling behind LeakyReLU.

Both need ``pip install breaching``. R-CONV (Eltaras et al., WISE 2024) is a script for chains without pooling and one
record as well, and no package has it; it is not run.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from paper.data import Dataset

__all__ = ["PEERS", "Update", "invert", "peer_version", "recurse"]

SETTINGS = ("regularization.total_variation.scale=0.0002", "optim.signed=null")
"""What differs from breaching's own for photographs: 0.2 and the sign of each gradient (Adam either way).

Chosen on batches of seed 900, which no table holds. One digit, sign, 1000 steps: weights 0.2, 0.02, 0.002, 0.0002 gave
16.9, 26.8, 42.3 and 49.2 dB; without sign 0.002, 0.0002, 2e-6 gave 43.2, 55.9 and 52.6 in 600. Eight digits, 600 steps,
mean: 22.8 (0.02), 23.3 (0.002), 23.4 (0.0002); without sign 24.5 (0.01), 24.4 (0.002), 24.4 (2e-6); 23.1 by breaching's
"modern" at 0.01, with its features; with sign at 0.01 1800 steps gave 23.2, 600 steps 22.8.
"""


@dataclass(frozen=True, eq=False)
class Update:
    """What the server has.

    Attributes
    ----------
    model : torch.nn.Module
        The shared model.
    gradients : mapping of str to torch.Tensor
        What the client sends, by parameter name.
    labels : torch.Tensor of shape (batch_size,)
        Of the batch; the peers are told.
    shape : tuple of int
        Channels, height and width of a picture.
    dataset : Dataset
        How pictures are normalised.
    """

    model: nn.Module
    gradients: Mapping[str, torch.Tensor]
    labels: torch.Tensor
    shape: tuple[int, ...]
    dataset: Dataset


def invert(update: Update, n_steps: int, seed: int) -> torch.Tensor:
    """Return what "Inverting gradients" finds in ``n_steps`` steps, of shape (batch_size, *shape)."""
    attacker = _attacker(update, "invertinggradients", [f"optim.max_iterations={n_steps}", *SETTINGS])
    for part in attacker.regularizers:  # total variation is made for three channels
        n_channels = update.shape[0]
        part.groups, part.weight = n_channels, part.weight[: 2 * n_channels]
    return _reconstruct(attacker, update, seed)


def recurse(update: Update, n_steps: int, seed: int) -> torch.Tensor:
    """Return what R-GAP finds, of shape (1, *shape); of a batch it finds one combination. It takes no steps."""
    return _reconstruct(_attacker(update, "rgap", []), update, seed)


PEERS = {"breaching": invert, "r-gap": recurse}
"""By what ``run.py --directions`` calls them."""


def peer_version() -> str:
    """Return the version of the package that runs the peers."""
    return f"breaching {version('breaching')}"


def _attacker(update: Update, name: str, settings: list[str]) -> Any:
    """Return breaching's attacker of a name, with its own settings but the given ones."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import breaching
    except ImportError as error:
        raise ValueError(f"the peers need breaching ({error}): pip install breaching") from error
    with contextlib.redirect_stdout(io.StringIO()):
        config = breaching.get_attack_config(name, overrides=settings)
    setup = {"device": torch.device("cpu"), "dtype": torch.float}
    return breaching.attacks.prepare_attack(update.model, nn.CrossEntropyLoss(), config, setup)


def _reconstruct(attacker: Any, update: Update, seed: int) -> torch.Tensor:
    """Run an attacker on an update, with torch's random numbers drawn from a seed, and put them back."""
    data = SimpleNamespace(modality="vision", shape=update.shape, mean=update.dataset.mean, std=update.dataset.std)
    model, labels = update.model, update.labels
    server = [{"parameters": list(model.parameters()), "buffers": list(model.buffers()), "metadata": data}]
    told = {"num_data_points": len(labels), "labels": labels, "local_hyperparams": None}
    gradients = [update.gradients[name] for name, _ in model.named_parameters()]
    with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()):
        torch.manual_seed(seed)
        found, _ = attacker.reconstruct(server, [{"gradients": gradients, "buffers": None, "metadata": told}], {})
    return found["data"].detach()

"""Kinds of networks that federations train, each with records that suit it, the loss, and what a user says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.hostile import data, modules

__all__ = ["NETWORKS", "Network"]

N_COLUMNS = 55
"""Columns of `data.table`."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """One kind of network, and how a federation trains it.

    Attributes
    ----------
    build : callable
        Makes the module from torch's global seed.
    records : callable
        ``records(n, rng)`` returns inputs and targets.
    loss : callable
        ``loss(outputs, targets)``, a mean.
    told : str, callable or None
        The loss as a user names it to `audit_model`; None says nothing, where it is cross-entropy.
    n_records : int
        Records of an ordinary batch.
    n_beyond : int
        Records of a batch that no layer has equations enough for.
    training : bool
        Whether the client trains in training mode.
    table : str
        Name of the embedding that the token ids index, or empty.
    is_tied : bool
        Whether that is the last layer's weight too.
    """

    build: Callable[[], nn.Module]
    records: Callable[[int, np.random.Generator], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = functional.cross_entropy
    told: Any = None
    n_records: int = 8
    n_beyond: int = 48
    training: bool = True
    table: str = ""
    is_tied: bool = False

    @property
    def has_labels(self) -> bool:
        """Whether each record has one class, by cross-entropy."""
        return self.loss is functional.cross_entropy


def _perceptron(activation: type[nn.Module] = nn.ReLU, *, dropout: float = 0.0, norm: bool = False, n_outputs: int = 10,
                n_inputs: int = N_COLUMNS) -> nn.Sequential:  # fmt: skip
    """Return two hidden layers of 80 and 40 units and a head."""
    layers: list[nn.Module] = []
    for n_in, n_out in ((n_inputs, 80), (80, 40)):
        layers += [nn.Linear(n_in, n_out), *([nn.BatchNorm1d(n_out)] if norm else []), activation()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.Linear(40, n_outputs))


def _digits(**options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *_perceptron(n_inputs=64, **options))


def _used_norm() -> nn.Sequential:
    """Return a perceptron whose batch normalisation has seen data, in evaluation mode."""
    model = _perceptron(norm=True)
    for _ in range(20):
        model(data.table(32, np.random.default_rng(0))[0])
    return model.eval()


def _probe() -> nn.Sequential:
    """Return one layer whose weights are zeros, as those of many a new head are: each record is as likely any class."""
    model = nn.Sequential(nn.Linear(N_COLUMNS, data.N_CLASSES))
    for tensor in model.parameters():
        nn.init.zeros_(tensor)
    return model


def _lenet() -> nn.Sequential:
    convolutions = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 3), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(64, 80), nn.ReLU(), nn.Linear(80, 40), nn.ReLU(), nn.Linear(40, data.N_CLASSES)]
    return nn.Sequential(*convolutions, *head)


def _group_norm() -> nn.Sequential:
    convolution = [nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*convolution, nn.Flatten(), nn.Linear(64, data.N_CLASSES))


def _vgg() -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in ((3, 8), (8, 16)):
        layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, data.N_CLASSES))


def _autoencoder() -> nn.Sequential:
    return nn.Sequential(nn.Linear(N_COLUMNS, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, N_COLUMNS))


def _next_token_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


TAGS, NUMBERS = functional.binary_cross_entropy_with_logits, functional.mse_loss

NETWORKS: dict[str, Network] = {
    "perceptron": Network(build=_perceptron, records=data.table, n_beyond=44),
    "perceptron, digits": Network(build=_digits, records=data.digits, n_beyond=50),
    "dropout": Network(build=lambda: _digits(dropout=0.3), records=data.digits, n_beyond=50),
    "batch norm, training": Network(build=lambda: _perceptron(norm=True), records=data.table, n_beyond=44),
    "batch norm, evaluation": Network(build=_used_norm, records=data.table, training=False, n_beyond=44),
    "LeNet": Network(build=_lenet, records=data.photographs, n_beyond=48),
    "group norm, pooling": Network(build=_group_norm, records=data.photographs, n_beyond=12),
    "VGG, dropout": Network(build=_vgg, records=data.photographs, n_beyond=40),
    "frozen backbone": Network(build=lambda: modules.FrozenBackbone(), records=data.photographs, n_beyond=40),
    "tanh": Network(build=lambda: _perceptron(nn.Tanh), records=data.table, n_beyond=50),
    "GELU": Network(build=lambda: _perceptron(nn.GELU), records=data.table, n_beyond=50),
    "transformer": Network(
        build=lambda: modules.TextClassifier(), records=data.texts, n_records=4, n_beyond=12, table="emb"
    ),
    "BERT": Network(
        build=lambda: modules.BertLike(), records=data.texts, n_records=4, n_beyond=24, table="word_embeddings"
    ),
    "LSTM": Network(build=lambda: modules.Recurrent(), records=data.texts, n_records=3, n_beyond=14, table="emb"),
    "tied language model": Network(
        build=lambda: modules.TiedLanguageModel(), records=data.next_tokens, loss=_next_token_loss, n_records=2,
        n_beyond=8, table="emb", is_tied=True,
    ),
    "autoencoder": Network(build=_autoencoder, records=data.copies, loss=NUMBERS, told=NUMBERS, n_beyond=40),
    "regression": Network(
        build=lambda: _perceptron(n_outputs=1), records=data.scored, loss=NUMBERS, told=NUMBERS, n_beyond=44
    ),
    "multi-label": Network(
        build=lambda: _perceptron(n_outputs=6), records=data.tagged, loss=TAGS, told=TAGS, n_beyond=44
    ),
    "LoRA": Network(build=lambda: modules.Adapted(N_COLUMNS), records=data.table, n_beyond=40),
    "logistic regression": Network(
        build=lambda: nn.Sequential(nn.Linear(N_COLUMNS, data.N_CLASSES)), records=data.table, n_records=3, n_beyond=8
    ),
    "zero head": Network(build=_probe, records=data.table, n_records=4, n_beyond=8),
    "vision transformer": Network(
        build=lambda: modules.VisionTransformer(), records=data.photographs, n_records=2, n_beyond=12
    ),
}  # fmt: skip
"""By name; each is built from a seed of its own."""

"""What clients do with their records before anything is sent: one step or several, and what the server is not told."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl.layers.updates import gradients_of_update
from tests.hostile.data import padded
from tests.hostile.networks import Network
from tests.hostile.truth import Truth, recorded

__all__ = ["CLIENTS", "LEARNING_RATE", "Client", "Sent"]

LEARNING_RATE = 0.05
"""Of local training by SGD."""

Twist = Callable[[torch.Tensor, torch.Tensor, np.random.Generator], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Sent:
    """What leaves a client, before the wire.

    Attributes
    ----------
    gradients : dict of str to torch.Tensor
        By name: of one step, or the difference of the weights over the learning rate.
    learning_rate : float or None
        Given where there were several steps.
    example : torch.Tensor
        One input, any that has the right shape.
    truth : Truth
        What was fed.
    """

    gradients: dict[str, torch.Tensor]
    learning_rate: float | None
    example: torch.Tensor
    truth: Truth


@dataclass(frozen=True, kw_only=True)
class Client:
    """One kind of client.

    Attributes
    ----------
    size : {"ordinary", "one", "beyond"}
        How many records, by the network.
    twist : callable or None
        Changes records and targets.
    n_steps : int
        Local steps; 0 sends the gradient of one.
    n_parts : int
        Mini-batches that the records are cut into; steps go through them in turn.
    momentum, weight_decay : float
        Of SGD; the server is not told.
    is_adam : bool
        Whether the optimiser is Adam; the server is not told.
    smoothing : float
        Of the labels; the server is not told.
    suits : callable
        ``suits(network)``: whether the network can have such a client.
    """

    size: str = "ordinary"
    twist: Twist | None = None
    n_steps: int = 0
    n_parts: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0
    is_adam: bool = False
    smoothing: float = 0.0
    suits: Callable[[Network], bool] = lambda network: True

    def run(self, network: Network, model: nn.Module, rng: np.random.Generator) -> Sent:
        """Train on records of its own; the model given stays as it is."""
        n = {"ordinary": network.n_records, "one": 1, "beyond": network.n_beyond}[self.size]
        x, y = network.records(n, rng)
        if self.twist is not None:
            x, y = self.twist(x, y, rng)
        truth = Truth(n_parts=self.n_parts)
        if not x.is_floating_point():
            truth.tokens = frozenset([*x.unique().tolist(), *(y.unique().tolist() if y.ndim == 2 else [])])
        if network.has_labels:
            truth.labels, truth.of_records = frozenset(y.tolist()), y.numpy()
        update = self._trained if self.n_steps else self._differentiated
        gradients = update(network, deepcopy(model), x, y, truth)
        example = torch.zeros_like(x[:2]) if not x.is_floating_point() else torch.randn(x[:2].shape)
        return Sent(gradients, LEARNING_RATE if self.n_steps > 1 else None, example, truth)

    def _loss(self, network: Network, model: nn.Module, x: torch.Tensor, y: torch.Tensor, truth: Truth) -> torch.Tensor:
        with recorded(model, truth):
            outputs = model(x)
        if self.smoothing:
            return functional.cross_entropy(outputs, y, label_smoothing=self.smoothing)
        return network.loss(outputs, y)

    def _differentiated(
        self, network: Network, model: nn.Module, x: torch.Tensor, y: torch.Tensor, truth: Truth
    ) -> dict[str, torch.Tensor]:
        named = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
        found = torch.autograd.grad(self._loss(network, model, x, y, truth), list(named.values()))
        return dict(zip(named, found, strict=True))

    def _trained(
        self, network: Network, model: nn.Module, x: torch.Tensor, y: torch.Tensor, truth: Truth
    ) -> dict[str, torch.Tensor]:
        named = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
        before = {name: tensor.detach().clone() for name, tensor in named.items()}
        rate = LEARNING_RATE / 50 if self.is_adam else LEARNING_RATE
        if self.is_adam:
            optimizer = torch.optim.Adam(named.values(), lr=rate)
        else:
            optimizer = torch.optim.SGD(named.values(), lr=rate, momentum=self.momentum, weight_decay=self.weight_decay)
        parts = list(zip(x.chunk(self.n_parts), y.chunk(self.n_parts), strict=True))
        for step in range(self.n_steps):
            optimizer.zero_grad()
            self._loss(network, model, *parts[step % len(parts)], truth).backward()
            optimizer.step()
        return gradients_of_update(before, dict(named), rate)


def _repeated(x: torch.Tensor, y: torch.Tensor, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the last record a copy of the first."""
    return torch.cat([x[:-1], x[:1]]), torch.cat([y[:-1], y[:1]])


def _one_class(x: torch.Tensor, y: torch.Tensor, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return x, y[:1].expand_as(y).clone()


def _cut(x: torch.Tensor, y: torch.Tensor, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return padded(x, rng), y


def _has_labels(network: Network) -> bool:
    return network.has_labels


CLIENTS: dict[str, Client] = {
    "one step": Client(),
    "one record": Client(size="one", suits=lambda network: not _mixes(network)),
    "duplicates": Client(twist=_repeated),
    "beyond half": Client(size="beyond"),
    "several steps": Client(n_steps=4, n_parts=2),
    "momentum": Client(n_steps=2, momentum=0.9),
    "weight decay": Client(n_steps=1, weight_decay=1e-3),
    "Adam": Client(n_steps=3, is_adam=True),
    "label smoothing": Client(smoothing=0.1, suits=_has_labels),
    "one class": Client(twist=_one_class, suits=_has_labels),
    "padding": Client(twist=_cut, suits=lambda network: bool(network.table) and not network.is_tied),
}
"""By name."""


def _mixes(network: Network) -> bool:
    """Return whether batch normalisation in training refuses a batch of one."""
    return network.training and any(isinstance(m, nn.BatchNorm1d) for m in network.build().modules())

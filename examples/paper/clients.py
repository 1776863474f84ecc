"""What a client sends, as the papers vary it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.simulation import WIRES, client_gradient, dp_sgd_gradient, fedavg_update

__all__ = ["DPSGD", "FEDAVG_SETTINGS", "Client", "FedAvg", "FedSGD", "Wired"]


class Client(ABC):
    """Turns a private batch into what the server sees of one layer."""

    reveals_batch_size: ClassVar[bool] = True
    """Whether the numerical rank gives the batch size; under noise the attacker has to be told."""

    @abstractmethod
    def send(
        self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, layer: int, seed: int
    ) -> LayerGradient:
        """Return what the server sees of the layer."""


@dataclass(frozen=True)
class FedSGD(Client):
    """One gradient of the whole batch."""

    def send(
        self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, layer: int, seed: int
    ) -> LayerGradient:
        """Return the gradient of the layer."""
        return LayerGradient.from_model(model, client_gradient(model, inputs, labels), layer)


@dataclass(frozen=True)
class FedAvg(Client):
    """Several epochs of local training; ``mini_batch`` None takes the whole batch in each step."""

    n_epochs: int
    mini_batch: int | None
    learning_rate: float
    reveals_batch_size: ClassVar[bool] = False

    def send(
        self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, layer: int, seed: int
    ) -> LayerGradient:
        """Return the update of the layer over the learning rate."""
        before, after = fedavg_update(
            model,
            inputs,
            labels,
            learning_rate=self.learning_rate,
            n_epochs=self.n_epochs,
            batch_size=self.mini_batch,
            random_state=seed,
        )
        return LayerGradient.from_update(before, after, self.learning_rate, layer)


@dataclass(frozen=True)
class DPSGD(Client):
    """A clipped gradient with Gaussian noise of a deviation ``noise_std`` on each entry of the mean."""

    clipping: float
    noise_std: float
    reveals_batch_size: ClassVar[bool] = False

    def send(
        self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, layer: int, seed: int
    ) -> LayerGradient:
        """Return the noisy gradient of the layer."""
        gradient = dp_sgd_gradient(
            model, inputs, labels, clipping=self.clipping, noise_std=self.noise_std, random_state=seed
        )
        return LayerGradient.from_model(model, gradient, layer)


@dataclass(frozen=True)
class Wired(Client):
    """One gradient of the whole batch in a coarse format, by its name in `sparsedl_fl.simulation.WIRES`."""

    wire: str

    def send(
        self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, layer: int, seed: int
    ) -> LayerGradient:
        """Return the gradient of the layer as it arrives."""
        gradients = client_gradient(model, inputs, labels)
        return LayerGradient.from_model(
            model, {name: WIRES[self.wire](gradient) for name, gradient in gradients.items()}, layer
        )


FEDAVG_SETTINGS = tuple(
    (n_epochs, mini_batch, rate)
    for mini_batch in (20, 5)
    for n_epochs in (1, 5, 20)
    for rate in (0.01, 0.05, 0.1, 0.2)
    if (n_epochs, mini_batch, rate) != (20, 5, 0.2)  # this client's weights overflow
)
"""Epochs, mini-batch and rate of the table beyond the paper's."""

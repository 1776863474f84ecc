"""A client as a federation runs it: local training, clipping and noise, a wire, and a sum of several."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl.arrays import draw_generator
from sparsedl.process import neutral_modes
from sparsedl_fl.layers.updates import gradients_of_update
from sparsedl_fl.simulation.clients import client_gradient, dp_sgd_gradient
from sparsedl_fl.simulation.update_filters import UpdateFilter
from sparsedl_fl.simulation.wire import WIRES
from sparsedl_fl.tracing.naming import plain_name

__all__ = ["SimulatedClient", "SimulatedUpdate"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass(frozen=True)
class SimulatedUpdate:
    """The update that the server gets.

    Attributes
    ----------
    gradients : dict of str to torch.Tensor
        By plain name; the sum of the local ones for a client that trains.
    learning_rate : float or None
        Given where the client took several steps.
    noise_level : float or None
        Standard deviation of the noise on each entry, where there is some.
    """

    gradients: dict[str, torch.Tensor]
    learning_rate: float | None
    noise_level: float | None


@dataclass(frozen=True, kw_only=True)
class SimulatedClient:
    """All settings of a client in a federation; plain FedSGD by default.

    Parameters
    ----------
    batch_size : int, default=16
        Records of one client in one round.
    n_epochs : int, default=0
        Local passes over them; 0 sends the gradient of one step.
    mini_batch : int or None, default=None
        Records in a local step; None takes all.
    learning_rate : float, default=0.01
        Of local training.
    momentum, weight_decay : float, default=0
        Of local training.
    optimizer : {"sgd", "adam", "adamw"}, default="sgd"
        Of local training.
    wire : str or None, default=None
        One of `sparsedl_fl.simulation.WIRES`.
    record_clipping, noise_multiplier : float, default=0
        DP-SGD: the norm to which the gradient of each record is clipped, and the noise over it; 0 clips nothing.
    client_clipping, client_noise : float, default=0
        The norm to which the whole update is clipped, and the standard deviation of the noise on each entry.
    n_clients : int, default=1
        Clients in a secure sum, with ``batch_size`` records each.
    update_filter : UpdateFilter or None, default=None
        What takes something out of the whole update of a client: of the change of its weights, or of the gradient
        where it sends one.
    """

    batch_size: int = 16
    n_epochs: int = 0
    mini_batch: int | None = None
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    wire: str | None = None
    record_clipping: float = 0.0
    noise_multiplier: float = 0.0
    client_clipping: float = 0.0
    client_noise: float = 0.0
    n_clients: int = 1
    update_filter: UpdateFilter | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.n_clients < 1 or self.n_epochs < 0:
            raise ValueError("batch_size and n_clients must be positive, n_epochs not negative")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {sorted(OPTIMIZERS)}, got {self.optimizer!r}")
        if self.wire is not None and self.wire not in WIRES:
            raise ValueError(f"wire must be one of {sorted(WIRES)}, got {self.wire!r}")
        if self.noise_multiplier and not self.record_clipping:
            raise ValueError("noise_multiplier needs record_clipping, whose multiple the noise is")
        if self.record_clipping and self.n_epochs:
            raise ValueError("record_clipping goes with the gradient of one step: n_epochs must be 0")

    @property
    def n_records(self) -> int:
        """Records of one update."""
        return self.batch_size * self.n_clients

    @property
    def is_exact(self) -> bool:
        """Whether nothing is added to or taken from the numbers."""
        is_changed = self.wire is not None or self.update_filter is not None
        return not (is_changed or self.noise_multiplier or self.client_noise)

    @property
    def is_in_range(self) -> bool:
        """Whether the update is a sum of gradients."""
        return self.optimizer == "sgd" or not self.n_epochs

    @property
    def is_first_step(self) -> bool:
        """Whether the update is one step of an adaptive optimiser, and nothing was done to it."""
        is_one = self.n_epochs == self.n_clients == 1 and (self.mini_batch or self.batch_size) >= self.batch_size
        return self.optimizer != "sgd" and is_one and self.is_exact and not self.client_clipping

    @neutral_modes(gradients=True)
    def update(
        self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, *, loss: Loss = cross_entropy, seed: Any = 0
    ) -> SimulatedUpdate:
        """Return the update of ``n_records`` records.

        Parameters
        ----------
        model : torch.nn.Module
            The model that was sent out; it is not changed.
        inputs, labels : torch.Tensor
            The private records of all clients, one client after the other.
        loss : callable, default=cross_entropy
            ``loss(outputs, labels)``, a mean.
        seed : int, RandomState or None, default=0
            Of mini-batches and noise.
        """
        if len(inputs) != self.n_records:
            raise ValueError(f"inputs must have {self.n_records} records, got {len(inputs)}")
        generator = draw_generator(seed)
        parts = zip(inputs.split(self.batch_size), labels.split(self.batch_size), strict=True)
        each = [self._of_one(model, x, y, loss, generator) for x, y in parts]
        sent = {name: reduce(torch.add, (one[name] for one in each), torch.zeros(())) / len(each) for name in each[0]}
        if self.wire is not None:
            sent = {name: WIRES[self.wire](tensor) for name, tensor in sent.items()}
        noise = self.noise_multiplier * self.record_clipping / self.batch_size + self.client_noise
        n_steps = self.n_epochs * -(-self.batch_size // (self.mini_batch or self.batch_size))
        rate = self.learning_rate if n_steps > 1 else None
        return SimulatedUpdate(sent, rate, noise / len(each) ** 0.5 if noise else None)

    def _of_one(
        self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, loss: Loss, generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        """Return what one client sends, before the wire."""
        if self.n_epochs:
            found = self._trained(model, inputs, labels, loss, generator)
        elif self.record_clipping:
            noise = self.noise_multiplier * self.record_clipping / len(inputs)
            seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
            clipping = {"clipping": self.record_clipping, "noise_std": noise}
            found = dp_sgd_gradient(model, inputs, labels, **clipping, loss=loss, random_state=seed)
        else:
            found = client_gradient(model, inputs, labels, loss)
        found = {plain_name(name): tensor.detach() for name, tensor in found.items()}
        if self.client_clipping:
            norm = torch.stack([tensor.norm() for tensor in found.values()]).norm()
            found = {name: tensor * (self.client_clipping / norm).clamp(max=1.0) for name, tensor in found.items()}
        if self.client_noise:
            found = {
                name: tensor + self.client_noise * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
                for name, tensor in found.items()
            }
        if self.update_filter is not None:
            rate = self.learning_rate if self.n_epochs else 1.0
            moved = self.update_filter({name: rate * tensor for name, tensor in found.items()}, generator)
            found = {name: tensor / rate for name, tensor in moved.items()}
        return found

    def _trained(
        self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, loss: Loss, generator: torch.Generator
    ) -> dict[str, torch.Tensor]:
        """Return the sum of the gradients of local training, as the server reads it off the weights."""
        local = deepcopy(model)
        before = {name: tensor.detach().clone() for name, tensor in local.named_parameters()}
        kind, options = OPTIMIZERS[self.optimizer], {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.optimizer == "sgd":
            options["momentum"] = self.momentum
        optimizer = kind(local.parameters(), **options)
        n_steps = 0
        for _ in range(self.n_epochs):
            for part in torch.randperm(len(inputs), generator=generator).split(self.mini_batch or len(inputs)):
                optimizer.zero_grad()
                loss(local(inputs[part]), labels[part]).backward()
                optimizer.step()
                n_steps += 1
        decay = self.weight_decay if self.optimizer == "sgd" else 0.0
        after = dict(local.named_parameters())
        return gradients_of_update(
            before, after, self.learning_rate, n_steps=n_steps, momentum=self.momentum, weight_decay=decay
        )

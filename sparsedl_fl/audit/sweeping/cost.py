"""What a setting costs, and what it promises: a short federated training, and epsilon."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from sparsedl_fl.audit.sweeping.settings import Setting
from sparsedl_fl.simulation import SimulatedClient

__all__ = ["accuracy_after", "accuracy_lost", "epsilon_of"]


def accuracy_after(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    client: SimulatedClient,
    loss: Any,
    n_rounds: int,
    seed: int = 0,
    *,
    server_rate: float = 0.1,
    n_clients: int = 4,
) -> float:
    """Return the accuracy on the last fifth of the records after some rounds of training on the others.

    Parameters
    ----------
    model : torch.nn.Module
        Where training starts.
    inputs, labels : torch.Tensor
        The records.
    client : SimulatedClient
        What the clients do.
    loss : callable
        ``loss(outputs, labels)``.
    n_rounds : int
        Rounds.
    seed : int, default=0
        Of the batches and the noise.
    server_rate : float, default=0.1
        Step of the server along the gradients of clients that send one; those that train have a rate of their own.
    n_clients : int, default=4
        Clients a round, whose updates the server averages.
    """
    trained = deepcopy(model)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    n_train = max(client.n_records, 4 * len(inputs) // 5)
    train, test = order[:n_train], order[n_train:]
    if not len(test):
        raise ValueError(f"{len(inputs)} records are too few to train on, with a fifth kept to test on")
    generator = torch.Generator().manual_seed(seed + 1)
    rate = client.learning_rate if client.n_epochs else server_rate
    for number in range(n_rounds * n_clients):
        if number % n_clients == 0:
            start = {name: tensor.detach().clone() for name, tensor in trained.named_parameters()}
            steps = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
            sent_out = deepcopy(trained)
        part = train[torch.randperm(len(train), generator=generator)[: client.n_records]]
        sent = client.update(sent_out, inputs[part], labels[part], loss=loss, seed=seed * 100_003 + number)
        for name in steps:
            steps[name] += rate * sent.gradients[name].to(steps[name].dtype) / n_clients
        if number % n_clients == n_clients - 1:
            with torch.no_grad():
                for name, tensor in trained.named_parameters():
                    tensor.copy_(start[name] - steps[name])
    trained.eval()
    with torch.no_grad():
        return float((trained(inputs[test]).argmax(dim=1) == labels[test]).double().mean())


def accuracy_lost(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, setting: Setting, loss: Any, n_rounds: int, seed: int
) -> float | None:
    """Return the accuracy that a short training loses at a setting, against one without it; None for no rounds."""
    if not n_rounds:
        return None
    plain = type(setting.client)(batch_size=setting.client.batch_size, n_clients=setting.client.n_clients)
    with_it, without = (
        accuracy_after(model, inputs, labels, client, loss, n_rounds, seed) for client in (setting.client, plain)
    )
    return without - with_it


def epsilon_of(setting: Setting, n_records: int, n_rounds: int, *, delta: float = 1e-5) -> float | None:
    """Return epsilon of the noise per record after a training, by Opacus' accountant; None without that or noise."""
    sigma = setting.client.noise_multiplier
    if not sigma or not n_rounds:
        return None
    try:
        from opacus.accountants import RDPAccountant
    except ImportError:
        return None
    accountant = RDPAccountant()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accountant.history.append((sigma, min(1.0, setting.client.batch_size / n_records), n_rounds))
        return float(accountant.get_epsilon(delta))

"""Records, accuracy and epsilon of simulated clients.

Records are made up where the user has none. A short federated training measures the accuracy that a setting costs, and
Opacus' accountant its epsilon.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl_fl.audit.sweeping.defences import Setting
from sparsedl_fl.simulation import SimulatedClient
from sparsedl_fl.tracing.tracing import in_evaluation, trace_model
from sparsedl_fl.wording import argument, first_line, pass_example

__all__ = ["accuracy_after", "accuracy_lost", "check_client", "epsilon_of", "seeded", "whole_records"]

N_RECORDS = 1024
"""Records that are made up."""

SERVER_RATE = 0.1
"""Step of the server along the gradients of clients that send one; those that train have a rate of their own."""

N_CLIENTS = 4
"""Clients a round, whose updates the server averages."""

DELTA = 1e-5
"""Of epsilon."""


def whole_records(
    model: nn.Module,
    inputs: torch.Tensor | None,
    labels: torch.Tensor | None,
    example: torch.Tensor | None,
    seed: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the user's records and labels, with what is missing made up."""
    if inputs is None:
        trace = trace_model(model, example)
        if trace.example is None:
            raise ValueError(f"the model could not be run ({trace.failure}): {pass_example()}")
        inputs, labels = _drawn(trace.example, (N_RECORDS, *trace.example.shape[1:]), seeded(seed)), None
    if labels is None:
        n_labels = max(2, _outputs(model, inputs[:2]).shape[1])
        labels = torch.randint(n_labels, (len(inputs),), generator=seeded(seed + 1))
    return inputs, labels


def _drawn(example: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return Gaussian numbers, or token ids up to the largest of an example."""
    if example.is_floating_point():
        return torch.randn(shape, generator=generator, dtype=example.dtype)
    return torch.randint(int(example.max()) + 1, shape, generator=generator)


def check_client(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, loss: Any) -> None:
    """Raise ``ValueError`` where a client could not take a step: said once, before the work."""
    outputs = _outputs(model, inputs[:2])
    highest = int(labels.max())
    if loss is cross_entropy and (highest >= outputs.shape[1] or labels.min() < 0):
        raise ValueError(
            f"{argument('inputs')} has labels from {int(labels.min())} to {highest}, and the model {outputs.shape[1]} "
            "outputs"
        )
    try:
        loss(outputs, labels[:2])
    except Exception as error:  # a user's loss may raise anything
        raise ValueError(
            f"{argument('loss')} cannot be evaluated on outputs of shape {tuple(outputs.shape)}: {first_line(error)}"
        ) from error


def _outputs(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    try:
        with in_evaluation(model), torch.no_grad():
            outputs = model(inputs)
    except Exception as error:  # a model may raise anything on an input that it was not made for
        raise ValueError(
            f"the model does not run on {argument('inputs')} of shape {tuple(inputs.shape)}: {first_line(error)}"
        ) from error
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise ValueError(f"the model must return a row of outputs for each record, of shape (n, outputs), got {found}")
    return outputs


def seeded(seed: int) -> torch.Generator:
    """Return a generator of a seed."""
    return torch.Generator().manual_seed(seed)


def accuracy_after(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    client: SimulatedClient,
    loss: Any,
    n_rounds: int,
    seed: int = 0,
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
    """
    trained = deepcopy(model)
    order = torch.randperm(len(inputs), generator=seeded(seed))
    n_train = max(client.n_records, 4 * len(inputs) // 5)
    train, test = order[:n_train], order[n_train:]
    if not len(test):
        raise ValueError(f"{len(inputs)} records are too few to train on, with a fifth kept to test on")
    generator = seeded(seed + 1)
    rate = client.learning_rate if client.n_epochs else SERVER_RATE
    for first in range(0, n_rounds * N_CLIENTS, N_CLIENTS):
        steps = {name: torch.zeros_like(tensor) for name, tensor in trained.named_parameters()}
        sent_out = deepcopy(trained)
        for number in range(first, first + N_CLIENTS):
            part = train[torch.randperm(len(train), generator=generator)[: client.n_records]]
            sent = client.update(sent_out, inputs[part], labels[part], loss=loss, seed=seed * 100_003 + number)
            for name in steps.keys() & sent.gradients.keys():  # a filter may leave some out
                steps[name] += rate * sent.gradients[name].to(steps[name].dtype) / N_CLIENTS
        with torch.no_grad():
            for name, tensor in trained.named_parameters():
                tensor.sub_(steps[name])
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


def epsilon_of(setting: Setting, n_records: int, n_rounds: int) -> float | None:
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
        return float(accountant.get_epsilon(DELTA))

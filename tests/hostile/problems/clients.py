"""Clients that do something else than the server takes them to do."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.simulation import WIRES, client_gradient, dp_sgd_gradient, fedavg_update
from tests.hostile.problems.problem import HostileProblem, draw_inputs, send

ACTIVATIONS = {
    "LeakyReLU": lambda: nn.LeakyReLU(0.1),
    "GELU": nn.GELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "ReLU6": nn.ReLU6,
}


def honest(problem: HostileProblem) -> None:
    """Send what is."""
    send(problem)


def other_weights(problem: HostileProblem) -> None:
    """Show weights of another initialisation."""
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    layer = problem.model[0]
    problem.model[0].load_state_dict(nn.Linear(layer.in_features, layer.out_features).state_dict())
    with torch.no_grad():
        problem.model[0].weight.copy_(
            (torch.rand(layer.weight.shape, generator=problem.generator) * 2 - 1) / layer.in_features**0.5
        )
        problem.model[0].bias.zero_()
    send(problem, gradients)


def stale_weights(problem: HostileProblem) -> None:
    """Show weights a little off."""
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    size = float(problem.rng.choice([1e-4, 1e-3, 1e-2, 0.1]))
    with torch.no_grad():
        for parameter in problem.model.parameters():
            noise = torch.randn(parameter.shape, generator=problem.generator)
            parameter += size * parameter.square().mean().sqrt() * noise
    problem.description += f", off by {size:g}"
    send(problem, gradients)


def other_activation(problem: HostileProblem) -> None:
    """Put another activation where a ReLU is declared."""
    name = str(problem.rng.choice(list(ACTIVATIONS)))
    problem.model[1] = ACTIVATIONS[name]()
    problem.description += f", {name}"
    send(problem)


def other_batch_behind(problem: HostileProblem) -> None:
    """Show the next layer's gradient of another batch."""
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    other = draw_inputs(len(problem.inputs), problem.rng)[0]
    while other.shape != problem.inputs.shape:
        other = draw_inputs(len(problem.inputs), problem.rng)[0]
    gradients["2.weight"] = client_gradient(problem.model, other, problem.labels)["2.weight"]
    problem.layer_gradient = replace(LayerGradient.from_model(problem.model, gradients, "0"), activation="relu")


def wire(problem: HostileProblem) -> None:
    """Send in a coarse format."""
    name = str(problem.rng.choice(list(WIRES)))
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    problem.description += f", {name}"
    if problem.rng.random() < 0.5:
        problem.told["batch_size"] = len(problem.inputs)
    send(problem, {key: WIRES[name](value) for key, value in gradients.items()})


def sign_flipped(problem: HostileProblem) -> None:
    """Flip the sign of all, of the weights, or of the bias."""
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    which = str(problem.rng.choice(["all", "weights", "bias"]))
    problem.description += f", {which}"
    flipped = {"all": ("weight", "bias"), "weights": ("weight",), "bias": ("bias",)}[which]
    send(problem, {key: -value if key.endswith(flipped) else value for key, value in gradients.items()})


def dropout(problem: HostileProblem) -> None:
    """Drop units out before or after the ReLU."""
    rate, before = float(problem.rng.choice([0.1, 0.3, 0.5])), bool(problem.rng.integers(2))
    width, activation = problem.model[0].out_features, nn.Dropout(rate)
    order = [activation, nn.ReLU()] if before else [nn.ReLU(), activation]
    dropping = nn.Sequential(problem.model[0], *order, *problem.model[2:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(problem.rng.integers(2**31)))
        gradients = client_gradient(dropping, problem.inputs, problem.labels)
    names = dict(zip(dict(dropping.named_parameters()), dict(problem.model.named_parameters()), strict=True))
    problem.description += f", rate {rate:g} {'before' if before else 'after'} the ReLU of {width}"
    send(problem, {names[key]: value for key, value in gradients.items()})


def batch_norm(problem: HostileProblem) -> None:
    """Normalise over the batch, or by running statistics."""
    width, generator = problem.model[0].out_features, problem.generator
    norm = nn.BatchNorm1d(width)
    with torch.no_grad():
        norm.running_mean.copy_(0.3 * torch.randn(width, generator=generator))
        norm.running_var.copy_(0.2 + torch.rand(width, generator=generator))
        norm.weight.copy_(0.5 + torch.rand(width, generator=generator))
        norm.bias.copy_(0.3 * torch.randn(width, generator=generator))
    training = bool(problem.rng.random() < 0.3)
    problem.model = nn.Sequential(problem.model[0], norm, *problem.model[1:]).train(training)
    problem.description += f", {'training' if training else 'eval'} mode"
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    # A user may not know in which mode the client was.
    problem.model.eval()
    send(problem, gradients)


def fedavg(problem: HostileProblem) -> None:
    """Train locally."""
    rng = problem.rng
    rate = float(10 ** rng.uniform(-2, -1))
    n_epochs, mini_batch = int(rng.integers(1, 6)), [2, 4, 8, None][rng.integers(4)]
    before, after = fedavg_update(
        problem.model,
        problem.inputs,
        problem.labels,
        learning_rate=rate,
        n_epochs=n_epochs,
        batch_size=mini_batch,
        random_state=int(rng.integers(2**31)),
    )
    problem.description += f", {n_epochs} epochs, mini-batch {mini_batch}, rate {rate:.3f}"
    given = LayerGradient.from_update(before, after, rate)
    problem.layer_gradient = given if rng.random() < 0.5 else replace(given, next_weight_grad=None)


def private(problem: HostileProblem) -> None:
    """Clip and add noise."""
    rng = problem.rng
    noise = float(10 ** rng.uniform(-6, -3))
    gradients = dp_sgd_gradient(
        problem.model, problem.inputs, problem.labels, clipping=2.0, noise_std=noise, random_state=int(rng.integers(99))
    )
    problem.told["batch_size"] = len(problem.inputs)
    told = str(rng.choice(["nothing", "the noise", "three times the noise", "a third of the noise"]))
    factor = {"nothing": None, "the noise": 1.0, "three times the noise": 3.0, "a third of the noise": 1 / 3}[told]
    if factor is not None:
        problem.told["noise_level"] = factor * noise
    problem.description += f", noise {noise:.1e}, told {told}"
    send(problem, gradients)

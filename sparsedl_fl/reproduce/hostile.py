"""Problems made to mislead: what a certificate has to survive, drawn from a seed.

One problem is a batch, a network, a client and what happens on the wire, each of which may lie: weights that are not
those of the gradient, another activation than declared, gradients of another batch behind, coarse number formats,
sparsified or sign-flipped updates, dropout, batch normalisation, local training, noise, inputs that repeat or mix, and
a user who tells a wrong batch size or noise level.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl_fl.demo import natural_patches
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.simulation import client_gradient, dp_sgd_gradient, fedavg_update
from sparsedl_fl.simulation.wire import WIRES

__all__ = ["TWISTS", "HostileProblem", "hostile_problem"]

N_CLASSES = 10
N_NUMBERS = 150
"""Length of a made-up input; a patch of a photograph has 768."""

ACTIVATIONS = {
    "LeakyReLU": lambda: nn.LeakyReLU(0.1),
    "GELU": nn.GELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "ReLU6": nn.ReLU6,
}


@dataclass
class HostileProblem:
    """What the server is given, and the truth.

    Attributes
    ----------
    inputs : torch.Tensor of shape (batch_size, n)
        The true inputs of the first layer, those that the client lost on the way (by dropout before the layer) as the
        layer saw them.
    layer_gradient : LayerGradient or None
        What the server has; None where it could not be made, with the reason in ``refusal``.
    told : dict
        ``batch_size`` and ``noise_level`` for the inverter.
    description : str
        What was done.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    model: nn.Module
    rng: np.random.Generator
    layer_gradient: LayerGradient | None = None
    refusal: str = ""
    told: dict[str, Any] = field(default_factory=dict)
    description: str = ""

    @property
    def generator(self) -> torch.Generator:
        """A new generator for torch, from the problem's own."""
        return torch.Generator().manual_seed(int(self.rng.integers(2**31)))


def hostile_problem(seed: int, twist: str | None = None) -> HostileProblem:
    """Draw a problem.

    Parameters
    ----------
    seed : int
        Of everything.
    twist : str or None, default=None
        Name in `TWISTS`; None draws one.
    """
    rng = np.random.default_rng(seed)
    names = list(TWISTS)
    twist = names[rng.integers(len(names))] if twist is None else twist
    width = int(rng.choice([60, 100, 200]))
    batch_size = int(rng.integers(2, max(3, round(width * rng.choice([0.1, 0.2, 0.35])))))
    inputs, data = _inputs(batch_size, rng)
    labels = torch.from_numpy(rng.integers(N_CLASSES, size=batch_size))
    problem = HostileProblem(inputs, labels, _network(inputs.shape[1], width, nn.ReLU, seed), rng)
    problem.description = f"seed {seed}: {twist}, {data}, b={batch_size}, m={width}"
    TWISTS[twist](problem)
    return problem


def _inputs(batch_size: int, rng: np.random.Generator) -> tuple[torch.Tensor, str]:
    kind = str(rng.choice(["patches", "numbers", "uncentred"], p=[0.5, 0.3, 0.2]))
    if kind == "patches":
        patches, mean, std = natural_patches(batch_size, int(rng.integers(2**31)))
        inputs = ((patches - mean) / std)[:, ::2, ::2].reshape(batch_size, -1)
    elif kind == "numbers":
        inputs = rng.standard_normal((batch_size, N_NUMBERS))
    else:
        inputs = rng.uniform(size=(batch_size, N_NUMBERS))
    return torch.tensor(inputs, dtype=torch.float32), kind


def _network(n_inputs: int, width: int, activation: Callable[[], nn.Module], seed: int, *between: nn.Module) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(n_inputs, width), *between, activation(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, N_CLASSES),
        )  # fmt: skip


def _send(problem: HostileProblem, gradients: dict[str, torch.Tensor] | None = None) -> None:
    """Let the server see a gradient, with or without the next layer's."""
    model = problem.model
    gradients = client_gradient(model, problem.inputs, problem.labels) if gradients is None else gradients
    try:
        given = LayerGradient.from_model(model, gradients, "0")
        # What hides behind the layer is not for the server to see here: it takes it for a ReLU.
        given = replace(given, activation="relu")
        problem.layer_gradient = given if problem.rng.random() < 0.5 else replace(given, next_weight_grad=None)
    except (ValueError, TypeError) as error:
        problem.refusal = str(error)


def _honest(problem: HostileProblem) -> None:
    _send(problem)


def _other_weights(problem: HostileProblem) -> None:
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    layer = problem.model[0]
    problem.model[0].load_state_dict(nn.Linear(layer.in_features, layer.out_features).state_dict())
    with torch.no_grad():
        problem.model[0].weight.copy_(
            (torch.rand(layer.weight.shape, generator=problem.generator) * 2 - 1) / layer.in_features**0.5
        )
        problem.model[0].bias.zero_()
    _send(problem, gradients)


def _stale_weights(problem: HostileProblem) -> None:
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    size = float(problem.rng.choice([1e-4, 1e-3, 1e-2, 0.1]))
    with torch.no_grad():
        for parameter in problem.model.parameters():
            noise = torch.randn(parameter.shape, generator=problem.generator)
            parameter += size * parameter.square().mean().sqrt() * noise
    problem.description += f", off by {size:g}"
    _send(problem, gradients)


def _other_activation(problem: HostileProblem) -> None:
    name = str(problem.rng.choice(list(ACTIVATIONS)))
    problem.model[1] = ACTIVATIONS[name]()
    problem.description += f", {name}"
    _send(problem)


def _other_batch_behind(problem: HostileProblem) -> None:
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    other = _inputs(len(problem.inputs), problem.rng)[0]
    while other.shape != problem.inputs.shape:
        other = _inputs(len(problem.inputs), problem.rng)[0]
    gradients["2.weight"] = client_gradient(problem.model, other, problem.labels)["2.weight"]
    problem.layer_gradient = replace(LayerGradient.from_model(problem.model, gradients, "0"), activation="relu")


def _wire(problem: HostileProblem) -> None:
    name = str(problem.rng.choice(list(WIRES)))
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    problem.description += f", {name}"
    if problem.rng.random() < 0.5:
        problem.told["batch_size"] = len(problem.inputs)
    _send(problem, {key: WIRES[name](value) for key, value in gradients.items()})


def _sign_flipped(problem: HostileProblem) -> None:
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    which = str(problem.rng.choice(["all", "weights", "bias"]))
    problem.description += f", {which}"
    flipped = {"all": ("weight", "bias"), "weights": ("weight",), "bias": ("bias",)}[which]
    _send(problem, {key: -value if key.endswith(flipped) else value for key, value in gradients.items()})


def _dropout(problem: HostileProblem) -> None:
    rate, before = float(problem.rng.choice([0.1, 0.3, 0.5])), bool(problem.rng.integers(2))
    width, activation = problem.model[0].out_features, nn.Dropout(rate)
    order = [activation, nn.ReLU()] if before else [nn.ReLU(), activation]
    dropping = nn.Sequential(problem.model[0], *order, *problem.model[2:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(problem.rng.integers(2**31)))
        gradients = client_gradient(dropping, problem.inputs, problem.labels)
    names = dict(zip(dict(dropping.named_parameters()), dict(problem.model.named_parameters()), strict=True))
    problem.description += f", rate {rate:g} {'before' if before else 'after'} the ReLU of {width}"
    _send(problem, {names[key]: value for key, value in gradients.items()})


def _batch_norm(problem: HostileProblem) -> None:
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
    problem.model.eval()
    _send(problem, gradients)


def _fedavg(problem: HostileProblem) -> None:
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


def _private(problem: HostileProblem) -> None:
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
    _send(problem, gradients)


def _duplicates(problem: HostileProblem) -> None:
    half = len(problem.inputs) // 2
    problem.inputs[len(problem.inputs) - half :] = problem.inputs[:half].clone()
    if problem.rng.random() < 0.5:
        problem.labels[len(problem.inputs) - half :] = problem.labels[:half].clone()
    _send(problem)


def _near_duplicates(problem: HostileProblem) -> None:
    distance = float(10 ** problem.rng.uniform(-6, -0.5))
    noise = torch.randn(problem.inputs[0].shape, generator=problem.generator)
    problem.inputs[-1] = problem.inputs[0] + distance * problem.inputs[0].square().mean().sqrt() * noise
    if problem.rng.random() < 0.7:
        problem.labels[-1] = problem.labels[0]
    name = str(problem.rng.choice(["float32", "bfloat16", "float16", "noise"]))
    problem.description += f", {distance:.1e} apart, {name}"
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    if name == "noise":
        scale = 10 ** problem.rng.uniform(-5, -2)
        gradients = {
            key: value + scale * value.square().mean().sqrt() * torch.randn(value.shape, generator=problem.generator)
            for key, value in gradients.items()
        }
        problem.told["batch_size"] = len(problem.inputs) - int(problem.rng.integers(2))
    _send(problem, {key: WIRES[name](value) if name in WIRES else value for key, value in gradients.items()})


def _mixtures(problem: HostileProblem) -> None:
    weights = problem.rng.dirichlet(np.ones(2))
    if problem.rng.random() < 0.5:
        weights = problem.rng.standard_normal(2)
    if len(problem.inputs) > 2:
        problem.inputs[-1] = float(weights[0]) * problem.inputs[0] + float(weights[1]) * problem.inputs[1]
    problem.description += f", weights {weights.round(2).tolist()}"
    _send(problem)


def _wrong_batch_size(problem: HostileProblem) -> None:
    problem.told["batch_size"] = max(1, len(problem.inputs) + int(problem.rng.choice([-2, -1, 1, 2])))
    problem.description += f", told b={problem.told['batch_size']}"
    _wire(problem) if problem.rng.random() < 0.5 else _send(problem)
    problem.told["batch_size"] = problem.told.get("batch_size")


def _wrong_noise_level(problem: HostileProblem) -> None:
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    noise = float(gradients["0.weight"].square().mean().sqrt()) * 10 ** problem.rng.uniform(-5, -1)
    noisy = {
        key: value + noise * torch.randn(value.shape, generator=problem.generator) for key, value in gradients.items()
    }
    factor = float(10 ** problem.rng.uniform(-2, 2))
    problem.told = {"batch_size": len(problem.inputs), "noise_level": noise * factor}
    problem.description += f", noise told times {factor:.2g}"
    _send(problem, noisy)


def _no_loss(problem: HostileProblem) -> None:
    weights = torch.from_numpy(10.0 ** problem.rng.uniform(-8, 0, size=len(problem.inputs))).float()

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (weights * cross_entropy(outputs, labels, reduction="none")).mean()

    _send(problem, client_gradient(problem.model, problem.inputs, problem.labels, loss))


def _dead_and_doubled_units(problem: HostileProblem) -> None:
    """Units that are copies of each other, as after a widening, and dead ones."""
    model, m = deepcopy(problem.model), problem.model[0].out_features
    with torch.no_grad():
        copies = torch.from_numpy(problem.rng.integers(m // 2, size=m // 3))
        model[0].weight[-len(copies) :] = model[0].weight[copies]
        model[0].bias[-len(copies) :] = model[0].bias[copies]
        if problem.rng.random() < 0.5:
            model[2].weight[:, -len(copies) :] = model[2].weight[:, copies]
        model[0].bias[: m // 10] = -100.0
    problem.model = model
    _send(problem)


TWISTS: dict[str, Callable[[HostileProblem], None]] = {
    "honest": _honest,
    "other weights": _other_weights,
    "stale weights": _stale_weights,
    "other activation": _other_activation,
    "other batch behind": _other_batch_behind,
    "wire": _wire,
    "wire again": _wire,
    "sign flipped": _sign_flipped,
    "dropout": _dropout,
    "batch norm": _batch_norm,
    "FedAvg": _fedavg,
    "FedAvg again": _fedavg,
    "DP noise": _private,
    "duplicates": _duplicates,
    "near-duplicates": _near_duplicates,
    "mixtures": _mixtures,
    "wrong batch size": _wrong_batch_size,
    "wrong noise level": _wrong_noise_level,
    "no loss": _no_loss,
    "dead and doubled units": _dead_and_doubled_units,
}
"""What is done to a problem, by name; `hostile_problem` draws one of them."""

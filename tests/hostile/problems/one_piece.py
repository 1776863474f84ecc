"""Several records between which no unit switches: their gradients are parallel, or have the same zeros."""

from __future__ import annotations

import torch
from torch import nn

from sparsedl_fl.activations import Activation, resolve
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.layers.losses import total_loss
from sparsedl_fl.simulation import client_gradient
from tests.hostile.problems.before_head import as_sent, drawn, train
from tests.hostile.problems.problem import HostileProblem

MODULES = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "hardtanh": nn.Hardtanh}
ACTIVATIONS = ("relu", "relu", "relu", "leaky_relu", "hardtanh")
TOGETHER = ("two of one label", "two of one label", "two of two labels", "three", "three on a line", "two pairs")
SENT = ("float32", "float32", "noise", "float16", "bfloat16")


def one_piece(problem: HostileProblem) -> None:
    """Move some records of a batch along lines to where no unit of another one switches, before few classes or many."""
    rng = problem.rng
    width, n = int(rng.choice([60, 100])), int(rng.integers(5, 26))
    n_outputs, n_steps = int(rng.choice([1, 2, 2, 3, 10])), int(rng.choice([0, 0, 50]))
    name = str(rng.choice(ACTIVATIONS))
    activation = MODULES[name]
    n_classes, is_deep, is_alone = max(n_outputs, 2), bool(rng.random() < 0.5), bool(rng.random() < 0.2)
    together, sent = str(rng.choice(TOGETHER)), str(rng.choice(SENT))
    inputs, labels, data = drawn(n + 200, n_classes, problem)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        hidden = [nn.Linear(width, width), activation()] if is_deep else []
        first = nn.Linear(inputs.shape[1], width)
        model = nn.Sequential(first, activation(), *hidden, nn.Linear(width, n_outputs))
    if n_outputs > 1:
        train(model, inputs[n:], labels[n:], n_steps)
    problem.model, problem.inputs, problem.labels = model, inputs[:n].clone(), labels[:n].clone()
    for start in (0, 3) if together == "two pairs" else (0,):
        _move(problem, resolve(name), start, together)
    gradients = client_gradient(model, problem.inputs, problem.labels, lambda outputs, y: total_loss(None, outputs, y))
    gradients = as_sent(gradients, sent, problem)
    problem.layer_gradient = LayerGradient.from_model(model, gradients, "0")
    if is_alone:
        problem.layer_gradient = LayerGradient(
            weight=first.weight.detach(),
            weight_grad=gradients["0.weight"],
            bias=first.bias.detach(),
            bias_grad=gradients["0.bias"],
            activation=name,
        )
    problem.description += (
        f" (in place of these {data}, b={n}, m={width}), {n_outputs} outputs, {n_steps} steps, {name}, "
        f"{'two hidden layers' if is_deep else 'one hidden layer'}, {together}, {sent}"
        f"{', one layer alone' if is_alone else ''}"
    )


def _move(problem: HostileProblem, activation: Activation, start: int, together: str) -> None:
    """Move the record after the given one, or both, along a line up to where the first unit switches."""
    inputs, labels, first = problem.inputs, problem.labels, problem.model[0]
    own, length = inputs[start].clone(), 1.0
    step = own.square().mean().sqrt() * torch.randn(own.shape, generator=problem.generator)

    def slopes(x: torch.Tensor) -> torch.Tensor:
        return activation.derivative(first(x)[None].detach())

    while (slopes(own + length * step) != slopes(own)).any():
        length *= 0.9
    shares = {"three": (1.0, float(problem.rng.uniform())), "three on a line": (1.0, 0.5)}.get(together, (1.0,))
    for number, share in enumerate(shares, start=start + 1):
        inputs[number], labels[number] = own + share * length * step, labels[start]
    if together == "two of two labels":
        labels[start + 1] = (labels[start] + 1) % max(problem.model[-1].out_features, 2)

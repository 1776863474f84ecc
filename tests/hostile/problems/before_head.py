"""One hidden layer before a head, whose weights send back what certifies beyond zeros; each of them may lie."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.simulation import WIRES, client_gradient
from tests.hostile.data import digits
from tests.hostile.problems.problem import HostileProblem, draw_inputs

BATCHES = ("as drawn", "as drawn", "alike", "scaled", "of few classes", "in few dimensions", "mostly active")
LIES = ("nothing", "nothing", "the layer's weights", "the head's weights", "the head's gradient", "dropout")
SENT = ("float32", "float32", "float32", "noise", "float16", "bfloat16", "int8 by row")


def before_a_head(problem: HostileProblem) -> None:
    """Take a batch of up to six tenths of the width, in training or not, and lie about it or not."""
    rng, width = problem.rng, int(problem.rng.choice([60, 100]))
    n_classes, n = int(rng.choice([2, 5, 10])), int(rng.integers(2, round(0.6 * width)))
    inputs, labels, data = drawn(n + 200, n_classes, problem)
    batch, lie, sent = (str(rng.choice(kinds)) for kinds in (BATCHES, LIES, SENT))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        model = nn.Sequential(nn.Linear(inputs.shape[1], width), nn.ReLU(), nn.Linear(width, n_classes))
    n_steps = int(rng.choice([0, 0, 50, 400]))
    train(model, inputs[n:], labels[n:], n_steps)
    problem.model, problem.labels = model, labels[:n]
    problem.inputs = _changed(inputs[:n], batch, problem)
    gradients = _gradients(problem, lie)
    gradients = as_sent(gradients, sent, problem)
    size = float(10 ** rng.uniform(-6, -1))
    if lie.endswith("weights"):
        with torch.no_grad():
            weight = model[0 if "layer" in lie else 2].weight
            noise = torch.randn(weight.shape, generator=problem.generator)
            weight += size * weight.square().mean().sqrt() * noise
    if rng.random() < 0.3:
        problem.told["batch_size"] = n
    problem.description += (
        f" (in place of these {data}, b={n}, m={width}), {n_classes} classes, {n_steps} steps, batch {batch}, {sent}, "
        f"lies about {lie} ({size:.0e})"
    )
    problem.layer_gradient = LayerGradient.from_model(model, gradients, "0")


def drawn(n: int, n_classes: int, problem: HostileProblem) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Return digits or made-up inputs, with labels, and their name."""
    if problem.rng.random() < 0.5:
        images, labels = digits(n, problem.rng)
        return images.flatten(1), labels % n_classes, "digits"
    inputs, data = draw_inputs(n, problem.rng)
    return inputs, torch.from_numpy(problem.rng.integers(n_classes, size=n)), data


def train(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, n_steps: int) -> None:
    """Train a model for some steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(n_steps):
        rows = [(32 * step + index) % len(inputs) for index in range(32)]
        optimizer.zero_grad()
        cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    model.zero_grad()


def as_sent(gradients: dict[str, torch.Tensor], sent: str, problem: HostileProblem) -> dict[str, torch.Tensor]:
    """Return gradients with noise of 1e-6 to 1e-3 of their size, or in another number format."""
    if sent == "noise":
        level = float(10 ** problem.rng.uniform(-6, -3))
        gradients = {
            name: value + level * value.square().mean().sqrt() * torch.randn(value.shape, generator=problem.generator)
            for name, value in gradients.items()
        }
    return {name: WIRES[sent](value) if sent in WIRES else value for name, value in gradients.items()}


def _changed(inputs: torch.Tensor, batch: str, problem: HostileProblem) -> torch.Tensor:
    """Return another batch of as many inputs; biases are moved where most units are to be active."""
    rng, generator = problem.rng, problem.generator
    noise = torch.randn(inputs.shape, generator=generator)
    if batch == "alike":
        return inputs[:1] + float(10 ** rng.uniform(-3, 0)) * inputs.square().mean().sqrt() * noise
    if batch == "scaled":
        return inputs * torch.from_numpy(10 ** rng.uniform(-2, 1, size=(len(inputs), 1))).float()
    if batch == "of few classes":
        problem.labels[:] = problem.labels[0]
    if batch == "in few dimensions":
        n_dimensions = min(len(inputs) + 3, inputs.shape[1])
        basis = torch.randn((n_dimensions, inputs.shape[1]), generator=generator)
        return noise[:, :n_dimensions] @ basis / n_dimensions**0.5
    if batch == "mostly active":
        with torch.no_grad():
            problem.model[0].bias += float(rng.uniform(0.3, 2)) * (inputs @ problem.model[0].weight.T).std()
    return inputs


def _gradients(problem: HostileProblem, lie: str) -> dict[str, torch.Tensor]:
    model = problem.model
    if lie == "dropout":
        rate = float(problem.rng.choice([0.1, 0.5]))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(problem.rng.integers(2**31)))
            dropping = nn.Sequential(model[0], model[1], nn.Dropout(rate), model[2]).train()
            found = client_gradient(dropping, problem.inputs, problem.labels)
        return {name.replace("3.", "2."): value for name, value in found.items()}
    gradients = client_gradient(model, problem.inputs, problem.labels)
    if lie == "the head's gradient":
        order = torch.randperm(len(problem.inputs), generator=problem.generator)
        other = client_gradient(model, 0.5 * (problem.inputs + problem.inputs[order]), problem.labels)
        gradients["2.weight"] = other["2.weight"]
    return gradients

"""Batches that are hard to tell apart, and users who tell something wrong about them."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from sparsedl_fl.simulation import WIRES, client_gradient
from tests.hostile.problems.clients import wire
from tests.hostile.problems.problem import HostileProblem, send


def duplicates(problem: HostileProblem) -> None:
    """Repeat half of the batch."""
    half = len(problem.inputs) // 2
    problem.inputs[len(problem.inputs) - half :] = problem.inputs[:half].clone()
    if problem.rng.random() < 0.5:
        problem.labels[len(problem.inputs) - half :] = problem.labels[:half].clone()
    send(problem)


def near_duplicates(problem: HostileProblem) -> None:
    """Nearly repeat an input."""
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
    send(problem, {key: WIRES[name](value) if name in WIRES else value for key, value in gradients.items()})


def mixtures(problem: HostileProblem) -> None:
    """Make one input a mixture of two others."""
    weights = problem.rng.dirichlet(np.ones(2))
    if problem.rng.random() < 0.5:
        weights = problem.rng.standard_normal(2)
    if len(problem.inputs) > 2:
        problem.inputs[-1] = float(weights[0]) * problem.inputs[0] + float(weights[1]) * problem.inputs[1]
    problem.description += f", weights {weights.round(2).tolist()}"
    send(problem)


def wrong_batch_size(problem: HostileProblem) -> None:
    """Tell a wrong batch size."""
    problem.told["batch_size"] = max(1, len(problem.inputs) + int(problem.rng.choice([-2, -1, 1, 2])))
    problem.description += f", told b={problem.told['batch_size']}"
    wire(problem) if problem.rng.random() < 0.5 else send(problem)
    problem.told["batch_size"] = problem.told.get("batch_size")


def wrong_noise_level(problem: HostileProblem) -> None:
    """Tell a wrong noise level."""
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    noise = float(gradients["0.weight"].square().mean().sqrt()) * 10 ** problem.rng.uniform(-5, -1)
    noisy = {
        key: value + noise * torch.randn(value.shape, generator=problem.generator) for key, value in gradients.items()
    }
    factor = float(10 ** problem.rng.uniform(-2, 2))
    problem.told = {"batch_size": len(problem.inputs), "noise_level": noise * factor}
    problem.description += f", noise told times {factor:.2g}"
    send(problem, noisy)


def no_loss(problem: HostileProblem) -> None:
    """Give the inputs losses of all sizes."""
    weights = torch.from_numpy(10.0 ** problem.rng.uniform(-8, 0, size=len(problem.inputs))).float()

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (weights * cross_entropy(outputs, labels, reduction="none")).mean()

    send(problem, client_gradient(problem.model, problem.inputs, problem.labels, loss))


def dead_and_doubled_units(problem: HostileProblem) -> None:
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
    send(problem)

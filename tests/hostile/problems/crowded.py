"""More inputs than their features have dimensions, of records that are alike, sent by a client that may lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from paper.models.activations import MODULES
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.simulation import WIRES, client_gradient
from tests.hostile.problems.problem import HostileProblem

LIES = ("nothing", "wire", "clipped", "noise", "stale behind", "stale", "activation", "other behind", "no biases")
N_STEPS = 30


def crowded(problem: HostileProblem) -> None:
    """Take records of a few numbers or categories, some of them nearly the same, behind a network of any shape."""
    rng, generator = problem.rng, problem.generator
    width, behind = int(rng.choice([60, 100, 200])), int(rng.choice([40, 60, 100, 200]))
    n_classes, n_features = int(rng.choice([2, 2, 3, 10])), int(rng.choice([3, 6, 13, 30]))
    b = int(min(behind - 1, width - 1, n_features + 2 + rng.integers(1, 60)))
    problem.inputs = torch.tensor(_records(b, n_features, rng), dtype=torch.float32)
    problem.labels = torch.from_numpy(rng.integers(n_classes, size=b))
    names = [str(rng.choice(["relu", "relu", *MODULES]))] * 2 if rng.random() < 0.7 else list(rng.choice([*MODULES], 2))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        sizes = [problem.inputs.shape[1], width, behind]
        layers = [nn.Linear(sizes[0], width), MODULES[names[0]](), nn.Linear(width, behind), MODULES[names[1]]()]
        if rng.random() < 0.4:
            layers += [nn.Linear(behind, behind), nn.ReLU()]
        problem.model = model = nn.Sequential(*layers, nn.Linear(behind, n_classes))
    if rng.random() < 0.4:
        _train(problem)
    lie = str(rng.choice(LIES, p=[0.36, *[0.08] * 8]))
    problem.description += f", {problem.inputs.shape[1]} features, b={b}, m={width}, {names}, lies about {lie}"
    if lie == "no biases":
        with torch.no_grad():
            for layer in model[::2]:
                layer.bias.zero_()
    gradients = client_gradient(model, problem.inputs, problem.labels)
    if lie == "clipped":
        name = str(rng.choice(["0.weight", "0.bias", "2.weight"]))
        gradients[name] = gradients[name] * float(rng.choice([0.3, 0.9, 0.98, 1.1]))
    if lie == "noise":
        size = float(10 ** rng.uniform(-6, -1)) * gradients["2.weight"].square().mean().sqrt()
        gradients = {key: g + size * torch.randn(g.shape, generator=generator) for key, g in gradients.items()}
    if lie == "other behind":
        other = torch.randn(problem.inputs.shape, generator=generator)
        gradients["2.weight"] = client_gradient(model, other, problem.labels)["2.weight"]
    if lie in ("stale behind", "stale"):
        layer = model[2 if lie == "stale behind" else 0]
        with torch.no_grad():
            noise = torch.randn(layer.weight.shape, generator=generator) * layer.weight.square().mean().sqrt()
            layer.weight += float(10 ** rng.uniform(-5, 0)) * noise
    if lie == "wire":
        wire = WIRES[str(rng.choice(list(WIRES)))]
        gradients = {key: wire(value) for key, value in gradients.items()}
    if rng.random() < 0.3:
        problem.told["batch_size"] = b + int(rng.choice([0, 0, -1, 1, 5]))
    try:
        given = LayerGradient.from_model(model, gradients, "0")
        if lie == "activation":
            given = replace(given, activation=str(rng.choice(["relu", "gelu", "tanh", "leaky_relu"])))
        problem.layer_gradient = replace(given, rest=None) if rng.random() < 0.3 else given
    except (ValueError, TypeError) as error:
        problem.refusal = str(error)


def _records(b: int, n_features: int, rng: np.random.Generator) -> np.ndarray:
    """Draw numbers, categories or both, and let some records be nearly or exactly those of others."""
    numbers = rng.standard_normal((b, n_features)) * np.exp(rng.normal(0, 0.5, n_features))
    kind = rng.integers(3)
    if kind:
        categories = np.eye(4)[rng.integers(4, size=(b, max(1, n_features // 3)))].reshape(b, -1)
        numbers = np.hstack([numbers[:, : 2 if kind == 1 else 1], categories])
    if rng.random() < 0.4:
        n_alike = int(rng.integers(1, 4))
        size = float(rng.choice([0.0, 1e-4, 1e-3, 1e-2, 5e-2]))
        numbers[:n_alike] = numbers[n_alike : 2 * n_alike] * (1 + size * rng.standard_normal(numbers.shape[1]))
    return numbers


def _train(problem: HostileProblem) -> None:
    """Train on the records themselves, a little or until some leave nothing."""
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=float(problem.rng.choice([0.05, 0.5])))
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(problem.model(problem.inputs), problem.labels).backward()
        optimizer.step()
    optimizer.zero_grad()

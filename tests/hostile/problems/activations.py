"""Networks with any activation, declared as it is or wrongly, and layers behind that may lie too."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from paper.models.activations import MODULES
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.simulation import WIRES, client_gradient
from tests.hostile.problems.problem import N_CLASSES, HostileProblem, draw_inputs

DECLARED = ("relu", "relu6", "hardtanh", "leaky_relu", "elu", "gelu", "silu", "mish", "softplus", "tanh", "sigmoid")


def any_activation(problem: HostileProblem) -> None:
    """Take any activation, and more often than not say which."""
    rng, width, n_inputs = problem.rng, problem.model[0].out_features, problem.model[0].in_features
    names = list(MODULES)
    first, second, third = (str(name) for name in rng.choice(names, 3))
    if rng.random() < 0.6:
        second = third = first
    behind = int(rng.choice([width, width // 2, 2 * width]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        layers = [nn.Linear(n_inputs, width), MODULES[first](), nn.Linear(width, behind), MODULES[second]()]
        problem.model = nn.Sequential(
            *layers, nn.Linear(behind, behind), MODULES[third](), nn.Linear(behind, N_CLASSES)
        )
    wire = str(rng.choice(["float32", "float32", *WIRES]))
    gradients = client_gradient(problem.model, problem.inputs, problem.labels)
    lie = str(
        rng.choice(["nothing", "the activation", "a gradient behind", "the weights behind"], p=[0.55, 0.15, 0.15, 0.15])
    )
    problem.description += f", {first}, {second}, {third}, {wire}, lies about {lie}"
    if lie == "a gradient behind":
        other = draw_inputs(len(problem.inputs), rng)[0]
        while other.shape != problem.inputs.shape:
            other = draw_inputs(len(problem.inputs), rng)[0]
        gradients["4.weight"] = client_gradient(problem.model, other, problem.labels)["4.weight"]
    if lie == "the weights behind":
        with torch.no_grad():
            weight = problem.model[2].weight
            weight += (
                float(10 ** rng.uniform(-4, 0))
                * weight.square().mean().sqrt()
                * torch.randn(weight.shape, generator=problem.generator)
            )
    gradients = {key: WIRES[wire](value) if wire in WIRES else value for key, value in gradients.items()}
    if wire != "float32" or rng.random() < 0.3:
        problem.told["batch_size"] = len(problem.inputs)
    try:
        given = LayerGradient.from_model(problem.model, gradients, "0")
        declared = str(rng.choice(DECLARED)) if lie == "the activation" else given.activation
        problem.layer_gradient = replace(given, activation=declared)
    except (ValueError, TypeError) as error:
        problem.refusal = str(error)

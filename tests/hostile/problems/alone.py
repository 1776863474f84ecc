"""One layer's gradient and the rest of the network, or a classifier's head: what is told of either may be wrong."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from paper.models.activations import MODULES
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.simulation import WIRES, client_gradient
from tests.hostile.problems.problem import HostileProblem

LOSSES = {
    "cross-entropy": functional.cross_entropy,
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
    "hardly smoothed": nn.CrossEntropyLoss(label_smoothing=1e-3),
    "weighted": nn.CrossEntropyLoss(weight=torch.linspace(0.5, 2.0, 10)),
}


def one_layer_alone(problem: HostileProblem) -> None:
    """Tell the rest of a network with any activations, which may differ from the client's a little, or in its loss."""
    rng, n_inputs, width = problem.rng, problem.model[0].in_features, problem.model[0].out_features
    names = [str(name) for name in rng.choice(list(MODULES), 3)]
    names = names if rng.random() < 0.4 else [names[0]] * 3
    n_classes = int(rng.choice([2, 10, 10, 40]))
    labels = torch.from_numpy(rng.integers(n_classes, size=len(problem.inputs)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        sizes, layers = [n_inputs, width, *[int(rng.choice([width // 2, width]))] * int(rng.integers(3))], []
        for number, (size_in, size_out) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            layers += [nn.Linear(size_in, size_out), MODULES[names[number]]()]
        problem.model = nn.Sequential(*layers, nn.Linear(sizes[-1], n_classes))
    problem.labels = labels
    _send(problem, "0", names)


def head(problem: HostileProblem) -> None:
    """Let the server see a head alone: of few or of many classes, sure of itself or not."""
    rng = problem.rng
    n_classes = int(rng.choice([5, 10, 30, 100, 300]))
    few = int(rng.choice([2, n_classes]))
    n = len(problem.inputs)
    if rng.random() < 0.7:
        n = min(n, max(1, round(n_classes * float(rng.uniform(0.1, 0.6)))))
    problem.inputs = problem.inputs[:n]
    if rng.random() < 0.4:  # features behind a ReLU
        problem.inputs = problem.inputs.clamp(min=0)
    problem.labels = torch.from_numpy(rng.integers(few, size=n))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        problem.model = nn.Sequential(nn.Linear(problem.inputs.shape[1], n_classes))
    of_bias = rng.spawn(1)[0]  # by itself: all other draws of a seed stay what they were
    surely_not = float(of_bias.choice([0.0, 0.0, of_bias.uniform(3, 16)]))
    with torch.no_grad():
        problem.model[0].weight *= float(10 ** rng.uniform(-2, 1))
        problem.model[0].bias[few if few < n_classes else n_classes // 4 :] -= surely_not
    _send(problem, "0", [f"{n_classes} classes, most unlikely by {surely_not:.1f}"])


def _send(problem: HostileProblem, layer: str, names: list[str]) -> None:
    rng = problem.rng
    n_classes = problem.model[-1].out_features
    loss = str(rng.choice(list(LOSSES), p=[0.7, 0.1, 0.1, 0.1])) if n_classes == 10 else "cross-entropy"
    wire = str(rng.choice(["float32", "float32", "float32", *WIRES]))
    repeats = str(rng.choice(["none", "none", "none", "exactly", "nearly"]))
    lie = str(rng.choice(["nothing", "the weights behind"], p=[0.75, 0.25])) if len(problem.model) > 1 else "nothing"
    size = float(10 ** rng.uniform(-6, 0))
    if repeats != "none" and len(problem.inputs) > 1:
        distance = 0.0 if repeats == "exactly" else size
        noise = torch.randn(problem.inputs[0].shape, generator=problem.generator)
        problem.inputs[-1] = problem.inputs[0] + distance * problem.inputs[0].square().mean().sqrt() * noise
        if rng.random() < 0.7:
            problem.labels[-1] = problem.labels[0]
    gradients = client_gradient(problem.model, problem.inputs, problem.labels, LOSSES[loss])
    gradients = {key: WIRES[wire](value) if wire in WIRES else value for key, value in gradients.items()}
    problem.description += (
        f", {', '.join(names)}, b={len(problem.inputs)}, {n_classes} classes, {loss}, {wire}, repeats {repeats} "
        f"({size:.0e}), lies about {lie}"
    )
    if lie == "the weights behind":
        with torch.no_grad():
            weight = problem.model[-1].weight
            noise = torch.randn(weight.shape, generator=problem.generator)
            weight += size * weight.square().mean().sqrt() * noise
    if rng.random() < 0.3:
        problem.told["batch_size"] = len(problem.inputs)
    try:
        told = LOSSES[loss] if rng.random() < 0.5 else None
        given = LayerGradient.from_model(problem.model, gradients, layer, loss=told)
        problem.layer_gradient = replace(given, next_weight_grad=None, next_weight=None, behind=(), head=None)
    except (ValueError, TypeError) as error:
        problem.refusal = str(error)

"""Tokens of a small transformer, many of them nearly the same, sent by a client that may lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from paper.methods import fed_to
from paper.models.activations import MODULES
from paper.models.transformers import text_transformer, vision_transformer
from sparsedl_fl.demo import natural_patches
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.simulation import WIRES, client_gradient
from tests.hostile.problems.problem import N_CLASSES, HostileProblem

LIES = ("nothing", "wire", "noise", "stale", "stale behind", "activation", "clipped", "other behind")
SIDE, PATCH, LENGTH, VOCABULARY = 16, 4, 16, 32
WIDTHS = (24, 48, 96)
"""Lengths of a token, by which as many fit in a batch: with 24 two pictures are more than that."""


def tokens(problem: HostileProblem) -> None:
    """Take tokens of pictures or of texts, some of them repeated, as a block's perceptron sees them."""
    rng, generator = problem.rng, problem.generator
    depth, width, n = int(rng.choice([1, 2, 2])), int(rng.choice(WIDTHS)), int(rng.choice([1, 1, 2, 3]))
    is_vision, seed = rng.random() < 0.5, int(rng.integers(2**31))
    if is_vision:
        model: nn.Module = vision_transformer(
            side=SIDE, patch=PATCH, width=width, depth=depth, n_classes=N_CLASSES, random_state=seed
        )
        inputs, labels = _pictures(n, rng), torch.from_numpy(rng.integers(N_CLASSES, size=n))
    else:
        model = text_transformer(n_tokens=LENGTH, vocabulary=VOCABULARY, width=width, depth=depth, random_state=seed)
        inputs, labels = _texts(n, rng)
    name = str(rng.choice(["gelu", "gelu", "relu", *MODULES]))
    for block in model.blocks:
        block.activation = MODULES[name]()
    if rng.random() < 0.4:  # places that hardly differ
        with torch.no_grad():
            model.positions *= float(rng.choice([0.0, 1e-4, 1e-2]))
    if rng.random() < 0.5:
        _train(model, inputs, labels, float(rng.choice([1e-4, 1e-3, 1e-2])), int(rng.integers(1, 40)))
    number = int(rng.random() < 0.2) * (depth - 1)  # behind a picture's last block its first token alone counts
    layer, lie = f"blocks.{number}.fc1", str(rng.choice(LIES, p=[0.44, *[0.08] * 7]))
    problem.inputs = fed_to(model, layer, inputs).flatten(0, 1)
    problem.labels = torch.full((len(problem.inputs),), -1)  # a token has none of its own
    gradients = client_gradient(model, inputs, labels)
    front, behind = model.blocks[number].fc1, model.blocks[number].fc2
    problem.description += (
        f" {'pictures' if is_vision else 'texts'}, {len(problem.inputs)} tokens of {width}, {name}, lies about {lie}"
    )
    if lie == "wire":
        wire = WIRES[str(rng.choice(list(WIRES)))]
        gradients = {key: wire(value) for key, value in gradients.items()}
    if lie == "noise":
        size = float(10 ** rng.uniform(-6, -1)) * gradients[f"{layer}.weight"].square().mean().sqrt()
        gradients = {key: g + size * torch.randn(g.shape, generator=generator) for key, g in gradients.items()}
    if lie == "clipped":
        key = str(rng.choice([f"{layer}.weight", f"{layer}.bias", f"blocks.{number}.fc2.weight"]))
        gradients[key] = gradients[key] * float(rng.choice([0.3, 0.9, 0.98, 1.1]))
    if lie == "other behind":
        key = f"blocks.{number}.fc2.weight"
        gradients[key] = client_gradient(model, inputs.flip(-1), labels)[key]
    if lie in ("stale", "stale behind"):
        with torch.no_grad():
            weight = (front if lie == "stale" else behind).weight
            noise = torch.randn(weight.shape, generator=generator) * weight.square().mean().sqrt()
            weight += float(10 ** rng.uniform(-5, 0)) * noise
    if rng.random() < 0.3:
        problem.told["batch_size"] = len(problem.inputs) + int(rng.choice([0, 0, -1, 1, 5]))
    try:
        given = LayerGradient.from_model(model, gradients, layer, example=inputs[:1])
        if lie == "activation":
            given = replace(given, activation=str(rng.choice(["relu", "gelu", "tanh", "leaky_relu"])))
        problem.layer_gradient = given
    except (ValueError, TypeError) as error:
        problem.refusal = str(error)


def _pictures(n: int, rng: np.random.Generator) -> torch.Tensor:
    """Draw pieces of photographs, of which some have patches of one colour, or are one another's mirror."""
    pixels, mean, std = natural_patches(n, int(rng.integers(2**31)))
    pictures = torch.tensor((pixels - mean) / std, dtype=torch.float32).permute(0, 3, 1, 2)[:, :, :SIDE, :SIDE]
    pictures = pictures.contiguous()
    if rng.random() < 0.3:
        pictures[:, :, : int(rng.choice([PATCH, SIDE // 2]))] = float(rng.normal())
    if n > 1 and rng.random() < 0.3:
        pictures[1] = pictures[0].flip(-1)
    return pictures


def _texts(n: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw texts of random characters, of few, or of one again and again, and what comes next."""
    few = int(rng.choice([1, 3, VOCABULARY]))
    texts = torch.from_numpy(rng.integers(few, size=(n, LENGTH + 1)))
    return texts[:, :-1].contiguous(), texts[:, 1:].contiguous()


def _train(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, rate: float, n_steps: int) -> None:
    """Train on the batch itself."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(n_steps):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    optimizer.zero_grad()

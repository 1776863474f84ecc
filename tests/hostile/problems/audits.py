"""Whole models whose audit may be misled: peeling, running forward, replay, and a layer's own attack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from paper.models.activations import MODULES
from sparsedl_fl.audit import AuditResult
from sparsedl_fl.metrics import are_mislabelled, are_wrong
from sparsedl_fl.simulation import WIRES
from tests.hostile.problems.problem import N_CLASSES, draw_inputs

__all__ = ["LIES", "HostileAudit", "hostile_audit"]

LIES = (
    "honest", "honest again", "path around", "penalty", "dropout", "wire", "stale layer", "scaled layer", "repeats",
    "frozen layer", "other loss",
)  # fmt: skip
"""What may be wrong with a client, or with what the server is told of it."""


class Network(nn.Module):
    """Linear layers with activations; a path around one that is part of the model, and noise that is not told of."""

    def __init__(self, sizes: list[int], activation: Any, around: int | None = None) -> None:
        super().__init__()
        pairs = list(zip(sizes[:-1], sizes[1:], strict=True))
        self.layers = nn.ModuleList(nn.Linear(n, m) for n, m in pairs)
        self.activation = activation()
        self.around = around
        self.dropout = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        kept = None
        for number, layer in enumerate(self.layers):
            if number == self.around:
                kept = x
            x = layer(x)
            if number < len(self.layers) - 1:
                x = functional.dropout(self.activation(x), self.dropout, training=self.dropout > 0)
            if kept is not None and x.shape == kept.shape:
                x, kept = x + kept, None
        return x


@dataclass
class HostileAudit:
    """What the server is given, and the truth.

    Attributes
    ----------
    model : torch.nn.Module
        As the server has it.
    gradients : mapping of str to torch.Tensor
        What it was sent.
    fed : dict of str to ndarray
        What each layer was fed at the client.
    labels : ndarray
        The true labels.
    description : str
        What was done.
    """

    model: nn.Module
    gradients: Mapping[str, torch.Tensor]
    fed: dict[str, np.ndarray]
    labels: np.ndarray
    description: str = ""
    loss: Any = field(default=None)

    def lies_of(self, audit: AuditResult) -> tuple[int, list[str]]:
        """Return how many inputs an audit certifies, and what of them is wrong, labels included."""
        n_certified, lies = 0, []
        for layer in audit.layers:
            if layer.batch is None:
                continue
            true, batch, certified = self.fed[layer.name], layer.batch, layer.batch.certified
            wrong = are_wrong(true, batch.inputs[certified], batch.errors[certified])
            mislabelled = are_mislabelled(true, self.labels, batch.inputs[certified], batch.labels[certified])
            n_certified += int(certified.sum())
            where = f"{self.description}: layer {layer.name}, {layer.source}"
            lies += [f"{where}: an input"] * int(wrong.sum()) + [f"{where}: a label"] * int(mislabelled.sum())
        return n_certified, lies


def hostile_audit(seed: int, lie: str | None = None) -> HostileAudit:
    """Draw a client with a model of its own; see `LIES`."""
    rng = np.random.default_rng(seed)
    lie = str(rng.choice(LIES)) if lie is None else lie
    narrow, wide = int(rng.choice([30, 60, 100])), int(rng.choice([100, 200, 300]))
    hidden = [[narrow, wide], [wide, narrow], [narrow, wide, narrow], [narrow, narrow, wide]][rng.integers(4)]
    b = int(rng.integers(2, max(3, round(0.8 * min(hidden)))))
    x, data = draw_inputs(b, rng)
    labels = torch.from_numpy(rng.integers(N_CLASSES, size=b))
    if lie == "repeats":
        x[-1], labels[-1] = x[0], labels[0]
    name = str(rng.choice(["relu", "relu", "gelu", "tanh", "leaky-relu-0.01", "silu", "relu6"]))
    around = int(rng.integers(1, len(hidden))) if lie == "path around" else None
    if around is not None:
        hidden[around] = hidden[around - 1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Network([x.shape[1], *hidden, N_CLASSES], MODULES[name], around)
        model.dropout = 0.2 if lie == "dropout" else 0.0
        fed: dict[str, np.ndarray] = {}
        hooks = [
            layer.register_forward_pre_hook(
                lambda _, given, key=f"layers.{number}": fed.update({key: given[0].detach().double().numpy()})
            )
            for number, layer in enumerate(model.layers)
        ]
        smoothing = 0.1 if lie == "other loss" else 0.0
        total = functional.cross_entropy(model(x), labels, label_smoothing=smoothing)
        for hook in hooks:
            hook.remove()
        gradients = dict(
            zip(dict(model.named_parameters()), torch.autograd.grad(total, list(model.parameters())), strict=True)
        )
    model.dropout = 0.0
    found = HostileAudit(model, gradients, fed, labels.numpy())
    _lied(found, lie, rng)
    found.description = f"seed {seed}: {lie}, {name}, {data}, b={b}, {hidden}"
    return found


def _lied(found: HostileAudit, lie: str, rng: np.random.Generator) -> None:
    """Change what was sent, or the model that the server has."""
    layers, sent = found.model.layers, dict(found.gradients)
    number = int(rng.integers(len(layers)))
    weight = f"layers.{number}.weight"
    if lie == "penalty":
        strength = float(10 ** rng.uniform(-5, -2))
        sent[weight] = sent[weight] + strength * layers[number].weight.detach()
    if lie == "wire":
        wire = WIRES[str(rng.choice(list(WIRES)))]
        sent = {name: wire(tensor) for name, tensor in sent.items()}
    if lie == "stale layer":
        with torch.no_grad():
            layers[number].weight += (
                float(10 ** rng.uniform(-4, -1))
                * layers[number].weight.abs().mean()
                * torch.randn(
                    layers[number].weight.shape, generator=torch.Generator().manual_seed(int(rng.integers(2**31)))
                )
            )
    if lie == "scaled layer":
        sent[weight] = sent[weight] * float(rng.uniform(0.5, 2.0))
    if lie == "frozen layer":
        sent[weight] = None
    found.gradients = sent

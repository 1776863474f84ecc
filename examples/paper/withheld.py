"""Updates without bias gradients, and of adapters alone: an audit of the whole model."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from paper.audited import compared
from paper.data import Images, load_images
from paper.experiments import Experiment
from paper.methods import Budget
from sparsedl_fl.audit import audit_model

__all__ = ["WITHHELD_ROWS", "WithoutBiases", "OfAdapters"]

N_HIDDEN, N_CLASSES = 2, 10

RATE, TRAINING_BATCH = 0.1, 32
"""Of the steps of adapters before the round that is audited."""

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


@dataclass(frozen=True)
class _Withheld(Experiment):
    """CIFAR-10 behind two hidden layers.

    Attributes
    ----------
    activation : str
        What follows them.
    """

    metrics: ClassVar[tuple[str, ...]] = ("psnr", "share", "error_ratio")
    activation: str = "relu"

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Audit the gradient of a seed; exact is every record certified, and above 80 dB.

        ``share`` is that of records certified; ``error_ratio`` is true over expected error.
        """
        images = load_images("cifar10", data)
        torch.manual_seed(seed)
        model = self._model(images, seed)
        inputs, labels = _drawn(images, self.batch_size, seed)
        sent = self._sent(model, inputs, labels)
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            audit = audit_model(model, sent, example=inputs[:1])
        record = {"starts": 0, "seconds": round(time.perf_counter() - start, 3), "status": audit.reason}
        record |= compared(audit.layers[0].samples, inputs, images)
        return record | {"exact": record["certified"] == self.batch_size and min(record["psnr"]) > 80}

    def _model(self, images: Images, seed: int) -> nn.Sequential:
        n_inputs = _drawn(images, 1, seed)[0].shape[1]
        widths = [n_inputs, *[self.width] * N_HIDDEN]
        hidden = [
            part
            for n, m in zip(widths, widths[1:], strict=False)
            for part in (nn.Linear(n, m), ACTIVATIONS[self.activation]())
        ]
        return nn.Sequential(*hidden, nn.Linear(self.width, N_CLASSES))

    def _sent(self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what the client sends, by name."""
        trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
        gradients = torch.autograd.grad(cross_entropy(model(inputs), labels), list(trained.values()))
        return dict(zip(trained, gradients, strict=True))


@dataclass(frozen=True)
class WithoutBiases(_Withheld):
    """No bias gradient is sent, the head's neither: frozen, or withheld by a filter like NVFLARE's ExcludeVars."""

    def _sent(self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: g for name, g in super()._sent(model, inputs, labels).items() if not name.endswith("bias")}


@dataclass(frozen=True)
class OfAdapters(_Withheld):
    """The hidden layers are frozen, and adapters (LoRA) beside them are trained, as is the head.

    Attributes
    ----------
    rank : int
        That of each adapter.
    n_steps : int
        Of all adapters and the head, in mini-batches at `RATE`, before the gradient is taken: at first an adapter's
        second factor is zero.
    """

    rank: int = 16
    n_steps: int = 50

    def _model(self, images: Images, seed: int) -> nn.Sequential:
        model = super()._model(images, seed)
        for place in range(0, 2 * N_HIDDEN, 2):
            model[place] = _Adapted(model[place].requires_grad_(False), self.rank)
        trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=RATE)
        for step in range(self.n_steps):
            inputs, labels = _drawn(images, TRAINING_BATCH, 10_000 * (seed + 1) + step)
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        return model


class _Adapted(nn.Module):
    """As PEFT's LoRA with its defaults: a scale of two, the first factor as of a linear layer, the second zero."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of both."""
        return self.base(x) + 2 * self.up(self.down(x))


def _drawn(images: Images, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, classes = images.draw(n, seed)
    return images.normalize(pixels), torch.from_numpy(classes)


WITHHELD_ROWS: dict[str, Experiment] = {
    **{
        f"{b}x200-{activation}-without-biases": WithoutBiases(b, 200, activation)
        for activation in ACTIVATIONS
        for b in (16, 32, 64)
    },
    **{f"8x200-adapters-rank{rank}": OfAdapters(8, 200, rank=rank) for rank in (8, 9, 16, 32)},
    **{f"8x200-adapters-rank16-steps{n}": OfAdapters(8, 200, n_steps=n) for n in (1, 10, 300)},
    "8x200-gelu-adapters-rank16": OfAdapters(8, 200, "gelu"),
    "24x200-adapters-rank32": OfAdapters(24, 200, rank=32),
}
"""Batch and width; the activation where it is not ReLU; ranks of adapters, and steps that trained them (50)."""

"""Tokens of a transformer, as they enter the first block's perceptron."""

from __future__ import annotations

import codecs
import contextlib
import io
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.metrics import are_wrong, match_batches
from sparsedl_fl.reproduce.data import load_images
from sparsedl_fl.reproduce.experiments import Attack, Score
from sparsedl_fl.reproduce.methods import Problem, fed_to
from sparsedl_fl.simulation import client_gradient
from sparsedl_fl.transformers import text_transformer, vision_transformer

__all__ = ["TOKEN_ROWS", "TokenBatch", "texts"]

LAYER = "blocks.0.fc1"
TOLERANCE = 1e-3
"""Relative error up to which a token counts as right."""


@dataclass(frozen=True)
class TokenBatch(Attack):
    """Every token of some pictures, or of a text; ``batch_size`` counts tokens, ``width`` is that of the layer.

    Attributes
    ----------
    n_samples : int
        Pictures or texts in the batch.
    n_steps : int
        Steps of training (AdamW, rate 1e-3) before the gradient is taken.
    network : str
        "vision" or "text".
    """

    metrics: ClassVar[tuple[str, ...]] = ("error", "share")
    n_samples: int = 1
    n_steps: int = 0
    network: str = "vision"

    def problem(self, seed: int, data: str | None) -> tuple[Problem, Score]:
        """Train the network, and draw the batch."""
        is_vision = self.network == "vision"
        model = vision_transformer(random_state=seed) if is_vision else text_transformer(random_state=seed)

        def draw(n: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
            return pictures(n, number, data) if is_vision else texts(n, number)

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(self.n_steps):
            inputs, labels = draw(32, 10_000 * (seed + 1) + step)
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        inputs, labels = draw(self.n_samples, seed)
        sent = LayerGradient.from_model(model, client_gradient(model, inputs, labels), LAYER, example=inputs[:1])
        return Problem(fed_to(model, LAYER, inputs).flatten(0, 1), sent, model, labels), lambda recovered: {}

    def measure(self, problem: Problem, score: Score, inverter: GradientInverter) -> dict[str, Any]:
        """Compare with the truth; exact means that all tokens are within `TOLERANCE` of theirs."""
        true = problem.truth.double().numpy()
        match = match_batches(true, inverter.inputs_)
        errors = np.sqrt(match.squared_errors / np.mean(true**2, axis=1))
        sure = inverter.recovered_
        wrong = are_wrong(true, inverter.inputs_[sure], inverter.uncertainty_[sure]) if sure.any() else np.zeros(0)
        return {
            "exact": bool((errors < TOLERANCE).all()),
            "share": float(np.mean(errors < TOLERANCE)),
            "wrong": int(wrong.sum()),
            "error": [float(f"{error:.2g}") for error in errors],
        }


def pictures(n: int, seed: int, data: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures of CIFAR-10 of shape (n, 3, 32, 32), and their classes."""
    images = load_images("cifar10", data)
    pixels, classes = images.draw(n, seed)
    inputs = images.normalize(pixels).reshape(pixels.shape).permute(0, 3, 1, 2).contiguous()
    return inputs, torch.from_numpy(classes)


def texts(n: int, seed: int, length: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pieces of the Zen of Python, which every installation has, and the next character at each place."""
    with contextlib.redirect_stdout(io.StringIO()):  # the module prints itself
        import this
    text = np.frombuffer(codecs.decode(this.s, "rot13").encode("ascii"), dtype=np.uint8).astype(np.int64)
    starts = np.random.default_rng(seed).choice(len(text) - length - 1, n, replace=False)
    pieces = torch.from_numpy(np.stack([text[start : start + length + 1] for start in starts]))
    return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


TOKEN_ROWS = {
    f"{network}-{n}-{steps}": TokenBatch(n * per, 768, n_samples=n, n_steps=steps, network=network)
    for network, per in (("vision", 65), ("text", 64))
    for n in (1, 2)
    for steps in (0, 200)
}
"""Of the table of tokens: network, pictures or texts, steps of training."""

"""Tokens of a transformer, as they enter the first block's perceptron, and pixels from its attention."""

from __future__ import annotations

import codecs
import contextlib
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from paper.any_activation import COARSE
from paper.data import load_images
from paper.experiments import Attack, Experiment, Score
from paper.methods import Budget, Problem, fed_to
from paper.models.transformers import text_transformer, vision_transformer
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.metrics import are_wrong, match_batches, psnr
from sparsedl_fl.propagate.patches import PatchEmbedding, recover_patches
from sparsedl_fl.propagate.token_fitting import fit_to_row_spaces
from sparsedl_fl.simulation import client_gradient

__all__ = ["TOKEN_ROWS", "PixelBatch", "TokenBatch", "texts"]

ATTENTION, LAYER = "blocks.0.qkv", "blocks.0.fc1"
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

        _train(model, draw, self.n_steps, seed)
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


@dataclass(frozen=True)
class PixelBatch(Experiment):
    """The pixels of a picture from the gradient of a transformer's first attention; ``batch_size`` counts patches.

    Attributes
    ----------
    n_steps : int
        Steps of training (AdamW, rate 1e-3) before the gradient is taken.
    is_fitted : bool
        Whether the picture is then fitted to the gradients of the first attention and perceptron at once, which gives
        its tokens too, as they enter the perceptron.
    """

    metrics: ClassVar[tuple[str, ...]] = ("psnr", "error_ratio", "error", "share")
    n_steps: int = 0
    is_fitted: bool = False

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Recover the picture of a seed; exact is a mean PSNR of its patches above `COARSE`, and certified none is.

        Of one that is fitted all tokens have to be within `TOLERANCE` of theirs besides.
        """
        model = vision_transformer(random_state=seed)
        _train(model, lambda n, number: pictures(n, number, data), self.n_steps, seed)
        inputs, labels = pictures(1, seed, data)
        gradients = client_gradient(model, inputs, labels)
        start = time.perf_counter()
        embedding = PatchEmbedding.of(model.patches, model.positions, model.blocks[0].norm1)
        found = recover_patches(gradients[f"{ATTENTION}.weight"], embedding)
        picture, deviations, tokens = found.picture(), found.errors, {}
        if self.is_fitted:
            fitted = fit_to_row_spaces(model, gradients, picture[None], [ATTENTION, LAYER])
            picture, deviations = fitted.values[0], _patches(fitted.errors, embedding.patch_side)
            deviations = np.sqrt(np.mean(deviations**2, axis=1))
            true, recovered = fed_to(model, LAYER, inputs)[0].double().numpy(), fitted.fed[LAYER]
            off = np.linalg.norm(recovered - true, axis=1) / np.linalg.norm(true, axis=1)
            tokens = {"error": [float(f"{error:.2g}") for error in off], "share": float(np.mean(off < TOLERANCE))}
        seconds, side = round(time.perf_counter() - start, 3), embedding.patch_side
        images = load_images("cifar10", data)

        def pixels(picture: np.ndarray) -> np.ndarray:
            seen = images.denormalize(picture.transpose(1, 2, 0).reshape(1, -1)).reshape(32, 32, 3)
            return _patches(seen.transpose(2, 0, 1)[None], side)

        sent = inputs.double().numpy()
        quality = psnr(pixels(sent[0]), pixels(picture), data_range=1.0)
        ratios = np.sqrt(np.mean((_patches(picture[None], side) - _patches(sent, side)) ** 2, axis=1)) / deviations
        return {
            "exact": bool(quality.mean() > COARSE and tokens.get("share", 1.0) == 1.0),
            "psnr": [round(float(value), 2) for value in quality],
            "error_ratio": [float(f"{ratio:.3g}") for ratio in ratios],
            **tokens,
            "certified": 0,
            "starts": 0,
            "seconds": seconds,
            "status": f"expected errors up to {deviations.max():.1e}",
        }


def _patches(pictures: np.ndarray, side: int) -> np.ndarray:
    """Return the patches of one picture of shape (1, channels, height, width), a row each."""
    return functional.unfold(torch.from_numpy(pictures), side, stride=side)[0].T.numpy()


def _train(
    model: nn.Module, draw: Callable[[int, int], tuple[torch.Tensor, torch.Tensor]], n_steps: int, seed: int
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(n_steps):
        inputs, labels = draw(32, 10_000 * (seed + 1) + step)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


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
TOKEN_ROWS |= {
    f"{name}-1-{steps}": PixelBatch(64, 576, n_steps=steps, is_fitted=name == "fitted")
    for name in ("pixels", "fitted")
    for steps in (0, 200)
}
"""Of the table of tokens: network, pictures or texts, steps of training; a picture's pixels; pixels and tokens."""

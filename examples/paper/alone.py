"""One layer's gradient alone: what the rest of the network says of inputs and labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from paper.any_activation import ActivationBatch
from paper.data import load_images
from paper.experiments import Attack, Score
from paper.methods import Problem
from paper.models.vision import resnet, vgg
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import client_gradient

__all__ = ["HEAD_ROWS", "REST_ROWS", "HeadBatch", "RestBatch"]


def squared_error(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error to labels as unit vectors."""
    return (outputs - functional.one_hot(labels, outputs.shape[1])).square().mean()


CLIENT_LOSSES = {"cross_entropy": functional.cross_entropy, "mse": squared_error}


class Labelled(Attack):
    """An attack that finds labels too."""

    def measure(self, problem: Problem, score: Score, inverter: GradientInverter) -> dict[str, Any]:
        """Return the score of the inputs, and the share of the batch whose label is right."""
        true = problem.truth.double().flatten(1).numpy()
        squares = np.sum(inverter.inputs_**2, axis=1)[:, None] - 2 * inverter.inputs_ @ true.T + np.sum(true**2, axis=1)
        nearest, found = squares.argmin(axis=1), inverter.labels_ >= 0
        is_right = found & (inverter.labels_ == problem.labels.numpy()[nearest])
        share = len(np.unique(nearest[is_right])) / len(true)
        return {**score(inverter.inputs_), "labels": share, "wrong_labels": int(np.sum(found & ~is_right))}


@dataclass(frozen=True)
class RestBatch(ActivationBatch, Labelled):
    """Images behind a fully connected network of which the server uses one layer's gradient, and nothing else.

    Attributes
    ----------
    n_classes : int
        Outputs of the network: labels beyond CIFAR-10's ten are drawn at random within each class.
    loss : str
        Of the client, "cross_entropy" or "mse".
    """

    metrics: ClassVar[tuple[str, ...]] = ("psnr", "labels")
    n_classes: int = 10
    loss: str = "cross_entropy"

    def problem(self, seed: int, data: str | None) -> tuple[Problem, Score]:
        """Draw images, network and labels."""
        images = load_images(self.dataset, data)
        pixels, classes = images.draw(self.batch_size, seed)
        inputs = images.normalize(pixels)
        labels = torch.from_numpy(_spread(classes, self.n_classes, seed))
        model = self.network(inputs.shape[1], self.n_classes, seed)
        gradients = client_gradient(model, inputs, labels, CLIENT_LOSSES[self.loss])
        given = LayerGradient.from_model(model, gradients, loss=self.loss)
        sent = replace(given, next_weight_grad=None, next_weight=None, behind=())
        problem = Problem(inputs, sent, model, labels, pixels.shape[1:])
        return problem, self._score(images, pixels.reshape(len(pixels), -1), inputs)


@dataclass(frozen=True)
class HeadBatch(Labelled):
    """Features of real images in front of a classifier's last layer, whose gradient is all that the server uses.

    Attributes
    ----------
    network : str
        "resnet" or "vgg", a small one of each with average-pooled features.
    n_steps : int
        Steps of training before the gradient is taken.
    few_classes : bool
        Whether labels are drawn from a tenth of the classes, so that most come several times.
    """

    metrics: ClassVar[tuple[str, ...]] = ("error", "labels")
    network: str = "resnet"
    n_steps: int = 0
    few_classes: bool = False

    def problem(self, seed: int, data: str | None) -> tuple[Problem, Score]:
        """Draw images, network and labels; ``width`` is the number of classes."""
        images, K = load_images("cifar10", data), self.width
        n_features = max(128, 2 * self.batch_size)
        if self.network == "resnet":
            model: nn.Module = resnet(n_features=n_features, n_classes=K, random_state=seed)
        else:
            model = _Pooled(
                vgg(((32,), (64,), (n_features,)), width=1, random_state=seed).features, n_features, K, seed
            )

        def draw(n: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
            pixels, classes = images.draw(n, number)
            pictures = images.normalize(pixels).reshape(pixels.shape).permute(0, 3, 1, 2).contiguous()
            few = K // 10 if self.few_classes and K > 10 else K
            return pictures, torch.from_numpy(_spread(classes, few, number))

        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(self.n_steps):
            pictures, labels = draw(64, 10_000 * (seed + 1) + step)
            optimizer.zero_grad()
            functional.cross_entropy(model(pictures), labels).backward()
            optimizer.step()
        pictures, labels = draw(self.batch_size, seed)
        with torch.no_grad():
            features = model.train().extract(pictures)  # as the client's: what mixes in front of the head is no matter
        gradients = client_gradient(model.head, features, labels)
        sent = LayerGradient.from_model(model.head, gradients)
        true = features.double().numpy()

        def score(recovered: np.ndarray) -> dict[str, Any]:
            order = match_batches(true, recovered).order
            errors = np.linalg.norm(true - np.where(order[:, None] >= 0, recovered[order], 0.0), axis=1)
            errors = np.where(order >= 0, errors / np.linalg.norm(true, axis=1), 1.0)
            exact = bool(np.median(errors) < 1e-4)
            return {"exact": exact, "error": [float(f"{error:.3g}") for error in errors]}

        return Problem(features, sent, model, labels), score


class _Pooled(nn.Module):
    """Convolutions, an average over the picture, and a linear layer."""

    def __init__(self, features: nn.Module, n_features: int, n_classes: int, seed: int) -> None:
        super().__init__()
        self.features = features
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.head = nn.Linear(n_features, n_classes)

    def extract(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.features(pictures).mean(dim=(2, 3))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.extract(pictures))


def _spread(classes: np.ndarray, n_classes: int, seed: int) -> np.ndarray:
    """Return labels of ``n_classes``, drawn at random within CIFAR-10's ten."""
    if n_classes <= 10:
        return classes % n_classes
    within = np.random.default_rng(seed).integers(n_classes // 10, size=len(classes))
    return classes * (n_classes // 10) + within


SMOOTH = ("gelu", "silu", "elu", "softplus", "tanh", "sigmoid", "mish", "selu", "celu", "gelu-tanh")

REST_SETTINGS: dict[str, dict[str, Any]] = {
    "1-hidden": {"n_hidden": 1},
    "2-hidden": {"n_hidden": 2},
    "10-hidden": {"n_hidden": 10},
    "100-classes": {"n_classes": 100},
    "mse": {"loss": "mse"},
}
"""What else may lie behind the layer."""

REST_ROWS = {
    f"{name}-{b}x{m}": RestBatch(b, m, activation=name)
    for b, m in ((20, 200), (40, 200), (50, 200), (80, 200), (95, 200), (100, 1000), (200, 1000))
    for name in SMOOTH
} | {f"gelu-20x200-{name}": RestBatch(20, 200, activation="gelu", **given) for name, given in REST_SETTINGS.items()}
"""Of the table of one layer alone."""

HEAD_ROWS = {
    f"{network}-{b}x{K}-{n_steps}{'-few' if few else ''}": HeadBatch(
        b, K, network=network, n_steps=n_steps, few_classes=few
    )
    for b, K in ((4, 10), (16, 100), (40, 100), (64, 1000), (200, 1000), (400, 1000))
    for network in ("resnet", "vgg")
    for n_steps in (0, 100)
    for few in (False, True)
}
"""Of the table of heads: inputs, classes, steps of training; "few" draws from a tenth of the classes."""

"""Data as they are: pixels that are not centred, features behind convolutions, one-hot rows, networks in training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from paper.data import load_adult, load_images
from paper.experiments import Attack, Score
from paper.methods import Problem, fed_to
from paper.models.vision import vgg
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.metrics import are_wrong, match_batches
from sparsedl_fl.simulation import client_gradient, fully_connected

__all__ = ["CROWDED_ROWS", "RawImages", "RawRows"]

PIXELS = {"unit": (0.0, 1.0), "symmetric": (0.5, 0.5)}
"""Mean and deviation by which pixels in [0, 1] are shifted and scaled: not at all, or to [-1, 1]."""

Draw = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]


class LeNet(nn.Module):
    """The network of the tutorials of PyTorch and Flower, as written there: ReLU is a function call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of pictures of shape (n, 3, 32, 32)."""
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


@dataclass(frozen=True)
class RawBatch(Attack):
    """A batch is exact when all of it is certified, and right within ten times the expected errors or 1e-3.

    Trained networks have inputs whose loss is zero in single precision, which leave nothing in the gradient: `silent`.
    A batch with one of them is not exact; it is ``audible`` when all others came back so.

    Attributes
    ----------
    n_steps : int
        Steps of training before the gradient is taken.
    """

    metrics: ClassVar[tuple[str, ...]] = ("error", "audible")
    n_steps: int = 0

    @abstractmethod
    def setting(self, seed: int, data: str | None) -> tuple[nn.Module, Draw, str]:
        """Return an untrained network, what draws inputs and labels, and the name of the layer attacked."""

    @property
    def training(self) -> dict[str, float]:
        """Rate, momentum and batch size of the training."""
        return {"lr": 0.05, "momentum": 0.0, "batch": 64}

    def problem(self, seed: int, data: str | None) -> tuple[Problem, Score]:
        """Train the network, and draw a batch that it was not trained on in order."""
        model, draw, layer = self._trained(seed, data)
        inputs, labels = draw(self.batch_size, seed)
        sent = LayerGradient.from_model(model, client_gradient(model, inputs, labels), layer, example=inputs[:2])
        is_silent = silent(model, layer, inputs, labels, sent.weight_grad)
        return Problem(fed_to(model, layer, inputs), sent, model, labels), lambda recovered: {"silent": is_silent}

    def measure(self, problem: Problem, score: Score, inverter: GradientInverter) -> dict[str, Any]:
        """Compare with the truth; ``error`` is the relative one of each input, infinite where it did not come back."""
        true = problem.truth.double().numpy()
        order = match_batches(true, inverter.inputs_).order
        errors = np.sqrt(np.mean((true - inverter.inputs_[order]) ** 2, axis=1))
        sizes = np.sqrt(np.mean(true**2, axis=1))
        allowed = np.maximum(10 * inverter.uncertainty_[order], 1e-3 * sizes)
        is_right = (order >= 0) & (errors <= allowed) & inverter.recovered_[order]
        relative = np.where(order >= 0, errors / np.maximum(sizes, np.finfo(float).tiny), np.inf)
        certified = inverter.recovered_
        is_wrong = are_wrong(true, inverter.inputs_[certified], inverter.uncertainty_[certified])
        is_silent = score(inverter.inputs_)["silent"]
        return {
            "exact": bool(is_right.all() and inverter.batch_size_ == self.batch_size),
            "audible": float((is_right | is_silent).all() and inverter.batch_size_ <= self.batch_size),
            "silent": int(is_silent.sum()),
            "wrong": int(is_wrong.sum()),
            "error": [float(f"{error:.2g}") for error in relative],
        }

    def _trained(self, seed: int, data: str | None) -> tuple[nn.Module, Draw, str]:
        return _train(self._without_size(), seed, data)

    def _without_size(self) -> RawBatch:
        """Return the same for another batch size: one training serves them all."""
        return type(self)(**{**self.__dict__, "batch_size": 0})


def silent(
    model: nn.Module, layer: str, inputs: torch.Tensor, labels: torch.Tensor, weight_grad: np.ndarray
) -> np.ndarray:
    """Return which inputs leave less in a layer's gradient than its rounding is large, by spectral norms, shape (b,).

    The rounding is what the gradient that was sent differs from the same in double precision.
    """
    seen = {}
    exact = deepcopy(model).double()
    module = exact.get_submodule(layer)
    hook = module.register_forward_hook(lambda _, given, made: seen.update(x=given[0].detach(), z=made))
    loss = cross_entropy(exact(inputs.double()), labels)
    hook.remove()
    (sent_back,) = torch.autograd.grad(loss, seen["z"])
    rounding = np.linalg.norm(weight_grad - (sent_back.T @ seen["x"]).numpy(), 2)
    return (sent_back.norm(dim=1) * seen["x"].norm(dim=1)).numpy() < rounding


@lru_cache(maxsize=16)
def _train(experiment: RawBatch, seed: int, data: str | None) -> tuple[nn.Module, Draw, str]:
    model, draw, layer = experiment.setting(seed, data)
    settings = experiment.training
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"], momentum=settings["momentum"])
    for step in range(experiment.n_steps):
        inputs, labels = draw(int(settings["batch"]), 10_000 * (seed + 1) + step)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model, draw, layer


@dataclass(frozen=True)
class RawImages(RawBatch):
    """Pictures whose pixels are not centred.

    Attributes
    ----------
    dataset : str
        Name in `DATASETS`.
    pixels : str
        Name in `PIXELS`.
    network : str
        "mlp" of three hidden layers, "lenet", or "vgg", a small one.
    layer : str
        The layer attacked.
    """

    dataset: str = "cifar10"
    pixels: str = "unit"
    network: str = "mlp"
    layer: str = "0"

    @property
    def training(self) -> dict[str, float]:
        """Rate, momentum and batch size: the tutorials' for the LeNet."""
        if self.network == "mlp":
            return super().training
        return {"lr": 0.01, "momentum": 0.9, "batch": 32}

    def setting(self, seed: int, data: str | None) -> tuple[nn.Module, Draw, str]:
        """Return the network and the pictures."""
        images = load_images(self.dataset, data)
        mean, deviation = PIXELS[self.pixels]

        def draw(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
            pixels, classes = images.draw(n, seed)
            inputs = torch.tensor((pixels - mean) / deviation, dtype=torch.float32)
            inputs = inputs.flatten(1) if self.network == "mlp" else inputs.permute(0, 3, 1, 2).contiguous()
            return inputs, torch.from_numpy(classes)

        n_classes = images.dataset.n_classes
        if self.network == "mlp":
            n_inputs = images.dataset.side**2 * len(images.dataset.mean)
            return fully_connected(n_inputs, width=self.width, n_classes=n_classes, random_state=seed), draw, self.layer
        if self.network == "vgg":
            channels = ((16, 16), (32, 32), (64, 64))
            return vgg(channels, width=self.width, n_classes=n_classes, random_state=seed), draw, self.layer
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return LeNet(), draw, self.layer


@dataclass(frozen=True)
class RawRows(RawBatch):
    """Census rows (Adult), one-hot categories and standardised numbers; or scikit-learn's breast cancers, 30 numbers.

    Attributes
    ----------
    dataset : str
        "adult" or "cancer".
    """

    dataset: str = "adult"

    def setting(self, seed: int, data: str | None) -> tuple[nn.Module, Draw, str]:
        """Return the network and the rows."""
        encoded, income = _encoded_adult(data) if self.dataset == "adult" else _cancers()

        def draw(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
            index = np.random.default_rng(seed).choice(len(encoded), n, replace=False)
            return torch.from_numpy(encoded[index]), torch.from_numpy(income[index])

        return fully_connected(encoded.shape[1], width=self.width, n_classes=2, random_state=seed), draw, "0"


@lru_cache(maxsize=1)
def _cancers() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import StandardScaler

    numbers, kinds = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(numbers).astype(np.float32), kinds


@lru_cache(maxsize=1)
def _encoded_adult(data: str | None) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    adult, income = load_adult(data)
    numbers = adult.select_dtypes("number").columns.tolist()
    categories = [name for name in adult if name not in numbers]
    encoder = ColumnTransformer(
        [("numbers", StandardScaler(), numbers), ("categories", OneHotEncoder(), categories)], sparse_threshold=0
    )
    return encoder.fit_transform(adult).astype(np.float32), income


CROWDED_ROWS = {
    f"{dataset}-{b}x{m}-{n_steps}": RawRows(b, m, n_steps, dataset)
    for dataset, b, m in (
        *(("adult", 64, 400), ("adult", 128, 400)),
        *(("cancer", 40, 200), ("cancer", 64, 200), ("cancer", 128, 400)),
    )
    for n_steps in (0, 50)
}
"""Rows of the table `crowded`."""

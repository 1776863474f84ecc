"""One row of a table: how a batch, a network and a client are drawn from a seed, and what is measured."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from paper.clients import Client, FedSGD
from paper.data import Images, encoder_of, load_adult, load_images
from paper.methods import METHODS, Budget, Problem
from paper.models.vision import vgg
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.metrics import match_batches, psnr
from sparsedl_fl.simulation import client_gradient, fully_connected
from sparsedl_fl.tabular import decode_table

__all__ = ["Experiment", "FailureTrials", "FeatureBatch", "ImageBatch", "LayerBatch", "TableBatch", "train"]

Score = Callable[[np.ndarray], dict[str, Any]]

TRAINING_BATCH, TRAINING_RATE = 64, 0.05


@dataclass(frozen=True)
class Experiment(ABC):
    """How one batch is made from a seed, and attacked.

    Attributes
    ----------
    batch_size, width : int
        ``b`` and ``m``.
    """

    metrics: ClassVar[tuple[str, ...]] = ("psnr",)
    """What a record holds beside the usual, in the order of the table."""

    batch_size: int
    width: int

    @property
    def name(self) -> str:
        """Identifies the experiment in the records: its kind and the fields that differ from their defaults."""
        given = [field for field in fields(self) if getattr(self, field.name) != field.default]
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in given)
        return f"{type(self).__name__}({values})"

    @abstractmethod
    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Return what is measured for a seed: ``exact``, ``seconds``, the metrics, and more."""


class Attack(Experiment):
    """An experiment that recovers a batch from a gradient."""

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Attack the batch of a seed."""
        problem, score = self.problem(seed, data)
        start = time.perf_counter()
        inverter = GradientInverter(
            METHODS[method].directions(problem, budget),
            batch_size=None if problem.reveals_batch_size else self.batch_size,
            random_state=seed,
        )
        with warnings.catch_warnings():
            # The record says what was not recovered, and whether the batch size was right.
            warnings.simplefilter("ignore", UserWarning)
            try:
                inverter.fit(problem.layer_gradient)
            except ValueError as refusal:
                seconds = round(time.perf_counter() - start, 3)
                status = f"refused: {refusal}"
                return {"exact": False, "certified": 0, "starts": 0, "seconds": seconds, "status": status}
        seconds = time.perf_counter() - start
        return {
            **self.measure(problem, score, inverter),
            "certified": int(inverter.recovered_.sum()),
            "batch_size_found": inverter.batch_size_,
            "matching": inverter.sparsity_matching_,
            "residual": inverter.relative_residual_,
            "starts": inverter.n_starts_,
            "successes": inverter.n_successes_,
            "seconds": round(seconds, 3),
            "status": inverter.status_,
        }

    def measure(self, problem: Problem, score: Score, inverter: GradientInverter) -> dict[str, Any]:
        """Return ``exact`` and the metrics of a fitted inverter: the score of its inputs, unless a kind says more."""
        return score(inverter.inputs_)

    @abstractmethod
    def problem(self, seed: int, data: str | None) -> tuple[Problem, Score]:
        """Return what the server has, and a function that scores recovered inputs."""


@dataclass(frozen=True)
class ImageBatch(Attack):
    """Images behind a fully connected network.

    Attributes
    ----------
    dataset : str
        Name in `DATASETS`.
    n_hidden : int
        Hidden layers.
    layer : int
        The one attacked, from 0.
    client : Client
        What it sends.
    one_class : bool
        Whether all images of a batch are of one class.
    n_steps : int
        Steps of training before the gradient is taken.
    exact_above : float
        Mean PSNR in dB above which a batch counts as exact.
    """

    dataset: str = "cifar10"
    n_hidden: int = 3
    layer: int = 0
    client: Client = FedSGD()
    one_class: bool = False
    n_steps: int = 0
    exact_above: float = 90.0

    def problem(self, seed: int, data: str | None) -> tuple[Problem, Score]:
        """Draw images, network and client."""
        images = load_images(self.dataset, data)
        pixels, classes = images.draw(self.batch_size, seed, self.one_class)
        inputs, labels = images.normalize(pixels), torch.from_numpy(classes)
        model = self.network(inputs.shape[1], images.dataset.n_classes, seed)
        train(model, images.normalize, images, self.n_steps, seed)
        sent = self.client.send(model, inputs, labels, self.layer, seed)
        with torch.no_grad():
            truth = model[: 2 * self.layer](inputs) if self.layer else inputs
        problem = Problem(truth, sent, model, labels, pixels.shape[1:], self.client.reveals_batch_size)
        return problem, self._score(images, pixels.reshape(len(pixels), -1), truth)

    def network(self, n_inputs: int, n_classes: int, seed: int) -> nn.Sequential:
        """Return the network of a seed."""
        return fully_connected(
            n_inputs, width=self.width, n_hidden=self.n_hidden, n_classes=n_classes, random_state=seed
        )

    def _score(self, images: Images, pixels: np.ndarray, truth: torch.Tensor) -> Score:
        def score(recovered: np.ndarray) -> dict[str, Any]:
            quality = psnr(pixels, images.denormalize(recovered))
            exact = bool(quality.mean() > self.exact_above)
            return {"exact": exact, "psnr": [round(float(value), 2) for value in quality]}

        return score


def train(
    model: nn.Module, feed: Callable[[np.ndarray], torch.Tensor], images: Images, n_steps: int, seed: int
) -> None:
    """Train for some steps of plain gradient descent on random batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=TRAINING_RATE)
    for step in range(n_steps):
        pixels, classes = images.draw(TRAINING_BATCH, 10_000 * (seed + 1) + step)
        optimizer.zero_grad()
        cross_entropy(model(feed(pixels)), torch.from_numpy(classes)).backward()
        optimizer.step()
    optimizer.zero_grad()


@dataclass(frozen=True)
class LayerBatch(ImageBatch):
    """The same, scored by the error of the attacked layer's inputs: exact below a mean of 1e-4."""

    metrics: ClassVar[tuple[str, ...]] = ("mae",)

    def _score(self, images: Images, pixels: np.ndarray, truth: torch.Tensor) -> Score:
        true = truth.double().numpy()

        def score(recovered: np.ndarray) -> dict[str, Any]:
            order = match_batches(true, recovered).order
            errors = np.where(order >= 0, np.abs(true - recovered[order]).mean(axis=1), np.inf)
            return {"exact": bool(errors.mean() < 1e-4), "mae": [float(f"{error:.3g}") for error in errors]}

        return score


@dataclass(frozen=True)
class TableBatch(Attack):
    """Census rows (Adult): scaled numbers and one-hot categories behind a fully connected network."""

    metrics: ClassVar[tuple[str, ...]] = ("categories", "mae")
    n_hidden: int = 3

    def problem(self, seed: int, data: str | None) -> tuple[Problem, Score]:
        """Draw rows and network."""
        adult, income = load_adult(data)
        numbers = adult.select_dtypes("number").columns.tolist()
        categories = [name for name in adult if name not in numbers]
        encoder = encoder_of(adult)
        rows = adult.iloc[np.random.default_rng(seed).choice(len(adult), self.batch_size, replace=False)]
        inputs = torch.tensor(encoder.transform(rows), dtype=torch.float32)
        labels = torch.from_numpy(income[rows.index])
        model = fully_connected(
            inputs.shape[1], width=self.width, n_hidden=self.n_hidden, n_classes=2, random_state=seed
        )
        sent = LayerGradient.from_model(model, client_gradient(model, inputs, labels))

        def score(recovered: np.ndarray) -> dict[str, Any]:
            order = match_batches(inputs, recovered).order
            # A row that did not come back is decoded as one of zeros, which is the mean of the table.
            matched = np.where(order[:, None] >= 0, recovered[order], 0.0)
            table = decode_table(encoder, matched)
            right = np.mean([table[name] == rows[name].to_numpy() for name in categories])
            error = np.mean([np.abs(table[name].astype(float) - rows[name].to_numpy()) for name in numbers])
            return {"exact": bool(right == 1), "categories": float(right), "mae": float(f"{error:.3g}")}

        return Problem(inputs, sent, model, labels), score


@dataclass(frozen=True)
class FeatureBatch(Attack):
    """Features in front of the first fully connected layer of VGG16 with random weights."""

    metrics: ClassVar[tuple[str, ...]] = ("similarity",)
    dataset: str = "imagenet_224"

    def problem(self, seed: int, data: str | None) -> tuple[Problem, Score]:
        """Draw images and weights; the gradient is that of the fully connected part."""
        images = load_images(self.dataset, data)
        pixels, classes = images.draw(self.batch_size, seed)
        inputs = images.normalize(pixels).reshape(pixels.shape).permute(0, 3, 1, 2)
        model = vgg(width=self.width, random_state=seed)
        with torch.no_grad():
            truth = torch.cat([model.extract(part) for part in inputs.split(4)])
        labels, head = torch.from_numpy(classes), model.classifier
        sent = LayerGradient.from_model(head, client_gradient(head, truth, labels))
        true = truth.double().numpy()

        def score(recovered: np.ndarray) -> dict[str, Any]:
            order = match_batches(true, recovered).order
            products = np.sum(true * recovered[order], axis=1)
            cosines = products / np.linalg.norm(true, axis=1) / np.linalg.norm(recovered[order], axis=1)
            cosines = np.where(order >= 0, cosines, 0.0)
            return {"exact": bool(cosines.min() > 0.999), "similarity": [round(float(value), 6) for value in cosines]}

        return Problem(truth, sent, head, labels), score


@dataclass(frozen=True)
class FailureTrials(Experiment):
    """How often the zeros of a random network's gradient leave a sample undetermined, whatever the search.

    A column is out of reach of exhaustive sampling exactly when its zero rows have no full rank, so that no submatrix
    need be enumerated.
    """

    metrics: ClassVar[tuple[str, ...]] = ("failures",)
    n_trials: int = 100
    dataset: str = "cifar10"

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Draw networks and batches; count those with a column that its zeros do not determine."""
        images, start, failures = load_images(self.dataset, data), time.perf_counter(), 0
        for trial in range(self.n_trials):
            pixels, classes = images.draw(self.batch_size, seed * self.n_trials + trial)
            inputs, labels = images.normalize(pixels).double(), torch.from_numpy(classes)
            model = fully_connected(inputs.shape[1], width=self.width, random_state=seed * self.n_trials + trial)
            hidden = torch.relu(model[0].double()(inputs)).requires_grad_()
            gradient = torch.autograd.grad(cross_entropy(model[2:].double()(hidden), labels), hidden)[0]
            D = (gradient * (hidden > 0)).T.numpy()
            failures += not all(self._determined(D, column) for column in range(self.batch_size))
        seconds = round(time.perf_counter() - start, 3)
        return {"exact": failures == 0, "failures": failures / self.n_trials, "starts": 0, "seconds": seconds}

    @staticmethod
    def _determined(D: np.ndarray, column: int) -> bool:
        others = np.delete(D[D[:, column] == 0], column, axis=1)
        return len(others) >= others.shape[1] and np.linalg.matrix_rank(others) == others.shape[1]

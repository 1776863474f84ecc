"""What a problem is: a batch, a network and a client from a seed; what the server gets, and how answers are judged."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from paper.clients import Client, FedSGD
from sparsedl import SparseDictionaryRecovery
from sparsedl.datasets import make_sparse_dictionary
from sparsedl.metrics import match_components
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.demo import natural_patches
from sparsedl_fl.metrics import are_mislabelled, are_wrong, match_batches
from sparsedl_fl.simulation import fedavg_update, fully_connected

__all__ = [
    "Batch",
    "Dictionary",
    "Kind",
    "OneStep",
    "Photographs",
    "Problem",
    "Rows",
]

EXACT = 1e-3
"""Relative error of a sample below which it counts as exact: far from rounding as from a mixture of two samples."""


@dataclass(frozen=True)
class Problem:
    """What the server has of one layer, and what only the yardstick knows.

    Attributes
    ----------
    given : LayerGradient
        What the server sees.
    truth : torch.Tensor of shape (b, n)
        True inputs of the layer.
    labels : torch.Tensor of shape (b,)
        True labels.
    told : dict
        Parameters of the inverter that its user would give.
    """

    given: LayerGradient
    truth: torch.Tensor
    labels: torch.Tensor
    told: dict[str, Any] = field(default_factory=dict)


class Kind(ABC):
    """A kind of problem; an instance is one line of the table."""

    @abstractmethod
    def run(self, seed: int) -> dict[str, Any]:
        """Return what came back for a seed: ``exact``, ``certified`` (shares), ``wrong``, ``starts`` and ``status``.

        Also CPU ``seconds``, where making the problem is not to count.
        """


@dataclass(frozen=True)
class Batch(Kind):
    """A batch that `GradientInverter` is to recover.

    Attributes
    ----------
    problem : callable
        Draws the problem of a seed.
    directions : callable or None
        Makes the strategy, None for the default.
    exact : float
        Relative error below which a sample counts.
    """

    problem: Callable[[int], Problem]
    directions: Callable[[], Any] | None = None
    exact: float = EXACT

    def run(self, seed: int) -> dict[str, Any]:
        """Attack the batch of a seed."""
        problem = self.problem(seed)
        directions = None if self.directions is None else self.directions()
        inverter, start = GradientInverter(directions, random_state=seed, **problem.told), time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                inverter.fit(problem.given)
            except ValueError as refusal:
                return {"exact": 0.0, "certified": 0.0, "wrong": 0, "starts": 0, "status": f"refused: {refusal}"}
        seconds = time.process_time() - start
        true, found = problem.truth.double().numpy(), inverter.recovered_
        match = match_batches(true, inverter.inputs_)
        errors = np.sqrt(match.squared_errors / np.maximum(np.mean(true**2, axis=1), np.finfo(float).tiny))
        n_wrong = are_wrong(true, inverter.inputs_[found], inverter.uncertainty_[found]).sum() if found.any() else 0
        mislabelled = are_mislabelled(true, problem.labels.numpy(), inverter.inputs_, inverter.labels_).sum()
        return {
            "exact": float(np.mean((match.order >= 0) & (errors < self.exact))),
            "certified": float(found.sum() / len(true)),
            "wrong": int(n_wrong) + int(mislabelled),
            "starts": int(inverter.n_starts_),
            "seconds": round(seconds, 2),
            "status": inverter.status_,
        }


@dataclass(frozen=True)
class Dictionary(Kind):
    """Data that `SparseDictionaryRecovery` is to explain."""

    n_components: int
    per_component: int
    sparsity: float
    noise: float = 0.0
    """Standard deviation of the noise over that of the data; with noise a sine below that is exact."""

    def run(self, seed: int) -> dict[str, Any]:
        """Recover the dictionary of a seed; what is certain and off is wrong, under noise by ten times its error."""
        X, _, true = make_sparse_dictionary(
            self.per_component * self.n_components, self.n_components, sparsity=self.sparsity, random_state=seed
        )
        level = self.noise * X.std()
        X = X + level * np.random.default_rng(seed).standard_normal(X.shape) if level else X
        told = {"noise_level": level, "n_components": self.n_components} if level else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = SparseDictionaryRecovery(random_state=seed, **told).fit(X)
        errors = match_components(found.components_, true).errors
        back = match_components(true, found.components_).errors
        near, far = (self.noise, 10 * found.component_errors_) if level else (1e-8, 1e-6)
        certain = found.recovered_ if level else found.certain_components_
        return {
            "exact": float(np.mean(errors < near)),
            "certified": float(found.recovered_.sum() / self.n_components),
            "wrong": int(np.sum(certain & (back > far))),
            "starts": int(found.n_starts_),
            "status": "",
        }


SEEN: dict[str, dict[str, Any]] = {
    "all": {},
    "next": {"behind": (), "head": None, "rest": None},
    "rest": {"next_weight_grad": None, "next_weight": None, "behind": ()},
    "one": {"next_weight_grad": None, "next_weight": None, "behind": (), "head": None, "rest": None},
}
"""Which of a model the server uses: all of it; the next layer's gradient; the weights alone; nothing but the layer."""


@dataclass(frozen=True)
class Photographs:
    """Pieces of photographs behind a fully connected network.

    Attributes
    ----------
    b, m : int
        Batch and width.
    activation : callable
        Makes the module.
    seen : str
        Name in `SEEN`.
    client : Client
        What it sends of the first layer.
    n_hidden, n_classes, n_steps : int
        Hidden layers, classes, and steps of training before.
    is_raw : bool
        Whether pixels are in [0, 1], not centred.
    told : tuple
        What its user says: "batch_size", "noise_level".
    """

    b: int
    m: int
    activation: Callable[[], nn.Module] = nn.ReLU
    seen: str = "all"
    client: Client = FedSGD()
    n_hidden: int = 3
    n_classes: int = 10
    n_steps: int = 0
    is_raw: bool = False
    told: tuple[str, ...] = ()

    def __call__(self, seed: int) -> Problem:
        """Draw pieces, network and labels."""
        pixels, classes = photographs(self.is_raw)
        model = fully_connected(
            pixels.shape[1], width=self.m, n_hidden=self.n_hidden, n_classes=self.n_classes, random_state=seed
        )
        for index in range(1, len(model), 2):
            model[index] = self.activation()
        labels = classes % self.n_classes
        trained(model, pixels, labels, self.n_steps, seed)
        index = torch.from_numpy(np.random.default_rng(seed).choice(len(pixels), self.b, replace=False))
        given = replace(self.client.send(model, pixels[index], labels[index], 0, seed), **SEEN[self.seen])
        told = {"batch_size": self.b, "noise_level": getattr(self.client, "noise_std", None)}
        return Problem(given, pixels[index], labels[index], {name: told[name] for name in self.told})


@dataclass(frozen=True)
class Rows:
    """Rows of one of scikit-learn's tables behind a fully connected network.

    Attributes
    ----------
    b, m : int
        Batch and width.
    n_steps : int
        Steps of training before.
    table : str
        "breast cancers", 30 standardised numbers of two classes, or "digits", 64 pixels of ten.
    client : Client
        What it sends of the first layer.
    """

    b: int
    m: int
    n_steps: int = 0
    table: str = "breast cancers"
    client: Client = FedSGD()

    def __call__(self, seed: int) -> Problem:
        """Draw rows and network."""
        rows, classes = TABLES[self.table]()
        n_classes = int(classes.max()) + 1
        model = fully_connected(rows.shape[1], width=self.m, n_classes=n_classes, random_state=seed)
        trained(model, rows, classes, self.n_steps, seed)
        index = np.random.default_rng(seed).choice(len(rows), self.b, replace=False)
        inputs, labels = rows[index], classes[index]
        return Problem(self.client.send(model, inputs, labels, 0, seed), inputs, labels)


def _breast_cancers() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import StandardScaler

    numbers, classes = load_breast_cancer(return_X_y=True)
    return torch.from_numpy(StandardScaler().fit_transform(numbers).astype(np.float32)), torch.from_numpy(classes)


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    return torch.from_numpy((pixels / 16).astype(np.float32)), torch.from_numpy(classes)


TABLES = {"breast cancers": _breast_cancers, "digits": _digits}


class OneStep(Client):
    """Float32 weights before and after one step, which the server knows to be one."""

    reveals_batch_size: ClassVar[bool] = False

    def send(
        self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, layer: int, seed: int
    ) -> LayerGradient:
        """Return the update of the layer over the learning rate."""
        before, after = fedavg_update(model, inputs, labels, learning_rate=0.01, n_epochs=1, random_state=seed)
        return LayerGradient.from_update(before, after, 0.01, layer, n_steps=1)


def trained(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, n_steps: int, seed: int) -> None:
    """Train for some steps of gradient descent on batches of 64."""
    optimizer, rng = torch.optim.SGD(model.parameters(), lr=0.05), np.random.default_rng(10_000 + seed)
    for _ in range(n_steps):
        index = torch.from_numpy(rng.choice(len(inputs), 64))
        optimizer.zero_grad()
        cross_entropy(model(inputs[index]), labels[index]).backward()
        optimizer.step()
    optimizer.zero_grad()


@lru_cache(maxsize=2)
def photographs(is_raw: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 2,000 pieces of the photographs that ship with scikit-learn, and classes drawn at random."""
    pieces, mean, deviation = natural_patches(2000, random_state=0)
    pieces = np.round(255 * pieces) / 255.0
    pieces = pieces if is_raw else (pieces - mean) / deviation
    classes = np.random.default_rng(0).integers(1000, size=len(pieces))
    return torch.tensor(pieces.reshape(len(pieces), -1), dtype=torch.float32), torch.from_numpy(classes)

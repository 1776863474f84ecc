"""Shared options and data. Every test seeds its own randomness and needs no network."""

import gzip
import os

# Threads that spin beside the other test worker cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sparsedl_fl import LayerGradient
from sparsedl_fl.demo import natural_patches
from sparsedl_fl.simulation import client_gradient, dp_sgd_gradient, fedavg_update, fully_connected


def pytest_addoption(parser):
    parser.addoption("--benchmarks", action="store_true", help="run the benchmarks too")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--benchmarks"):
        return
    skip = pytest.mark.skip(reason="a benchmark; run with --benchmarks")
    for item in items:
        if "benchmark" in item.keywords:
            item.add_marker(skip)


class PhotographClient:
    """Random batches of patches of photographs, and the gradient a client would send of each.

    The photographs are the two that ship with scikit-learn; labels are drawn.
    """

    def __init__(self, n_patches=1000):
        patches, self.mean, self.std = natural_patches(n_patches, random_state=0)
        self.images = np.round(255 * patches).astype(np.uint8)
        self.labels = np.random.default_rng(0).integers(10, size=n_patches)

    def client(self, batch_size, width, seed):
        """Return a batch in [0, 1], the same as the client feeds it, its labels, and a random network."""
        index = np.random.default_rng(seed).choice(len(self.images), batch_size, replace=False)
        pixels = (self.images[index] / 255.0).reshape(batch_size, -1)
        inputs = torch.tensor(self.inputs(pixels), dtype=torch.float32)
        model = fully_connected(inputs.shape[1], width=width, random_state=seed)
        return pixels, inputs, torch.tensor(self.labels[index]), model

    def problem(self, batch_size, width, seed):
        """Return the batch in [0, 1], and the first layer's gradient of a random network; both drawn from ``seed``."""
        pixels, inputs, labels, model = self.client(batch_size, width, seed)
        return pixels, LayerGradient.from_model(model, client_gradient(model, inputs, labels))

    def private_problem(self, batch_size, width, seed, **privacy):
        """Return the same with DP-SGD's clipping and noise."""
        pixels, inputs, labels, model = self.client(batch_size, width, seed)
        return pixels, LayerGradient.from_model(
            model, dp_sgd_gradient(model, inputs, labels, random_state=seed, **privacy)
        )

    def update(self, n_samples, width, seed, learning_rate, **training):
        """Return the same for a FedAvg update."""
        pixels, inputs, labels, model = self.client(n_samples, width, seed)
        before, after = fedavg_update(model, inputs, labels, learning_rate=learning_rate, random_state=seed, **training)
        return pixels, LayerGradient.from_update(before, after, learning_rate)

    def inputs(self, pixels):
        """Normalise as the client does."""
        return (pixels - np.tile(self.mean, 1024)) / np.tile(self.std, 1024)

    def pixels(self, inputs):
        """Undo the client's normalisation."""
        return inputs * np.tile(self.std, inputs.shape[1] // 3) + np.tile(self.mean, inputs.shape[1] // 3)


@pytest.fixture(scope="session")
def cifar():
    return PhotographClient()


@pytest.fixture
def small_problem():
    """A batch of eight Gaussian samples, a network of width 80, and the first layer's float64 gradient."""
    generator = torch.Generator().manual_seed(3)
    batch = torch.randn(8, 60, generator=generator, dtype=torch.float64)
    model = fully_connected(60, width=80, random_state=3).double()
    gradient = client_gradient(model, batch, torch.arange(8) % 10)
    return batch.numpy(), model, gradient


CENSUS_NUMBERS = {
    "age": (17, 90),
    "fnlwgt": (12_000, 1_000_000),
    "education-num": (1, 17),
    "capital-gain": (0, 20_000),
    "capital-loss": (0, 3_000),
    "hours-per-week": (1, 99),
}
CENSUS_CATEGORIES = {
    "workclass": 9,
    "education": 16,
    "marital-status": 7,
    "occupation": 15,
    "relationship": 6,
    "race": 5,
    "sex": 2,
    "native-country": 42,
}


@pytest.fixture(scope="session")
def raw_data(tmp_path_factory, cifar):
    """Return a folder with files by the names of data sets: patches of photographs, and nine digits a picture.

    The digits are scikit-learn's, 8 x 8 each: strokes on an empty ground, as those of MNIST, on 28 x 28 pixels.
    """
    folder, digits = tmp_path_factory.mktemp("raw"), load_digits()
    np.savez(folder / "cifar10.npz", x=cifar.images, y=cifar.labels)
    index = np.random.default_rng(0).integers(len(digits.images), size=(2000, 3, 3))
    pixels = np.round(255 / 16 * digits.images).astype(np.uint8)[index].transpose(0, 1, 3, 2, 4).reshape(2000, 24, 24)
    np.savez(folder / "mnist.npz", x=np.pad(pixels, ((0, 0), (2, 2), (2, 2))), y=digits.target[index[:, 1, 1]])
    return str(folder)


@pytest.fixture(scope="session")
def census(tmp_path_factory):
    """Return a file of 2,000 rows that are drawn, with the columns of Adult."""
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(*limits, 2000).astype(str) for name, limits in CENSUS_NUMBERS.items()}
    columns |= {
        name: [f"{name} {level}" for level in rng.integers(n, size=2000)] for name, n in CENSUS_CATEGORIES.items()
    }
    columns["income"] = rng.choice(["<=50K", ">50K"], 2000, p=[0.75, 0.25])
    lines = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
    path = tmp_path_factory.mktemp("census") / "adult_test.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines) + "\n")
    return path

"""Shared options and data. Every test seeds its own randomness and needs no network."""

import gzip
import os
from pathlib import Path

# Threads that spin beside the other test worker cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

from sparsedl_fl import LayerGradient
from sparsedl_fl.demo import natural_patches
from sparsedl_fl.simulation import client_gradient, dp_sgd_gradient, fedavg_update, fully_connected

ROOT = Path(__file__).parents[1]
CIFAR = ROOT.parent / "shared" / "data" / "cifar10.npz"
CIFAR_MEAN = np.array([0.4914, 0.4822, 0.4465])
CIFAR_STD = np.array([0.2470, 0.2435, 0.2616])


def pytest_addoption(parser):
    parser.addoption("--benchmarks", action="store_true", help="run the benchmarks too")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--benchmarks"):
        return
    skip = pytest.mark.skip(reason="a benchmark; run with --benchmarks")
    for item in items:
        if "benchmark" in item.keywords:
            item.add_marker(skip)


class CifarClient:
    """Random batches of real CIFAR-10, and the gradient a client would send of each.

    Where there is no CIFAR-10, patches of the photographs that the demo shows stand in.
    """

    def __init__(self, path):
        self.is_real = path.exists()
        if self.is_real:
            with np.load(path, allow_pickle=False) as data:
                self.images, self.labels = data["x"], data["y"]
        else:
            patches, mean, std = natural_patches(1000, 0)
            self.images = 255.0 * ((patches - mean) / std * CIFAR_STD + CIFAR_MEAN)
            self.labels = np.random.default_rng(0).integers(10, size=len(self.images))

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

    @staticmethod
    def inputs(pixels):
        """Normalise as the client does."""
        return (pixels - np.tile(CIFAR_MEAN, 1024)) / np.tile(CIFAR_STD, 1024)

    @staticmethod
    def pixels(inputs):
        """Undo the client's normalisation."""
        return inputs * np.tile(CIFAR_STD, inputs.shape[1] // 3) + np.tile(CIFAR_MEAN, inputs.shape[1] // 3)


@pytest.fixture(scope="session")
def cifar():
    return CifarClient(CIFAR)


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


def census(path):
    """Write 2,000 rows with the columns of Adult."""
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(*limits, 2000).astype(str) for name, limits in CENSUS_NUMBERS.items()}
    columns |= {
        name: [f"{name} {level}" for level in rng.integers(n, size=2000)] for name, n in CENSUS_CATEGORIES.items()
    }
    columns["income"] = rng.choice(["<=50K", ">50K"], 2000, p=[0.75, 0.25])
    lines = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines) + "\n")


def pictures(path):
    """Write 300 patches of photographs, of 64 x 64 pixels, with labels below 200."""
    patches = natural_patches(1200, random_state=0)[0].reshape(300, 2, 2, 32, 32, 3)
    together = patches.transpose(0, 1, 3, 2, 4, 5).reshape(300, 64, 64, 3)
    labels = np.random.default_rng(0).integers(200, size=300)
    np.savez(path, x=np.round(255 * together).astype(np.uint8), y=labels)


STAND_INS = {"adult_test.csv.gz": census, "tinyimagenet.npz": pictures}
"""What stands in for data that are not at hand, by the name of the file that each writes."""


@pytest.fixture(scope="session")
def shared_data(tmp_path_factory):
    """Return a function from the name of a data file to its path, or to that of what stands in; else the test skips."""

    def path_of(name):
        path = CIFAR.parent / name
        if path.exists():
            return path
        if name not in STAND_INS:
            pytest.skip(f"needs {path}")
        made_up = tmp_path_factory.mktemp("stand_ins") / name
        STAND_INS[name](made_up)
        return made_up

    return path_of

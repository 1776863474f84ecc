import numpy as np
import pytest

from paper.experiments import ImageBatch
from paper.tables import TABLES, Table
from sparsedl_fl.demo import natural_patches


@pytest.fixture(scope="session")
def patches():
    """Sixty bytes pictures of 32 x 32 x 3 in two classes."""
    pictures, _, _ = natural_patches(60, random_state=0)
    return np.round(pictures * 255).astype(np.uint8), np.arange(60) % 2


@pytest.fixture(scope="session")
def source(tmp_path_factory, patches):
    """A folder with a small cifar10.npz."""
    folder = tmp_path_factory.mktemp("data")
    np.savez(folder / "cifar10.npz", x=patches[0], y=patches[1])
    return str(folder)


@pytest.fixture
def tiny(monkeypatch):
    """A table of two small rows."""
    table = Table("Tiny", {"3x40": ImageBatch(3, 40), "4x50": ImageBatch(4, 50)}, n_batches=2)
    monkeypatch.setitem(TABLES, "tiny", table)
    return table

"""Real data for the papers' tables: from a file or folder that the user names, or fetched from OpenML.

A source is an ``.npz`` file with bytes ``x`` (n, height, width[, channels]) and labels ``y``, a folder or ``.zip`` of
images, or a folder that holds one of these for each data set, by its name. Nothing of it is ever copied.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["DATASETS", "Images", "encoder_of", "load_adult", "load_images"]

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_SUFFIXES = (".jpg", ".jpeg", ".png")
_MARGIN = 8 / 7
"""Photographs are scaled to this multiple of the side and cropped at random, as for training on ImageNet (256, 224)."""


@dataclass(frozen=True)
class Dataset:
    """What is known of a data set: its size, the usual normalisation, and where it comes from."""

    side: int
    n_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    openml: str | None = None
    also: tuple[str, ...] = ()


DATASETS = {
    "mnist": Dataset(28, 10, (0.1307,), (0.3081,), openml="mnist_784"),
    "cifar10": Dataset(32, 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), openml="CIFAR_10"),
    "tinyimagenet": Dataset(64, 200, *_IMAGENET),
    "imagenet_224": Dataset(224, 1000, *_IMAGENET),
    "imagenet_256": Dataset(256, 1000, *_IMAGENET, also=("imagenet_224",)),
    "imagenet_720": Dataset(720, 1000, *_IMAGENET, also=("imagenet_hires_jpegs",)),
}
"""By name; ``also`` names files that serve as well, rescaled."""


@dataclass(frozen=True)
class Images:
    """A data set in memory.

    Attributes
    ----------
    dataset : Dataset
        What is known of it.
    pictures : sequence of ndarray of shape (height, width, channels)
        Bytes; those larger than the data set's side are cropped when drawn.
    labels : ndarray of shape (n,) of int
        Classes.
    """

    dataset: Dataset
    pictures: Any
    labels: np.ndarray

    def draw(self, batch_size: int, seed: int, one_class: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Draw a batch: pixels in [0, 1] of shape (batch_size, side, side, channels), and labels.

        Pictures differ where there are enough of them; otherwise they come again, cropped and mirrored at random.
        """
        rng = np.random.default_rng(seed)
        among = np.arange(len(self.labels))
        if one_class:
            classes, counts = np.unique(self.labels, return_counts=True)
            if not (counts >= batch_size).any():
                raise ValueError(f"no class has {batch_size} pictures; the largest has {counts.max()}")
            among = np.flatnonzero(self.labels == rng.choice(classes[counts >= batch_size]))
        again = len(among) < batch_size
        index = rng.choice(among, batch_size, replace=again)
        pictures = [self._crop(self.pictures[i], rng, again) for i in index]
        return np.stack(pictures) / 255.0, self.labels[index]

    def normalize(self, pixels: np.ndarray) -> torch.Tensor:
        """Return what the client feeds its model: float32 of shape (batch_size, values)."""
        inputs = (pixels - np.array(self.dataset.mean)) / np.array(self.dataset.std)
        return torch.tensor(inputs, dtype=torch.float32).flatten(1)

    def denormalize(self, inputs: np.ndarray) -> np.ndarray:
        """Return pixels of shape (batch_size, values) from inputs of the same shape."""
        mean, std = np.array(self.dataset.mean), np.array(self.dataset.std)
        pixels = inputs.reshape(len(inputs), inputs.shape[1] // len(mean), len(mean)) * std + mean
        return pixels.reshape(inputs.shape)

    def _crop(self, picture: np.ndarray, rng: np.random.Generator, mirror: bool) -> np.ndarray:
        side = self.dataset.side
        top, left = (int(rng.integers(size - side + 1)) if size > side else 0 for size in picture.shape[:2])
        picture = picture[top : top + side, left : left + side]
        return picture[:, ::-1] if mirror and rng.random() < 0.5 else picture


@lru_cache(maxsize=2)
def load_images(name: str, source: str | None = None) -> Images:
    """Load a data set of `DATASETS` from a source, or from OpenML.

    Raises
    ------
    ValueError
        If the source holds no such data, or OpenML has none.
    """
    dataset = DATASETS[name]
    if source is None:
        return _fetch(name, dataset)
    path = _find(Path(source), (name, *dataset.also))
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            if not {"x", "y"} <= set(archive.files):
                raise ValueError(f"{path} must hold the arrays x and y, got {archive.files}")
            pictures, labels = archive["x"], archive["y"].astype(np.int64)
        pictures = pictures[..., None] if pictures.ndim == 3 else pictures
        if pictures.shape[1] < dataset.side:
            pictures = np.stack([_scaled(picture, dataset.side) for picture in pictures])
    else:
        found = [(_scaled(_decode(content), dataset.side), label) for content, label in _files(path)]
        if not found:
            raise ValueError(f"{path} holds no images ({', '.join(_SUFFIXES)})")
        pictures = [picture for picture, _ in found]
        classes = sorted({label for _, label in found})
        labels = np.array([classes.index(label) for _, label in found])
    if pictures[0].shape[-1] != len(dataset.mean):
        raise ValueError(f"{path} has {pictures[0].shape[-1]} channels, {name} has {len(dataset.mean)}")
    return Images(dataset, pictures, labels % dataset.n_classes)


def load_adult(source: str | None = None) -> tuple[Any, np.ndarray]:
    """Load the census rows (Adult) as a data frame, and the labels (income above 50K)."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("the table Adult needs pandas: pip install 'sparsedl[reproduce]'") from error
    if source is None:
        adult = _from_openml("adult", "adult.csv", version=2, as_frame=True).frame
        adult = adult.astype({name: str for name in adult.select_dtypes("category")})
        income = adult.pop("class")
    else:
        path = Path(source)
        if path.is_dir():
            path = next(iter(sorted(path.glob("adult*.csv*"))), path)
        if not path.is_file():
            raise ValueError(f"{source} holds no adult*.csv or adult*.csv.gz")
        adult = pd.read_csv(path)
        income = adult.pop("income")
    return adult, (income.str.strip(" .") == ">50K").to_numpy(dtype=np.int64)


def encoder_of(table: Any) -> Any:
    """Return a fitted encoder of a table: its numbers scaled, its categories as one-hot columns."""
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = table.select_dtypes("number").columns.tolist()
    categories = [name for name in table if name not in numbers]
    parts = [("numbers", StandardScaler(), numbers), ("categories", OneHotEncoder(), categories)]
    return ColumnTransformer(parts, sparse_threshold=0).fit(table)


def _fetch(name: str, dataset: Dataset) -> Images:
    if dataset.openml is None:
        raise ValueError(
            f"{name} is not on OpenML: pass --data with {name}.npz, a folder of images, or a folder of both"
        )
    bunch = _from_openml(dataset.openml, f"{name}.npz", as_frame=False)
    n_channels = len(dataset.mean)
    pictures = bunch.data.astype(np.uint8).reshape(-1, n_channels, dataset.side, dataset.side).transpose(0, 2, 3, 1)
    return Images(dataset, pictures, bunch.target.astype(np.int64))


def _from_openml(name: str, file: str, **options: Any) -> Any:
    from sklearn.datasets import fetch_openml

    try:
        return fetch_openml(name, **options)
    except OSError as error:
        raise ValueError(f"{name} could not be fetched from OpenML ({error}): pass --data with {file}") from error


def _find(source: Path, names: tuple[str, ...]) -> Path:
    """Return the source itself if it is a file or a folder of images, or what a folder holds by one of the names."""
    if source.is_file():
        return source
    if not source.is_dir():
        raise ValueError(f"--data {source} does not exist")
    for name in names:
        for candidate in (source / f"{name}.npz", source / f"{name}.zip", source / name):
            if candidate.exists():
                return candidate
    if next(_files(source), None) is None:
        raise ValueError(f"{source} holds neither images nor any of {', '.join(f'{name}.npz' for name in names)}")
    return source


def _files(path: Path) -> Iterator[tuple[bytes, str]]:
    """Yield the content of each image file and the name of its folder, which serves as its class."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                if name.lower().endswith(_SUFFIXES):
                    # Without folders every picture is a class of its own, as in a sample with one picture a class.
                    yield archive.read(name), str(Path(name).parent) if "/" in name else name
    else:
        for file in sorted(file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES):
            yield file.read_bytes(), str(file.parent) if file.parent != path else file.name


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading images needs Pillow: pip install 'sparsedl[reproduce]'") from error
    return Image


def _decode(content: bytes) -> np.ndarray:
    with _pillow().open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"))


def _scaled(picture: np.ndarray, side: int) -> np.ndarray:
    """Scale a picture so that its shorter side is a little more than ``side``; a smaller one becomes just that."""
    pillow, shorter = _pillow(), min(picture.shape[:2])
    scale = (side * _MARGIN if shorter >= side * _MARGIN else max(shorter, side)) / shorter
    size = tuple(round(length * scale) for length in picture.shape[1::-1])
    return np.asarray(pillow.fromarray(picture).resize(size, pillow.Resampling.LANCZOS))

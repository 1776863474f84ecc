"""Records of clients: a table, pictures and texts, drawn from a generator. No network is needed."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import avg_pool2d

from sparsedl_fl.demo import natural_patches

__all__ = [
    "N_CLASSES",
    "TEXT_LENGTH",
    "VOCABULARY",
    "copies",
    "digits",
    "next_tokens",
    "padded",
    "photographs",
    "scored",
    "table",
    "tagged",
    "texts",
]

N_CLASSES, VOCABULARY, TEXT_LENGTH = 10, 300, 10

PAD, START, STOP, FIRST_WORD = 0, 1, 2, 3

CATEGORIES = (9, 16, 7, 15, 2)
"""Levels of the columns of a table that hold categories, as in the census: each a block of zeros with a one."""

N_NUMBERS = 6


def table(n: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows with standardised numbers and categories, shape (n, 55), and their classes."""
    blocks = [rng.standard_normal((n, N_NUMBERS)), *(np.eye(size)[rng.integers(size, size=n)] for size in CATEGORIES)]
    return _float(np.hstack(blocks)), _classes(n, rng)


def copies(n: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows, which are what an autoencoder is to return as well."""
    rows, _ = table(n, rng)
    return rows, rows


def scored(n: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows with a number for each, shape (n, 1)."""
    return table(n, rng)[0], _float(rng.standard_normal((n, 1)))


def tagged(n: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows with several labels for each, zeros and ones of shape (n, 6)."""
    return table(n, rng)[0], _float(rng.random((n, 6)) < 0.3)


def digits(n: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return handwritten digits of shape (n, 1, 8, 8) in [0, 1], and which they are."""
    images, labels = load_digits(return_X_y=True)
    index = rng.choice(len(images), n, replace=False)
    return _float(images[index] / 16).reshape(n, 1, 8, 8), torch.from_numpy(labels[index].astype(np.int64))


def photographs(n: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return patches of photographs of shape (n, 3, 16, 16), normalised, and drawn classes."""
    index = rng.choice(len(_patches()), n, replace=False)
    return _patches()[index], _classes(n, rng)


def texts(n: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids of shape (n, 10), words by Zipf's law between a start and a stop, and their classes."""
    words = np.arange(FIRST_WORD, VOCABULARY)
    chance = 1 / np.arange(1, len(words) + 1)
    ids = rng.choice(words, (n, TEXT_LENGTH), p=chance / chance.sum())
    ids[:, 0], ids[:, -1] = START, STOP
    return torch.from_numpy(ids), torch.from_numpy(rng.integers(4, size=n))


def next_tokens(n: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids of shape (n, 9), and those that follow each."""
    ids, _ = texts(n, rng)
    return ids[:, :-1], ids[:, 1:]


def padded(ids: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Return texts cut to two to five tokens, with padding behind."""
    kept = rng.integers(2, 6, size=len(ids))
    return torch.where(torch.arange(ids.shape[1]) < torch.from_numpy(kept)[:, None], ids, PAD)


def _float(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array, dtype=np.float32))


def _classes(n: int, rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(rng.integers(N_CLASSES, size=n))


@cache
def _patches() -> torch.Tensor:
    patches, mean, std = natural_patches(200, random_state=0)
    return avg_pool2d(_float((patches - mean) / std).permute(0, 3, 1, 2), 2).contiguous()

"""A demonstration on photographs: a client's gradient, and the batch recovered from the gradient alone."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.metrics import match_batches, psnr
from sparsedl_fl.simulation import client_gradient, fully_connected

__all__ = ["DemoResult", "natural_patches", "run_demo", "show"]

PATCH = 32
N_CLASSES = 10
MIN_CONTRAST = 0.1
"""Smallest standard deviation of a patch. Two patches of clear sky have the same active units, and cannot be
distinguished."""


@dataclass(frozen=True)
class DemoResult:
    """One batch, what was recovered of it, and the fitted inverter.

    Attributes
    ----------
    originals : ndarray of shape (b, 32, 32, 3)
        The private patches, in [0, 1].
    recovered : ndarray of shape (b, 32, 32, 3)
        The recovered patches, in the order of the originals and on their scale; NaN where there is none.
    certified : ndarray of shape (b,) of bool
        Which of them the inverter certifies.
    psnr : ndarray of shape (b,)
        In dB, on the scale [0, 1].
    inverter : GradientInverter
        Fitted.
    seconds : float
        Time of ``fit``.
    """

    originals: np.ndarray
    recovered: np.ndarray
    certified: np.ndarray
    psnr: np.ndarray
    inverter: GradientInverter
    seconds: float


def natural_patches(
    n_patches: int, random_state: int | None = None, min_contrast: float = MIN_CONTRAST
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut 32 x 32 colour patches from the photographs that ship with scikit-learn, at random positions.

    Parameters
    ----------
    n_patches : int
        Number of patches.
    random_state : int or None, default=None
        Seed of the positions.
    min_contrast : float, default=0.1
        Patches with a smaller standard deviation are drawn again.

    Returns
    -------
    patches : ndarray of shape (n_patches, 32, 32, 3)
        In [0, 1].
    mean, std : ndarray of shape (3,)
        Of the colours of the photographs, for the client's normalisation.
    """
    rng = check_random_state(random_state)
    photographs = [photograph / 255.0 for photograph in load_sample_images().images]
    patches: list[np.ndarray] = []
    while len(patches) < n_patches:
        photograph = photographs[rng.randint(len(photographs))]
        row, column = (rng.randint(size - PATCH + 1) for size in photograph.shape[:2])
        patch = photograph[row : row + PATCH, column : column + PATCH]
        if patch.std(axis=(0, 1)).mean() >= min_contrast:
            patches.append(patch)
    pixels = np.concatenate([photograph.reshape(-1, 3) for photograph in photographs])
    return np.stack(patches), pixels.mean(axis=0), pixels.std(axis=0)


def run_demo(batch_size: int = 20, width: int = 200, seed: int = 0, verbose: bool = False) -> DemoResult:
    """Compute a client's float32 gradient of a batch of patches, and recover the batch from it.

    Parameters
    ----------
    batch_size : int, default=20
        Number of patches.
    width : int, default=200
        Width of the three hidden layers.
    seed : int, default=0
        Seed of the patches, the network, the labels and the search.
    verbose : bool, default=False
        Whether to draw a progress bar.
    """
    originals, mean, std = natural_patches(batch_size, seed)
    batch = torch.tensor((originals - mean) / std, dtype=torch.float32).flatten(1)
    labels = torch.tensor(check_random_state(seed).randint(N_CLASSES, size=batch_size))
    model = fully_connected(batch.shape[1], width=width, n_classes=N_CLASSES, random_state=seed)
    gradient = LayerGradient.from_model(model, client_gradient(model, batch, labels))

    start = time.perf_counter()
    inverter = GradientInverter(random_state=seed, verbose=verbose)
    with warnings.catch_warnings():
        # The table says how many inputs are certified.
        warnings.simplefilter("ignore", ConvergenceWarning)
        inputs = inverter.fit_transform(gradient)
    seconds = time.perf_counter() - start

    images = inputs.reshape(-1, PATCH, PATCH, 3) * std + mean
    order = match_batches(originals, images).order
    found = order >= 0
    recovered = np.where(found[:, None, None, None], images[order], np.nan)
    certified = found & inverter.recovered_[order]
    return DemoResult(originals, recovered, certified, psnr(originals, images), inverter, seconds)


def show(result: DemoResult, path: str | Path) -> None:
    """Print a short table and write a picture: originals above, recovered below."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="What one gradient leaks")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("batch size found", f"{result.inverter.batch_size_} of {len(result.originals)}")
    table.add_row("inputs certified", f"{int(result.certified.sum())}")
    table.add_row("agreement with the weights (1: full)", f"{result.inverter.sparsity_matching_:.4f}")
    table.add_row("part of the gradient left over", f"{result.inverter.relative_residual_:.1e}")
    table.add_row("mean PSNR", f"{result.psnr.mean():.1f} dB")
    table.add_row("worst PSNR", f"{result.psnr.min():.1f} dB")
    table.add_row("seconds", f"{result.seconds:.1f}")
    Console().print(table)
    write_picture(result, path)


def write_picture(result: DemoResult, path: str | Path) -> None:
    """Draw the originals above the recovered patches, matched, and write a PNG."""
    from matplotlib.figure import Figure

    per_row = 10
    n_rows = -(-len(result.originals) // per_row)
    figure = Figure(figsize=(per_row * 0.9, n_rows * 2.1 + 0.3), layout="constrained")
    axes = figure.subplots(2 * n_rows, per_row, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for i, (original, recovered) in enumerate(zip(result.originals, result.recovered, strict=True)):
        row, column = 2 * (i // per_row), i % per_row
        axes[row, column].imshow(original)
        axes[row + 1, column].imshow(np.clip(np.nan_to_num(recovered, nan=0.5), 0, 1))
        axes[row + 1, column].set_title("" if result.certified[i] else "not certified", fontsize=6)
    figure.suptitle("originals above, recovered from the gradient below", fontsize=9)
    figure.savefig(path, dpi=150)

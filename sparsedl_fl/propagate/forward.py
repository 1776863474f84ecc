"""What a model feeds its layers when it runs on inputs that are known, held against each layer's gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from sparsedl_fl.certify.assembly import Assembly
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.propagate.backward import KnownBatch, sizes_of

__all__ = ["fed_by", "fed_columns", "is_contradicted"]


def fed_by(
    known: KnownBatch, fed: np.ndarray, drawn: np.ndarray, behind: LayerGradient, *, exact: float = 1e-3
) -> KnownBatch:
    """Return the batch of a layer that the model feeds, as a run with the inputs known shows.

    Parameters
    ----------
    known : KnownBatch
        Of a layer in front.
    fed : ndarray of shape (b, n)
        What the layer is fed when the model runs on these inputs.
    drawn : ndarray of shape (n_draws, b, n)
        The same for inputs that are off by their expected errors.
    behind : LayerGradient
        The layer.
    exact : float, default=1e-3
        Share of the gradient that may lie outside the space of what the layer is fed, beside what the errors explain.

    Returns
    -------
    KnownBatch
        Certified where the gradient lies in the row space of what the layer is fed; how nearly it does is an error.
    """
    errors = np.sqrt(np.mean((drawn - fed) ** 2, axis=(0, 2)))
    gradient = behind.weight_grad.astype(np.float64)
    b, n = fed.shape
    spanned, *_ = np.linalg.lstsq(fed.T, gradient.T, rcond=None)
    outside = np.linalg.norm(gradient - spanned.T @ fed) / np.linalg.norm(gradient)
    size = sizes_of(fed)
    explained = exact + 10 * float(np.max(errors / size))
    fits = b < n and outside <= min(explained, 0.3 * np.sqrt(1 - b / n))
    # What lies outside is the noise of the gradient, or weights that are a little off, in n - b of n directions.
    errors = np.hypot(errors, outside * size / np.sqrt(max(1 - b / n, 1 / n)))
    adds_up = np.linalg.norm(spanned.sum(axis=0) - behind.bias_grad) <= 0.05 * np.linalg.norm(behind.bias_grad)
    certified = known.certified & bool(fits and adds_up) & (errors <= Assembly.worthless * size)
    return KnownBatch(fed, spanned.T, errors, certified, known.labels)


def fed_columns(layer: LayerGradient, fed: np.ndarray, drawn: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient at a layer's outputs for each input that it is known to be fed, and its expected error.

    Parameters
    ----------
    layer : LayerGradient
        The layer, of ``n`` inputs and ``m`` outputs.
    fed : ndarray of shape (b, n)
        What it is fed, ``b < n``.
    drawn : sequence of ndarray of shape (b, n)
        The same for inputs that are off by their expected errors.

    Returns
    -------
    gradients : ndarray of shape (m, b)
        ``D``, from ``G = D X^T`` by least squares.
    errors : ndarray of shape (b,)
        Expected length of the error of each column: what the draws change, and what of ``G`` no ``D`` explains.
    """
    gradient = layer.weight_grad.astype(np.float64)
    (b, n), m = fed.shape, len(gradient)
    inverse = np.linalg.pinv(fed)
    columns = gradient @ inverse
    changes = [np.sum((gradient @ np.linalg.pinv(other) - columns) ** 2, axis=0) for other in drawn]
    unexplained = np.sum((gradient - columns @ fed) ** 2) / (m * (n - b))
    by_noise = m * unexplained * np.sum(inverse**2, axis=0)
    return columns, np.sqrt(by_noise + np.max(changes, axis=0, initial=0.0))


def is_contradicted(fed: np.ndarray, known: np.ndarray, *, far: float = 1e-2, least: int = 3) -> bool:
    """Return whether what a layer would be fed is not what it was, by more than ``far`` of its size.

    A client that drops units out feeds the layer the same but for units that are off, and the others all larger by one
    factor, which is as large as these are many: that is no contradiction.

    Parameters
    ----------
    fed : ndarray of shape (k, n)
        What the model makes of the inputs of a layer in front, or of some of them.
    known : ndarray of shape (b, n)
        What the layer was fed, in any order.
    far : float, default=1e-2
        Largest difference, root mean square, relative to what is known.
    least : int, default=3
        Units that have to be on to tell anything beside their common factor.
    """
    match = match_batches(fed, known)
    size = np.sqrt(np.mean(known**2))
    if np.sqrt(np.mean(match.squared_errors)) <= far * size:
        return False
    left_on = np.abs(known) > far * size
    kept = known * left_on
    squares, products = fed**2 @ left_on.T, fed @ kept.T
    factors = products / np.maximum(squares, np.finfo(float).tiny)
    sizes = np.sum(kept**2, axis=1)
    residuals = np.maximum(sizes - factors * products, 0.0) / np.maximum(sizes, np.finfo(float).tiny)
    residuals[:, left_on.sum(axis=1) < least] = 1.0
    rows, columns = linear_sum_assignment(residuals)
    factor = factors[rows, columns]
    is_one = np.ptp(factor) <= far * factor.mean() and factor.min() >= 1 - far
    # Of the units that would be on, dropout keeps one share, and makes these larger by its inverse.
    were_on = np.abs(fed[rows]) > far * np.sqrt(np.mean(fed**2))
    share, n_on = left_on[columns][were_on].mean() if were_on.any() else 1.0, max(1, int(were_on.sum()))
    spread = 5 * np.sqrt((1 - share) / (max(share, 1 / n_on) * n_on))
    is_one &= abs(share * factor.mean() - 1) <= far + spread
    return len(rows) < len(fed) or not is_one or bool(np.sqrt(residuals[rows, columns].mean()) > far)

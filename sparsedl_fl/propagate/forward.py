"""Forward propagation: inputs of layers from running the model on a known batch, checked by each layer's gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from sparsedl_fl.certify.assembly import Assembly
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.propagate.backward import KnownBatch
from sparsedl_fl.propagate.checks import sizes_of
from sparsedl_fl.propagate.scales import with_errors

__all__ = ["propagate_forward", "columns_of_inputs", "is_contradicted", "sums_at"]


def propagate_forward(
    known: KnownBatch, fed: np.ndarray, drawn: np.ndarray, layer: LayerGradient, *, exact: float = 1e-3
) -> KnownBatch:
    """Return the batch of a downstream layer, from a run of the model on a known batch.

    Parameters
    ----------
    known : KnownBatch
        Batch of an earlier layer.
    fed : ndarray of shape (b, n)
        Inputs of the layer when the model runs on that batch.
    drawn : ndarray of shape (n_draws, b, n)
        The same for inputs that are off by their expected errors.
    layer : LayerGradient
        The layer.
    exact : float, default=1e-3
        Share of the gradient that may lie outside the subspace of these inputs, besides what the errors explain.

    Returns
    -------
    KnownBatch
        Certified where the gradient lies in the subspace of the inputs; the distance from it is part of the error.
    """
    errors = np.sqrt(np.mean((drawn - fed) ** 2, axis=(0, 2)))
    gradient = layer.weight_grad.astype(np.float64)
    b, n = fed.shape
    columns, *_ = np.linalg.lstsq(fed.T, gradient.T, rcond=None)
    outside = np.linalg.norm(gradient - columns.T @ fed) / np.linalg.norm(gradient)
    size = sizes_of(fed)
    explained = exact + 10 * float(np.max(errors / size))
    fits = b < n and outside <= min(explained, 0.3 * np.sqrt(1 - b / n))
    # The part outside is noise of the gradient, or an error of the weights, in n - b of n directions.
    errors = np.hypot(errors, outside * size / np.sqrt(max(1 - b / n, 1 / n)))
    adds_up = np.linalg.norm(columns.sum(axis=0) - layer.bias_grad) <= 0.05 * np.linalg.norm(layer.bias_grad)
    certified = known.certified & bool(fits and adds_up) & (errors <= Assembly.worthless * size)
    return KnownBatch(fed, columns.T, errors, certified, known.labels)


def columns_of_inputs(
    layer: LayerGradient, fed: np.ndarray, drawn: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient at a layer's outputs for each of its known inputs, and its expected error.

    Parameters
    ----------
    layer : LayerGradient
        The layer, of ``n`` inputs and ``m`` outputs.
    fed : ndarray of shape (b, n)
        The known inputs, ``b < n``.
    drawn : sequence of ndarray of shape (b, n)
        The same for inputs that are off by their expected errors.

    Returns
    -------
    gradients : ndarray of shape (m, b)
        ``D``, from ``G = D X^T`` by least squares.
    errors : ndarray of shape (b,)
        Expected length of the error of each column: its change over the draws, and the part of ``G`` that no ``D``
        explains.
    """
    gradient = layer.weight_grad.astype(np.float64)
    (b, n), m = fed.shape, len(gradient)
    inverse = np.linalg.pinv(fed)
    columns = gradient @ inverse
    changes = [np.sum((gradient @ np.linalg.pinv(other) - columns) ** 2, axis=0) for other in drawn]
    unexplained = np.sum((gradient - columns @ fed) ** 2) / (m * (n - b))
    by_noise = m * unexplained * np.sum(inverse**2, axis=0)
    return columns, np.sqrt(by_noise + np.max(changes, axis=0, initial=0.0))


def sums_at(fed: np.ndarray, gradient: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the bias gradient of a layer whose inputs are known, whether it has a bias or not, of shape (m,).

    Parameters
    ----------
    fed : ndarray of shape (b, n)
        The known inputs, ``b < n``.
    gradient : ndarray of shape (m, n)
        Of its weights.
    errors : ndarray of shape (b,)
        Expected errors of the inputs, relative to them.
    """
    return with_errors(np.linalg.lstsq(fed.T, gradient.T, rcond=None)[0].T, errors)


def is_contradicted(fed: np.ndarray, known: np.ndarray, *, far: float = 1e-2, least: int = 3) -> bool:
    """Return whether computed inputs of a layer differ from its known inputs, by more than ``far`` of their size.

    Dropout is no contradiction: it sets some units to zero and makes the others larger by one factor, the inverse of
    the share that it keeps.

    Parameters
    ----------
    fed : ndarray of shape (k, n)
        Inputs of the layer computed from the batch of an earlier layer, or from a part of it.
    known : ndarray of shape (b, n)
        Known inputs of the layer, in any order.
    far : float, default=1e-2
        Largest difference, root mean square, relative to the known inputs.
    least : int, default=3
        Least number of units that are not zero: fewer show nothing besides their common factor.
    """
    match = match_batches(fed, known)
    size = np.sqrt(np.mean(known**2))
    if np.sqrt(np.mean(match.squared_errors)) <= far * size:
        return False
    is_kept = np.abs(known) > far * size
    kept = known * is_kept
    squares, products = fed**2 @ is_kept.T, fed @ kept.T
    factors = products / np.maximum(squares, np.finfo(float).tiny)
    sizes = np.sum(kept**2, axis=1)
    residuals = np.maximum(sizes - factors * products, 0.0) / np.maximum(sizes, np.finfo(float).tiny)
    residuals[:, is_kept.sum(axis=1) < least] = 1.0
    rows, columns = linear_sum_assignment(residuals)
    factor = factors[rows, columns]
    is_one = np.ptp(factor) <= far * factor.mean() and factor.min() >= 1 - far
    # Dropout keeps a share of the active units, and makes these larger by its inverse.
    were_active = np.abs(fed[rows]) > far * np.sqrt(np.mean(fed**2))
    share, n_active = is_kept[columns][were_active].mean() if were_active.any() else 1.0, max(1, int(were_active.sum()))
    spread = 5 * np.sqrt((1 - share) / (max(share, 1 / n_active) * n_active))
    is_one &= abs(share * factor.mean() - 1) <= far + spread
    return len(rows) < len(fed) or not is_one or bool(np.sqrt(residuals[rows, columns].mean()) > far)

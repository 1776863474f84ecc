"""How close a recovered batch is to the true one, after the best matching of inputs.

Signals are compared on the scale of ``data_range``: undo the client's normalisation first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

__all__ = ["MAX_PSNR", "BatchMatch", "match_batches", "psnr"]

MAX_PSNR = 200.0
"""Cap in dB, so that one input that is exact to the last bit does not make a mean infinite."""


@dataclass(frozen=True)
class BatchMatch:
    """The one-to-one match of true inputs with recovered ones that has the smallest total squared error.

    Attributes
    ----------
    order : ndarray of shape (n_true,) of int
        ``recovered[order[i]]`` is matched with ``true[i]``; -1 where too few were recovered.
    squared_errors : ndarray of shape (n_true,)
        Mean squared error of each match; infinite where there is none.
    """

    order: np.ndarray
    squared_errors: np.ndarray


def match_batches(true: Any, recovered: Any) -> BatchMatch:
    """Match a true batch with a recovered one.

    Parameters
    ----------
    true : array-like or torch.Tensor of shape (n_true, ...)
        True inputs.
    recovered : array-like or torch.Tensor of shape (n_recovered, ...)
        Recovered inputs, in any order, as many values each.

    Examples
    --------
    >>> match_batches([[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.1], [0.0, 1.0]]).order.tolist()
    [1, 0]
    """
    true, recovered = _flatten("true", true), _flatten("recovered", recovered)
    if true.shape[1] != recovered.shape[1]:
        raise ValueError(f"true inputs have {true.shape[1]} values and recovered ones {recovered.shape[1]}")
    cost = (
        np.sum(true**2, axis=1)[:, None] + np.sum(recovered**2, axis=1)[None, :] - 2 * true @ recovered.T
    ) / true.shape[1]
    rows, columns = linear_sum_assignment(cost)
    order = np.full(len(true), -1)
    order[rows] = columns
    squared_errors = np.full(len(true), np.inf)
    squared_errors[rows] = np.mean((true[rows] - recovered[columns]) ** 2, axis=1)
    return BatchMatch(order, squared_errors)


def psnr(true: Any, recovered: Any, data_range: float = 1.0) -> np.ndarray:
    """Return the peak signal-to-noise ratio of each true input, in dB, after matching.

    Parameters
    ----------
    true : array-like or torch.Tensor of shape (n_true, ...)
        True inputs, on a scale of width ``data_range``.
    recovered : array-like or torch.Tensor of shape (n_recovered, ...)
        Recovered inputs, in any order, on the same scale.
    data_range : float, default=1.0
        Width of the scale: 1 for images in [0, 1], 255 for bytes.

    Returns
    -------
    ndarray of shape (n_true,)
        Capped at `MAX_PSNR`; minus infinity for a true input without a match.
    """
    errors = match_batches(true, recovered).squared_errors
    with np.errstate(divide="ignore"):
        return np.minimum(10 * np.log10(data_range**2 / errors), MAX_PSNR)


def _flatten(name: str, batch: Any) -> np.ndarray:
    if hasattr(batch, "detach"):
        batch = batch.detach().cpu().numpy()
    batch = np.asarray(batch, dtype=np.float64)
    if batch.ndim < 2 or 0 in batch.shape or not np.isfinite(batch).all():
        raise ValueError(f"{name} must be a non-empty batch of finite inputs, got shape {batch.shape}")
    return batch.reshape(len(batch), -1)

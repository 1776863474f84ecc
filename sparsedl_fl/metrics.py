"""How close a recovered batch is to the true one, after the best matching of inputs.

Signals are compared on the scale of ``data_range``: undo the client's normalisation first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

__all__ = ["MAX_PSNR", "BatchMatch", "are_mislabelled", "are_wrong", "match_batches", "psnr"]

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


def are_wrong(
    true: np.ndarray, recovered: np.ndarray, expected: np.ndarray, *, multiple: float = 10.0, small: float = 1e-3
) -> np.ndarray:
    """Return which recovered inputs are further from every true one than was said; several may be the same one.

    Parameters
    ----------
    true : ndarray of shape (n_true, n)
        True inputs.
    recovered : ndarray of shape (k, n)
        Recovered ones, such as those that are certified.
    expected : ndarray of shape (k,)
        Their expected root-mean-square errors.
    multiple, small : float, default=10, 1e-3
        Wrong is what is off by more than ``multiple`` expected errors and by more than ``small`` of its size.

    Examples
    --------
    >>> are_wrong(np.eye(2), np.array([[1.0, 1e-5], [0.5, 0.5]]), np.array([1e-5, 1e-5])).tolist()
    [False, True]
    """
    squares = np.mean((true[None] - recovered[:, None]) ** 2, axis=2)
    errors, nearest = np.sqrt(squares.min(axis=1)), squares.argmin(axis=1)
    sizes = np.sqrt(np.mean(true**2, axis=1))[nearest]
    return errors > np.maximum(multiple * expected, small * sizes)


def are_mislabelled(
    true: np.ndarray, true_labels: np.ndarray, recovered: np.ndarray, labels: np.ndarray, *, near: float = 1e-2
) -> np.ndarray:
    """Return which recovered inputs have a label that no true input near them has.

    Parameters
    ----------
    true : ndarray of shape (n_true, n)
        True inputs.
    true_labels : ndarray of shape (n_true,) of int
        Their labels.
    recovered : ndarray of shape (k, n)
        Recovered inputs.
    labels : ndarray of shape (k,) of int
        Their labels; negative ones say nothing.
    near : float, default=1e-2
        Distance, as a share of the size of a true input, up to which a recovered one matches it.
    """
    distances = np.sqrt(np.mean((true[None] - recovered[:, None]) ** 2, axis=2))
    is_near = distances < near * np.sqrt(np.mean(true**2, axis=1))
    fits = labels[:, None] == true_labels
    return (labels >= 0) & is_near.any(axis=1) & ~(is_near & fits).any(axis=1)


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

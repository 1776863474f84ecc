"""The gradient as a product of two thin matrices: batch size from the numerical rank, factors, noise floor."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import svd

from sparsedl.zeros import ZeroTest
from sparsedl_fl.gradients import LayerGradient

__all__ = ["LowRankGradient", "factorize"]

CLEAR_GAP = 10.0
"""Ratio of neighbouring singular values above which the rank is beyond doubt; a float32 client has 1e5 and more."""


@dataclass(frozen=True)
class LowRankGradient:
    """The factorisation ``G = U S V^T``, cut at the batch size ``b``.

    Attributes
    ----------
    left : ndarray of shape (m, b)
        ``U``; its products ``U q`` with the right directions are the columns of ``D``, up to scale.
    singular_values : ndarray of shape (b,)
        ``S``, descending.
    right : ndarray of shape (b, n)
        ``V^T``.
    noise_level : ndarray of shape (m,)
        Standard deviation of the noise on the entries of each row of ``G``, from what lies beyond the rank.
    signal_to_noise : float
        Smallest singular value kept over the largest dropped; infinite when nothing is dropped.
    """

    left: np.ndarray
    singular_values: np.ndarray
    right: np.ndarray
    noise_level: np.ndarray
    signal_to_noise: float

    @property
    def batch_size(self) -> int:
        """The number of samples, ``b``."""
        return len(self.singular_values)

    @property
    def zero_test(self) -> ZeroTest:
        """What decides on zeros, in coordinates where ``sqrt(m) U`` is white.

        The noise of ``U q = G V S^-1 q`` has the standard deviation ``noise_level * |S^-1 q|``.
        """
        scale = np.sqrt(len(self.left))
        return ZeroTest(
            observations=torch.from_numpy(self.left * scale),
            unmixing=torch.from_numpy(np.diag(scale / self.singular_values)),
            noise_level=torch.from_numpy(self.noise_level),
        )

    def tolerances(self, directions: np.ndarray) -> np.ndarray:
        """Return the width of zero of ``U q`` for unit columns of shape (b, c): an array of shape (m, c)."""
        rows = torch.from_numpy(np.ascontiguousarray(directions.T))
        return self.zero_test.tolerances(rows).numpy().T / np.sqrt(len(self.left))

    def zeros(self, directions: np.ndarray) -> np.ndarray:
        """Return which entries of ``U q`` are zero, a boolean array of shape (m, c)."""
        return np.abs(self.left @ directions) <= self.tolerances(directions)


def factorize(layer_gradient: LayerGradient, batch_size: int | None = None) -> LowRankGradient:
    """Factorise a layer's gradient.

    Parameters
    ----------
    layer_gradient : LayerGradient
        Weights and gradient of the layer.
    batch_size : int or None, default=None
        Number of samples; None takes the numerical rank, at the largest gap between the logarithms of neighbouring
        singular values. (The usual rule, a multiple of the machine epsilon, undercounts on float32 gradients of
        partly trained networks.)

    Raises
    ------
    ValueError
        If the batch is as large as the layer, or the bias gradient does not belong to the weight gradient.

    Warns
    -----
    UserWarning
        If the gap is too small to be sure of the batch size.

    References
    ----------
    SPEAR (2024), Theorem 3.2; SPEAR++ (2025), Sec. 4.1.
    """
    G = layer_gradient.weight_grad
    m, n = G.shape
    U, S, Vt = svd(G, full_matrices=False, check_finite=False)
    # A dead unit leaves a row of exact zeros, which must not pass for the end of the numerical rank.
    n_outputs, n_inputs = int(G.any(axis=1).sum()), int(G.any(axis=0).sum())
    b = _numerical_rank(S[: min(n_outputs, n_inputs)]) if batch_size is None else batch_size
    if isinstance(b, bool) or not isinstance(b, int | np.integer) or b < 1:
        raise ValueError(f"batch_size must be a positive integer or None, got {batch_size!r}")
    if b >= min(n_outputs, n_inputs):
        raise ValueError(
            f"the batch (size {b}) is as large as the layer ({n_outputs} outputs and {n_inputs} inputs have a "
            "gradient) or larger: its samples cannot be separated"
        )
    if S[b - 1] <= np.finfo(float).eps * S[0]:
        raise ValueError(f"batch_size={b} is more than the rank of weight_grad, which is {int(np.sum(S > 0))}")
    signal_to_noise = float(S[b - 1] / S[b]) if S[b] > 0 else np.inf
    if batch_size is None and signal_to_noise < CLEAR_GAP:
        warnings.warn(
            f"the batch size is uncertain: the gap behind singular value {b} of weight_grad is only "
            f"{signal_to_noise:.2g}; the gradient may be noisy or the batch as large as the layer: pass batch_size",
            UserWarning,
            stacklevel=3,
        )
    noise = np.sqrt(np.sum((U[:, b:] * S[b:]) ** 2, axis=1) / (n - b))
    noise = np.maximum(noise, np.finfo(float).eps * np.sqrt(np.mean(G**2)))
    _check_bias_gradient(layer_gradient.bias_grad, U[:, :b], noise, S, b)
    return LowRankGradient(U[:, :b], S[:b], Vt[:b], noise, signal_to_noise)


def _numerical_rank(singular_values: np.ndarray) -> int:
    floor = np.finfo(float).eps * singular_values[0]
    logs = np.log(np.maximum(singular_values, floor))
    if len(logs) == 1:
        return 1
    return int(np.argmax(logs[:-1] - logs[1:])) + 1


def _check_bias_gradient(bias_grad: np.ndarray, left: np.ndarray, noise: np.ndarray, S: np.ndarray, b: int) -> None:
    """Raise unless the bias gradient lies in the column space of the weight gradient, ``g = D 1``."""
    outside = np.linalg.norm(bias_grad - left @ (left.T @ bias_grad))
    # The column space itself is only known to the noise over the smallest singular value.
    amplification = 1 + np.linalg.norm(bias_grad) * np.sqrt(len(left)) / S[b - 1]
    if outside > 100 * np.linalg.norm(noise) * amplification + 1e-3 * np.linalg.norm(bias_grad):
        raise ValueError(
            "bias_grad does not lie in the column space of weight_grad: they are not of the same layer and batch "
            f"(relative distance {outside / np.linalg.norm(bias_grad):.2g}), or batch_size={b} is too small"
        )

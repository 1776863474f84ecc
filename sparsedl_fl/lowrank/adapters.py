"""The gradient of a layer from those of an adapter's two factors, where its rank is at least the batch.

With the weight ``W + s B A`` and its gradient ``G = D^T X`` of rank b, an adapter (LoRA) of rank r shows
``G_B = s G A^T`` (m, r) and ``G_A = s B^T G`` (r, n). Where ``A`` and ``B`` keep the rank, ``G_B`` has the column space
``U`` of ``G`` and ``G_A`` its row space ``V``, and ``G = U C V^T`` with ``C (V^T A^T) = U^T G_B / s``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsedl_fl.layers.formats import UNIFORM, rounding_noise
from sparsedl_fl.layers.stored_weights import step_of_stored_weights
from sparsedl_fl.lowrank.measured import precision_of

__all__ = ["ONLY_FIRST", "NotDetermined", "ProductGradient", "gradient_of_product"]

MOST_ROUNDING = 30.0
"""Rounding of a gradient over that of its last operation, at most: as of `sparsedl_fl.audit.text.layer_space`."""

FITS = 0.05
"""Relative distance up to which both factors' gradients tell the same ``C``."""

MOST_NOISE = 0.2
"""Largest singular value of the noise over the least of the gradient up to which a layer is attacked, as of
`sparsedl_fl.audit.first_step`."""


ONLY_FIRST = (
    "its adapter's second factor is zero, as before the first step, and then the first has no gradient: of each input "
    "only {} numbers show, its products with the first factor"
)
"""Why an adapter at its start shows no gradient of its layer."""


class NotDetermined(ValueError):
    """The gradients of two factors do not determine that of their product; says why."""


@dataclass(frozen=True, eq=False)
class ProductGradient:
    """The gradient of a product.

    Attributes
    ----------
    gradient : ndarray of shape (m, n)
        Of rank b, and the noise that it has been left with, drawn into what is beyond its rank, where attacks look.
    rank : int
        ``b``.
    """

    gradient: np.ndarray
    rank: int


def gradient_of_product(
    of_first: np.ndarray,
    of_second: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    scale: float,
    bias_grad: np.ndarray | None = None,
    batch_size: int | None = None,
) -> ProductGradient:
    """Return the gradient of ``W + scale * second @ first`` in ``W``.

    Parameters
    ----------
    of_first : ndarray of shape (r, n)
        Gradient of ``A``.
    of_second : ndarray of shape (m, r)
        Gradient of ``B``.
    first, second : ndarray of shape (r, n) and (m, r)
        ``A`` and ``B``.
    scale : float
        The factor on the product.
    bias_grad : ndarray of shape (m,) or None, default=None
        Gradient of the layer's bias; it tells a batch of r inputs from a larger one.
    batch_size : int or None, default=None
        Number of inputs, where it is known.

    Raises
    ------
    NotDetermined
        Where the batch has more inputs than the adapter's rank, or may have, or the factors are too poor.
    """
    r = len(first)
    if not second.any() or not of_first.any():
        raise NotDetermined(ONLY_FIRST.format(r))
    U, S, _ = np.linalg.svd(of_second, full_matrices=False)
    _, T, V = np.linalg.svd(of_first, full_matrices=False)
    noise_of_first, noise_of_second = _rounding(of_first, first), _rounding(of_second, second)
    b = min(_rank(S, noise_of_second, *of_second.shape), _rank(T, noise_of_first, *of_first.shape))
    _check_rank(b, r, U[:, :b], bias_grad, batch_size)
    U, V = U[:, :b], V[:b]
    right, left = np.linalg.pinv(V @ first.T), np.linalg.pinv(second.T @ U)
    core, other = (U.T @ of_second @ right) / scale, (left @ of_first @ V.T) / scale
    apart = float(np.linalg.norm(core - other) / np.linalg.norm(core))
    if apart > FITS:
        raise NotDetermined(
            f"the gradients of its adapter's two factors do not belong together ({apart:.0%} apart): several local "
            "steps, other weights, or noise"
        )
    levels = (
        _level(S, b, noise_of_second, of_second.shape) * _longest(right.T),
        _level(T, b, noise_of_first, of_first.shape) * _longest(left),
        float(np.sqrt(np.mean((core - other) ** 2))) * abs(scale),
    )
    noise = _noise(of_second, max(levels) / abs(scale), U, V)
    share = float(np.linalg.norm(noise, 2) / np.linalg.svd(core, compute_uv=False)[-1])
    if not share <= MOST_NOISE:
        raise NotDetermined(
            f"its adapter shows too little of the gradient: the errors are {share:.0%} of the least singular value, "
            f"and at most {MOST_NOISE:.0%} are in range"
        )
    return ProductGradient(U @ core @ V + noise, b)


def _check_rank(b: int, r: int, U: np.ndarray, bias_grad: np.ndarray | None, batch_size: int | None) -> None:
    """Raise where the gradient may have a larger rank than the factors show."""
    if batch_size is not None and batch_size > r:
        raise NotDetermined(f"its adapter has rank {r}, and the batch {batch_size} inputs")
    if b < r or batch_size is not None:
        return
    if bias_grad is None or np.linalg.norm(bias_grad - U @ (U.T @ bias_grad)) > FITS * np.linalg.norm(bias_grad):
        raise NotDetermined(
            f"its adapter has rank {r}, and the gradients of its factors have no less: the batch has {r} inputs (or "
            "rows) or more, or noise hides their number"
        )


def _rounding(gradient: np.ndarray, factor: np.ndarray) -> float:
    """Return the standard deviation of the rounding of a factor's gradient, or of the weights it is a difference of."""
    coarse = rounding_noise(gradient)
    if coarse is not None:
        return float(np.sqrt(np.mean(coarse**2)))
    of_numbers = float(UNIFORM * precision_of(gradient) * np.sqrt(np.mean(gradient**2)))
    step = step_of_stored_weights(factor, gradient)
    of_weights = 0.0 if step is None else step * np.sqrt(np.mean(np.spacing(np.abs(factor).astype(np.float32)) ** 2))
    return max(of_numbers, UNIFORM * float(of_weights))


def _rank(values: np.ndarray, noise: float, m: int, n: int) -> int:
    """Return the number of singular values above the noise, at the largest gap where rounding may be as large."""
    edge = noise * (np.sqrt(m) + np.sqrt(n))
    least, most = max(1, int(np.sum(values > MOST_ROUNDING * edge))), max(1, int(np.sum(values > edge)))
    floored = np.maximum(np.append(values, edge), edge)
    return least + int(np.argmax(floored[least - 1 : most] / floored[least : most + 1]))


def _level(values: np.ndarray, b: int, rounding: float, shape: tuple[int, ...]) -> float:
    """Return the standard deviation of the noise of a gradient: what is beyond its rank, at least its rounding."""
    m, n = shape
    beyond = float(np.sqrt(np.sum(values[b:] ** 2) / ((m - b) * (n - b)))) if b < min(m, n) else 0.0
    return max(beyond, rounding)


def _longest(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, axis=1).max())


def _noise(of_second: np.ndarray, level: float, U: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Draw noise beyond the row and column space, in proportion to the rows of a gradient."""
    rows = np.linalg.norm(of_second, axis=1, keepdims=True)
    drawn = np.random.default_rng(0).standard_normal((len(rows), V.shape[1]))
    noise = level * rows / np.sqrt(np.mean(rows**2)) * drawn
    noise -= U @ (U.T @ noise)
    noise -= (noise @ V.T) @ V
    return np.where(rows > 0, noise, 0.0)

"""From a layer's gradient to its factors: the number of inputs, and whether the bias counts as a further feature."""

from __future__ import annotations

import warnings
from dataclasses import replace
from numbers import Integral, Real

import numpy as np

from sparsedl_fl.layers.bias_as_input import with_bias_as_input
from sparsedl_fl.layers.blocks import in_double
from sparsedl_fl.layers.diagnosis import too_large, uncertain_size
from sparsedl_fl.layers.formats import rounding_noise
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.factors import LowRankGradient, cut
from sparsedl_fl.lowrank.measured import Measured
from sparsedl_fl.lowrank.spectrum import distinct_rank, leading_left, rank_above_rounding, rank_above_white_noise
from sparsedl_fl.wording import argument_with

__all__ = ["UnrelatedBias", "check_arguments", "factorize", "factorize_with_bias", "with_one_more_by_bias"]

FAR_OUTSIDE = 4.0
"""Distance of the bias gradient from the column space, over its noise, from which on one more input is tried. (Of 474
hostile problems 16 are beyond, and at 5 one more shows clearly: padded texts, entries that are missing, 8 bits.)"""


class UnrelatedBias(ValueError):
    """The bias gradient does not lie in the column space of the weight gradient."""


def factorize(
    layer_gradient: LayerGradient, batch_size: int | None = None, noise_level: float | None = None
) -> LowRankGradient:
    """Factorise a layer's gradient.

    Parameters
    ----------
    layer_gradient : LayerGradient
        Weights and gradient of the layer.
    batch_size : int or None, default=None
        Number of inputs; None takes the numerical rank, at the largest gap between the logarithms of neighbouring
        singular values (a multiple of the machine epsilon undercounts on gradients of partly trained networks).
    noise_level : float or None, default=None
        Standard deviation of the noise on each entry of the gradient, where it is known (DP-SGD); None estimates it for
        each row from what is beyond the rank.

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
    SPEAR (2024), Theorem 3.2; SPEAR++ (2025), Sec. 4.1. Halko, Martinsson and Tropp, "Finding structure with
    randomness", SIAM Review 2011, Algorithm 4.4, for gradients much larger than the batch.
    """
    check_arguments(batch_size, noise_level)
    G = in_double(layer_gradient.weight_grad)
    measured = Measured(G)
    # A dead unit's row of exact zeros must not count as the end of the numerical rank.
    limit = int(measured.alive.min())
    rounding = _rounding_of(layer_gradient, G)
    is_coarse, rounding = rounding is not None, rounding if batch_size is None else None
    b = batch_size if rounding is None else rank_above_rounding(G, rounding)
    if b is None or b < limit:
        is_open = b is None and not layer_gradient.is_update
        U, S, b = leading_left(measured, b, limit)
        above_noise = rank_above_white_noise(S, b, measured) if is_open else b
        b = above_noise if above_noise < limit else b
    if b >= limit:
        raise ValueError(too_large(layer_gradient, b, limit))
    if batch_size is not None:
        b = distinct_rank(S, b, LowRankGradient.clear_gap)
    found = cut(measured, U, S, b, noise_level, is_coarse)
    excess = _bias_excess(layer_gradient.bias_grad, found.left, found.noise_level, found.singular_values)
    if batch_size is None and rounding is None and not found.ends_clearly:
        warnings.warn(uncertain_size(layer_gradient, b, found.signal_to_noise), UserWarning, stacklevel=3)
    elif batch_size is not None and b < batch_size:
        named = argument_with("batch_size", batch_size)
        text = f"{named}, but only {b} inputs show above the noise: the others repeat them or have no loss"
        warnings.warn(text, UserWarning, stacklevel=3)
    return replace(found, bias_excess=excess)


def factorize_with_bias(
    layer_gradient: LayerGradient, batch_size: int | None = None, noise_level: float | None = None
) -> tuple[LayerGradient, LowRankGradient]:
    """Factorise a layer's gradient, with the bias as one more input where the batch needs it.

    With an input of zeros, or ``x`` and ``2 x``, the rank of ``G`` is one less than the batch size, and ``g`` lies
    outside its column space.

    Parameters
    ----------
    layer_gradient, batch_size, noise_level
        As of `factorize`.

    Returns
    -------
    layer_gradient : LayerGradient
        As it was given, or with the bias as one more input (see `sparsedl_fl.layers.bias_as_input`).
    factors : LowRankGradient
        Of its gradient.
    """
    try:
        return layer_gradient, factorize(layer_gradient, batch_size, noise_level)
    except UnrelatedBias as unrelated:
        given = with_bias_as_input(layer_gradient)
        try:
            return given, factorize(given, batch_size, noise_level)
        except ValueError:
            raise unrelated from None


def with_one_more_by_bias(
    layer_gradient: LayerGradient,
    factors: LowRankGradient,
    batch_size: int | None = None,
    noise_level: float | None = None,
) -> LayerGradient | None:
    """Return the layer with the bias as one more input, where that may show one more sample; None where it does not.

    Where ``x`` and ``1.02 x`` activate the same units but one, ``g`` lies outside the column space by that unit alone,
    which counts as noise of the bias gradient. (A batch of 18 digits behind 100 units, two of them so, of two classes:
    ``3e-4`` outside, and all inputs were off by that.) It may be noise as well: of a bias in half precision, say.

    Parameters
    ----------
    layer_gradient, factors
        As from `factorize_with_bias`.
    batch_size, noise_level
        As of `factorize`.
    """
    if factors.bias_excess < FAR_OUTSIDE or layer_gradient.constant_input is not None:
        return None
    given = with_bias_as_input(layer_gradient)
    try:
        with_bias = factorize(given, batch_size, noise_level)
    except ValueError:
        return None
    return given if with_bias.batch_size == len(factors.singular_values) + 1 and with_bias.ends_clearly else None


def _rounding_of(layer_gradient: LayerGradient, G: np.ndarray) -> np.ndarray | None:
    """Return the rounding of each row; the bias gradient may have been quantised with a scale of its own."""
    if layer_gradient.constant_input is None:
        return rounding_noise(G)
    of_weights, of_bias = rounding_noise(G[:, :-1]), rounding_noise(G[:, -1:].T)
    if of_weights is None or of_bias is None:
        return None
    n = G.shape[1]
    return np.sqrt(((n - 1) * of_weights**2 + of_bias**2) / n)


def check_arguments(batch_size: int | None, noise_level: float | None) -> None:
    """Raise ``ValueError`` for an invalid batch size or noise level."""
    is_size = isinstance(batch_size, Integral) and not isinstance(batch_size, bool) and batch_size >= 1
    if batch_size is not None and not is_size:
        raise ValueError(f"batch_size must be a positive integer or None, got {batch_size!r}")
    is_number = isinstance(noise_level, Real) and not isinstance(noise_level, bool)
    if noise_level is not None and not (is_number and np.isfinite(noise_level) and noise_level >= 0):
        raise ValueError(f"noise_level must be a non-negative number or None, got {noise_level!r}")


def _bias_excess(bias_grad: np.ndarray, left: np.ndarray, noise: np.ndarray, S: np.ndarray) -> float:
    """Return the noise of the bias gradient over that of the weight gradient, at least one, by ``g = D 1``.

    Some clients clip or round tensors one by one. Raises where ``g`` does not belong to the weight gradient.
    """
    m, b = left.shape
    within = left.T @ bias_grad
    outside = np.linalg.norm(bias_grad - left @ within)
    # The column space itself is only known to the noise over the singular values.
    amplification = 1 + np.linalg.norm(bias_grad) * np.sqrt(m) / S[b - 1]
    if outside > 100 * np.linalg.norm(noise) * amplification + 1e-3 * np.linalg.norm(bias_grad):
        raise UnrelatedBias(
            "bias_grad does not lie in the column space of weight_grad: they are not of the same layer and batch "
            f"(relative distance {outside / np.linalg.norm(bias_grad):.2g}), or "
            f"{argument_with('batch_size', b)} is too small"
        )
    expected = np.sqrt((m - b) * np.mean(noise**2) * (1 + np.sum((within / S) ** 2)))
    return max(1.0, float(outside / max(expected, np.finfo(float).tiny)))

"""The maximum-likelihood batch under noise, once it is known which units were active.

With Gaussian noise on every entry of ``G`` and ``g``, and zeros of ``D`` where a unit is inactive, the likeliest
batch minimises ``|G - D X^T|^2 + |g - D 1|^2`` over ``X`` and over the other entries of ``D``.
"""

from __future__ import annotations

import numpy as np

from sparsedl.arrays import as_tensor, chunks
from sparsedl_fl.activations import FlatPart
from sparsedl_fl.layers.blocks import times, transposed_times
from sparsedl_fl.layers.layer_gradient import LayerGradient

__all__ = ["maximum_likelihood"]

LOG_ODDS = -2.0
"""A unit counts as active above these log odds, odds of ``e^2`` against it: a wrong zero costs far more than a needless
parameter."""

SURELY_ACTIVE = 5.0
"""Deviations from which on an entry of ``D`` is surely not zero."""

MOST_ROUNDS, SMALL_CHANGE = 30, 1e-4
"""Largest number of rounds, and the relative change of the inputs at which they stop."""

_HALF_NORMAL_THIRD_MOMENT = 1.5957691216057308
_NORMAL_DENSITY = 0.3989422804014327


def active_units(
    gradients: np.ndarray, gradient_noise: np.ndarray, preactivations: np.ndarray, activation: FlatPart
) -> np.ndarray:
    """Decide which units were active for which input, by pre-activations and gradient.

    The uncertainty of an input's pre-activations shows at the units whose gradient is surely not zero: they are active,
    and those of them with a pre-activation in the zero-slope region show its error.

    Parameters
    ----------
    gradients : ndarray of shape (m, b)
        Estimate of ``D`` without any zeros imposed.
    gradient_noise : ndarray of shape (b,)
        Standard deviation of its entries.
    preactivations : ndarray of shape (m, b)
        Estimate of ``Z``.
    activation : FlatPart
        The activation, which says when a unit is active.

    Returns
    -------
    ndarray of shape (m, b) of bool
    """
    spread = preactivations.std(axis=0)
    sure = np.abs(gradients) > SURELY_ACTIVE * gradient_noise
    # With Gaussian errors e and a density p of active pre-activations near the kink, E depth^2 = p E|e|^3 / 6.
    density = 2 * _NORMAL_DENSITY / spread
    depth = activation.depth(as_tensor(preactivations)).numpy()
    cubes = np.sum(depth**2 * sure, axis=0) / np.maximum(sure.sum(axis=0), 1)
    uncertainty = np.maximum(np.cbrt(6 * cubes / (density * _HALF_NORMAL_THIRD_MOMENT)), 1e-6 * spread)
    forward = activation.log_odds_on(as_tensor(preactivations), as_tensor(uncertainty)).numpy()
    noise = gradient_noise**2
    signal = np.maximum(2 * np.mean(gradients**2, axis=0) - noise, noise)
    backward = 0.5 * (np.log(noise / (noise + signal)) + gradients**2 * (1 / noise - 1 / (noise + signal)))
    return forward + backward > LOG_ODDS


def maximum_likelihood(
    layer_gradient: LayerGradient, inputs: np.ndarray, noise_level: np.ndarray, activation: FlatPart
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decide which entries of ``D`` are zero, then minimise ``|G - D X^T|^2 + |g - D 1|^2`` over the others and ``X``.

    The fit alternates exact steps in ``D``, in ``X``, and in the scale of the inputs.

    Parameters
    ----------
    layer_gradient : LayerGradient
        Weights and gradients of the layer.
    inputs : ndarray of shape (b, n)
        Where to start.
    noise_level : ndarray of shape (m,)
        Standard deviation of the noise of each row of the gradient.
    activation : FlatPart
        What follows the layer.

    Returns
    -------
    gradients : ndarray of shape (m, b)
        ``D``.
    inputs : ndarray of shape (b, n)
        ``X^T``.
    preactivations : ndarray of shape (m, b)
        ``Z`` of the fitted inputs.
    """
    G, g = layer_gradient.weight_grad, layer_gradient.bias_grad
    moments = inputs @ inputs.T + 1
    gradients = np.linalg.solve(moments, (times(G, inputs.T) + g[:, None]).T).T
    gradient_noise = np.sqrt(np.mean(noise_level**2) * np.diag(np.linalg.inv(moments)))
    active = active_units(gradients, gradient_noise, layer_gradient.preactivations(inputs), activation)
    for _ in range(MOST_ROUNDS):
        gradients = _masked_solve(inputs @ inputs.T + 1, times(G, inputs.T) + g[:, None], active)
        # D X^T does not change when a column grows as its input shrinks: only g determines the scale.
        gradients = gradients * np.linalg.lstsq(gradients, g, rcond=None)[0]
        updated = np.linalg.lstsq(gradients.T @ gradients, transposed_times(G, gradients).T, rcond=None)[0]
        change = np.linalg.norm(updated - inputs) / np.linalg.norm(inputs)
        inputs = updated
        if change < SMALL_CHANGE:
            break
    return gradients, inputs, layer_gradient.preactivations(inputs)


def _masked_solve(moments: np.ndarray, products: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Solve the normal equations of each row of ``D`` for its active entries alone."""
    m, b = active.shape
    gradients = np.empty((m, b))
    for rows in chunks(m, b * b):
        free = active[rows].astype(float)
        systems = free[:, :, None] * free[:, None, :] * moments
        systems[:, np.arange(b), np.arange(b)] += (1 - free) * np.mean(np.diag(moments))
        gradients[rows] = np.linalg.solve(systems, (products[rows] * free)[..., None])[..., 0]
    return gradients

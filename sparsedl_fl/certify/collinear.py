"""Inputs on one line that come back as fewer, which their weights tell.

What the rest of the network returns is a smooth function ``d(t)`` along a line of inputs of one label, ``x + t u``: a
picture with more and with less contrast. Where it is hardly more than quadratic, ``sum_i d(t_i) (x + t_i u, 1)^T`` of
three inputs is that of *two* with other weights, as Gauss integrates a cubic with two nodes. These fulfil every
equation and are no inputs; but the gradient of one is not as large as that of an input.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl_fl.constraints import TailGradient

__all__ = ["ONE_INPUT", "errors_by_weights", "errors_of_lines"]

ONE_INPUT = 0.05
"""Share by which the gradient of an input may be larger or smaller than those of the others are, by what the rest of
the network says, for it to be that of one input; not varied."""


def errors_of_lines(
    rest: TailGradient, preactivations: np.ndarray, inputs: np.ndarray, gradients: np.ndarray
) -> np.ndarray:
    """Return how far each input may be off, root mean square, since several on a line may have come back as fewer.

    Parameters
    ----------
    rest : TailGradient
        What the rest of the network says of each input and label.
    preactivations, gradients : ndarray of shape (m, b)
        Of the inputs, and ``D``.
    inputs : ndarray of shape (b, n)
        The recovered batch.
    """
    z, columns = as_tensor(preactivations.T.copy()), as_tensor(gradients.T.copy())
    cosines = rest.compared(z, torch.arange(len(rest.shares)), normalized(columns, dim=1))[1]
    labels = cosines.argmax(dim=0)
    of_one = torch.linalg.vector_norm(replace(rest, labels=labels).at(z).gradients.detach(), dim=1)
    weights = torch.linalg.vector_norm(columns, dim=1) / of_one.clamp(min=torch.finfo(z.dtype).tiny)
    return errors_by_weights(inputs, labels.numpy(), weights.numpy(), told=rest.rest.loss is not None)


def errors_by_weights(inputs: np.ndarray, labels: np.ndarray, weights: np.ndarray, *, told: bool = False) -> np.ndarray:
    """Return the same where labels and weights are known.

    Let two inputs lie at ``mu - s`` and ``mu + s`` from another one. To first order in ``s^2`` they come back as one of
    weight ``2 - 6 s^2 / mu^2``, and the other one ``2 s^2 / mu`` off with the weight ``1 + 6 s^2 / mu^2``. So weights
    that are no whole numbers by ``e`` say that ``s = mu sqrt(e / 6)``, and that the other one is off by ``mu e / 3``.

    Parameters
    ----------
    inputs : ndarray of shape (b, n)
        The recovered batch.
    labels : ndarray of shape (b,) of int
        The label of each whose gradient is most like its own; inputs of two labels are never nearly one.
    weights : ndarray of shape (b,)
        How large the gradient of each is, over what the rest says of one input.
    told : bool, default=False
        Whether the loss was told: then inputs of one label that all have one weight have that of their class.

    Returns
    -------
    ndarray of shape (b,)
        Zero where every gradient is that of one input.

    Examples
    --------
    Three inputs at -1, 0 and 1 come back as two that are 0.18 off.

    >>> inputs = np.array([[-0.816], [0.816], [3.0], [5.0], [9.0]])
    >>> errors_by_weights(inputs, np.array([0, 0, 1, 1, 1]), np.array([1.5, 1.5, 1.0, 1.0, 1.0])).round(1)
    array([0.5, 0.5, 0. , 0. , 0. ])
    """
    ratios = weights / np.median(weights)
    copies = np.maximum(np.round(ratios), 1.0)
    off = np.abs(ratios - copies)
    noise = float(np.median(off))
    is_several = ~((np.abs(ratios - 1) <= max(ONE_INPUT, 5 * noise)) & np.isfinite(ratios))
    is_one_label = labels[:, None] == labels
    if told:
        spread = np.array([np.ptp(ratios[labels == label]) for label in labels])
        is_several &= ~(spread <= ONE_INPUT * ratios)
    if not is_several.any():
        return np.zeros(len(inputs))
    squares = np.sum(inputs**2, axis=1)
    apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * inputs @ inputs.T, 0.0) / inputs.shape[1])
    beside = np.maximum(np.maximum(off[:, None], off), noise)
    on_line = is_one_label & (is_several[:, None] | is_several) & ~np.eye(len(inputs), dtype=bool)
    errors = apart * np.where(is_several[:, None], np.sqrt(beside / 6), beside / 3)
    return np.max(np.where(on_line, errors, 0.0), axis=1, initial=0.0)

"""The outputs of a classifier's last layer in units of the rounding of their gradient.

Where a network is trained, the classes that a batch has none of have small probabilities, and small rows of the
gradient. A client's rounding is a share of each row, so these are as exact as the others, and where many inputs share a
label most of what tells them apart is there. A singular value decomposition takes it for the rounding of the large
rows. With outputs ``z' = s z`` the gradient has the rows ``G / s``, and the loss is that of ``z' / s``.
"""

from __future__ import annotations

import warnings

import numpy as np

from sparsedl_fl.activations import HEAD
from sparsedl_fl.layers.blocks import in_double, row_norms
from sparsedl_fl.layers.formats import rounding_noise
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.factorization import factorize

__all__ = ["in_units_of_rounding"]


def in_units_of_rounding(
    layer_gradient: LayerGradient, batch_size: int | None = None, *, small: float = 3e-3
) -> tuple[LayerGradient, np.ndarray]:
    """Return a gradient in such units where that shows the batch more clearly, and the units, of shape (m,).

    Parameters
    ----------
    layer_gradient : LayerGradient
        Of any layer; all but heads are left as they are, with units of one.
    batch_size : int or None, default=None
        Number of inputs, where it is known.
    small : float, default=3e-3
        Size of the smallest row over the largest from which on it is tried. (In a ResNet and a VGG of ours after 100
        steps smallest rows are 2e-4 to 2e-3 of the largest where 16 or 40 inputs share ten of 100 labels, and
        above 1e-2 where labels differ or nothing is trained: there searches go better without.)
    """
    G = layer_gradient.weight_grad
    ones = np.ones(len(G))
    if layer_gradient.activation != HEAD.name or layer_gradient.is_update:
        return layer_gradient, ones
    sizes = row_norms(G)
    if sizes.min() >= small * sizes.max() or rounding_noise(in_double(G)) is not None:
        return layer_gradient, ones
    # Powers of two change no digit, by which the client's precision is known.
    units = np.exp2(np.round(np.log2(np.where(sizes > 0, sizes / sizes.max(), 1.0))))
    counted = layer_gradient.in_units(units)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            before, after = (factorize(given, batch_size) for given in (layer_gradient, counted))
        except ValueError:
            return layer_gradient, ones
    # What looks like the end of the batch before may be that of its labels.
    shows_more = after.batch_size > before.batch_size or after.signal_to_noise > before.signal_to_noise
    # Of white noise the small rows hold nothing else, and show as many inputs as there are rows.
    is_in_range = after.ends_clearly and after.batch_size < len(G) / 2
    return (counted, units) if is_in_range and shows_more else (layer_gradient, ones)

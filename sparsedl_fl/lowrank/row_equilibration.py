"""Row equilibration of a classifier's last layer: rows of the gradient scaled so that their rounding is alike.

In a trained network, classes that are not in the batch have small probabilities, and small rows of the gradient. A
client's rounding is a share of each row, so that these are as exact as the others; where many inputs share a label,
they show most of the differences. A singular value decomposition takes them for rounding of the large rows. With
outputs ``z' = s z`` the gradient has the rows ``G / s``, and the loss is that of ``z' / s``.
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
    """Return a head with scaled rows where that shows the batch more clearly, and the scales, of shape (m,).

    Parameters
    ----------
    layer_gradient : LayerGradient
        Of any layer; all but heads are returned unchanged, with scales of one.
    batch_size : int or None, default=None
        Number of inputs, where it is known.
    small : float, default=3e-3
        Size of the smallest row over the largest below which it is tried. (In a ResNet and a VGG after 100 steps of
        training smallest rows are 2e-4 to 2e-3 of the largest where 16 or 40 inputs share ten of 100 labels, and above
        1e-2 where labels differ or nothing is trained: there searches do better without.)
    """
    G = layer_gradient.weight_grad
    ones = np.ones(len(G))
    if layer_gradient.activation != HEAD.name or layer_gradient.is_update:
        return layer_gradient, ones
    sizes = row_norms(G)
    if sizes.min() >= small * sizes.max() or rounding_noise(in_double(G)) is not None:
        return layer_gradient, ones
    # Powers of two change no digit, so that the client's precision can still be read.
    units = np.exp2(np.round(np.log2(np.where(sizes > 0, sizes / sizes.max(), 1.0))))
    scaled = layer_gradient.in_units(units)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            before, after = (factorize(given, batch_size) for given in (layer_gradient, scaled))
        except ValueError:
            return layer_gradient, ones
    # Without scaling the rank may be that of the labels alone.
    shows_more = after.batch_size > before.batch_size or after.signal_to_noise > before.signal_to_noise
    # Under white noise small rows hold noise alone, and show as many inputs as there are rows.
    is_in_range = after.ends_clearly and after.batch_size < len(G) / 2
    return (scaled, units) if is_in_range and shows_more else (layer_gradient, ones)

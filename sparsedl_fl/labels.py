"""The labels of recovered inputs: with the rest of the network each label says what gradient its input has."""

from __future__ import annotations

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.gradients import LayerGradient

__all__ = ["NO_LABEL", "labels_of"]

NO_LABEL = -1
"""Stands for a label that is not known."""


def labels_of(
    layer_gradient: LayerGradient,
    inputs: np.ndarray,
    gradients: np.ndarray,
    *,
    alike: float = 0.99,
    distinct: float = 10.0,
) -> np.ndarray:
    """Return the label of each input whose gradient fits that of one label and of no other.

    Parameters
    ----------
    layer_gradient : LayerGradient
        With the rest of the network, or without: then no label is known. The weights of a FedAvg client move, and no
        gradient is that of the weights sent out.
    inputs : ndarray of shape (k, n)
        Recovered inputs.
    gradients : ndarray of shape (m, k)
        Their columns of ``D``.
    alike : float, default=0.99
        Least cosine of the gradient and that of its label.
    distinct : float, default=10
        How many times further any other label has to be.

    Returns
    -------
    ndarray of shape (k,) of int
        `NO_LABEL` where it is not known: no loss of the kind expected, two inputs that came back as one, or a column
        that is not right.
    """
    found, rest = np.full(len(inputs), NO_LABEL), layer_gradient.rest
    if rest is None or layer_gradient.is_update or len(inputs) == 0:
        return found
    preactivations = as_tensor(layer_gradient.preactivations(inputs).T.copy())
    own = torch.nn.functional.normalize(as_tensor(gradients.T.copy()), dim=1)
    cosines = []
    for label in range(rest.n_labels(preactivations.shape[1])):
        expected = rest.directions(preactivations, label)
        cosines.append((expected * own).sum(dim=1))
    best, order = torch.sort(torch.stack(cosines), dim=0, descending=True)
    is_sure = (best[0] >= alike) & (1 - best[1] >= distinct * (1 - best[0]))
    return np.where(is_sure.numpy(), order[0].numpy(), NO_LABEL)

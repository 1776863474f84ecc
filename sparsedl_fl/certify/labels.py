"""The labels of recovered inputs: the network tail gives the gradient of an input for each label."""

from __future__ import annotations

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl_fl.activations import Identity
from sparsedl_fl.constraints.label_terms import NO_LABEL, distances_but_rounding
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.layers.network_tail import RestOfNetwork

__all__ = ["NO_LABEL", "labels_of", "labels_of_columns"]

ALIKE, DISTINCT = 0.99, 10.0
"""Least cosine of a gradient and that of its label, and the factor by which any other label has to be further."""

IN_LINE = 4.0
"""Distance from the column space over its noise, relative to the median, above which an input is between two labels.
(Of two batches of 40 from a trained VGG's head, one input with a wrong label had 6.1, one far off 8.9, and all others
that were certified up to 1.6.)"""

CLEAR, SHARE = 10.0, 0.3
"""Number of expected errors within which the gradient of a label has to lie, and beyond which that of any other; and
its largest distance relative to that of any other. Neither is varied."""


def labels_of(problem: LayerProblem, inputs: np.ndarray, gradients: np.ndarray, certified: np.ndarray) -> np.ndarray:
    """Return the label of each input whose gradient fits that of one label and of no other.

    The tail's gradient for that label lies in the column space and that for any other does not; or it is the input's
    own column.

    Parameters
    ----------
    problem : LayerProblem
        No label is known without a network tail, or of a FedAvg client, whose weights move.
    inputs : ndarray of shape (k, n)
        Recovered inputs.
    gradients : ndarray of shape (m, k)
        Their columns of ``D``.
    certified : ndarray of shape (k,) of bool
        Which inputs are certified; the others get no label.

    Returns
    -------
    ndarray of shape (k,) of int
        `NO_LABEL` where it is not known: another kind of loss, two samples found as one, or a wrong column.
    """
    tail, found = problem.tail, np.full(len(inputs), NO_LABEL)
    if tail is None or not certified.any():
        return found
    preactivations = as_tensor(problem.layer_gradient.preactivations(inputs[certified]).T.copy())
    own = normalized(as_tensor(gradients.T[certified]), dim=1)
    distance, cosine = tail.compared(preactivations, torch.arange(len(tail.shares)), own)
    sure = distances_but_rounding(tail.rest, tail.space, preactivations, tail.largest_tolerance)
    if sure is not None:  # where the network is sure of a label, the client's own rounding moves the small gradient
        at = sure[0], torch.arange(len(own))
        distance[at] = torch.minimum(distance[at], sure[1])
    best, order = torch.sort(1 - cosine, dim=0)
    nearest, by_distance = torch.sort(distance, dim=0)
    is_inside = nearest <= tail.largest_tolerance
    is_alone = is_inside[0] & (nearest[1] >= DISTINCT * nearest[0])
    is_own = (best[0] <= 1 - ALIKE) & (best[1] >= DISTINCT * best[0])
    # The label by the column, which is not exact, has to agree with the column space.
    of_own = distance.gather(0, order[:1])[0]
    agrees = (of_own <= tail.largest_tolerance) & (of_own < DISTINCT * nearest[0])
    labels = torch.where(is_alone & (~is_own | agrees), by_distance[0], NO_LABEL)
    labels = torch.where(is_own & agrees & ~is_alone, order[0], labels)
    # For piecewise linear activations, but at a head, a pattern is right or wrong, and nothing lies between.
    is_by_pattern = problem.activation.is_piecewise_linear and not isinstance(problem.activation, Identity)
    if not is_by_pattern:
        here = tail.at(preactivations)
        over_noise = here.distances / here.expected
        labels = torch.where(over_noise <= IN_LINE * over_noise.median(), labels, NO_LABEL)
    labels = _of_one_share(tail.rest, preactivations, as_tensor(gradients.T[certified]), labels)
    found[certified] = labels.numpy()
    return found


def labels_of_columns(
    tail: RestOfNetwork, preactivations: np.ndarray, gradients: np.ndarray, errors: np.ndarray
) -> np.ndarray:
    """Return the label of each input whose gradient is known, where it is that of one label and of no other.

    Parameters
    ----------
    tail : RestOfNetwork
        The network tail.
    preactivations, gradients : ndarray of shape (m, k)
        Of each input, and ``D``.
    errors : ndarray of shape (k,)
        Expected length of the error of each column of ``D``.

    Returns
    -------
    ndarray of shape (k,) of int
        `NO_LABEL` where it is not known.
    """
    z, columns = as_tensor(preactivations.T.copy()), as_tensor(gradients.T.copy())
    distances = []
    for label in range(tail.n_labels(z.shape[1])):
        expected = tail.gradients_for(z, label)
        squares = (expected**2).sum(dim=1).clamp_min(torch.finfo(z.dtype).tiny)
        # The share of an input in the loss: 1 / b, more for one that the batch holds twice, and never negative.
        weights = ((columns * expected).sum(dim=1) / squares).clamp_min(0.0)
        distances.append((columns - weights[:, None] * expected).norm(dim=1))
    nearest, order = torch.stack(distances).sort(dim=0)
    allowed = CLEAR * as_tensor(np.asarray(errors, dtype=np.float64))
    is_clear = (nearest[0] <= allowed) & (nearest[1] > allowed) & (nearest[0] <= SHARE * nearest[1])
    return _of_one_share(tail, z, columns, torch.where(is_clear, order[0], NO_LABEL)).numpy()


def _of_one_share(
    tail: RestOfNetwork, z: torch.Tensor, columns: torch.Tensor, labels: torch.Tensor, *, whole: float = 0.01
) -> torch.Tensor:
    """Return labels, none where a single output has numbers for targets.

    The sign of a single output's gradient gives a label, whatever the target. It is a true label where all inputs have
    the same share in the loss or a whole multiple of it, to within ``whole``: targets that are numbers give any share.
    """
    known = labels != NO_LABEL
    if not known.any() or tail.outputs(z[:1]).shape[1] > 1:
        return labels
    expected = tail.gradients_for(z[known], labels[known])
    shares = (columns[known] * expected).sum(dim=1) / expected.square().sum(dim=1).clamp_min(torch.finfo(z.dtype).tiny)
    multiples = shares / shares.min()
    is_one = known.sum() > 1 and bool(((multiples - multiples.round()).abs() <= whole * multiples).all())
    return labels if is_one else torch.full_like(labels, NO_LABEL)

"""The labels of recovered inputs: with the rest of the network each label says what gradient an input has."""

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
"""Least cosine of a gradient and that of its label, and how many times further any other label has to be."""

IN_LINE = 4.0
"""Times the distance from the column space that is usual, by its noise, from which on an input is somewhere between two
labels. (Of two batches of 40 from a VGG's head, trained, one with a wrong label had 6.1, one far off 8.9, and all
others that were certified up to 1.6.)"""

CLEAR, SHARE = 10.0, 0.3
"""Expected errors within which the gradient of a label has to lie, and beyond which that of any other; and the most
that it may be off by, against the distance of any other. Neither is varied."""


def labels_of(problem: LayerProblem, inputs: np.ndarray, gradients: np.ndarray, certified: np.ndarray) -> np.ndarray:
    """Return the label of each input whose gradient fits that of one label and of no other.

    What the label says lies in the column space and what any other says does not; or it is the input's own column.

    Parameters
    ----------
    problem : LayerProblem
        With the rest of the network, or without: then no label is known. The weights of a FedAvg client move, and no
        gradient is that of the weights sent out.
    inputs : ndarray of shape (k, n)
        Recovered inputs.
    gradients : ndarray of shape (m, k)
        Their columns of ``D``.
    certified : ndarray of shape (k,) of bool
        Which inputs are known: what is not may be anything, with any label.

    Returns
    -------
    ndarray of shape (k,) of int
        `NO_LABEL` where it is not known: no loss of the kind expected, two inputs that came back as one, or a column
        that is not right.
    """
    rest, found = problem.tail, np.full(len(inputs), NO_LABEL)
    if rest is None or not certified.any():
        return found
    preactivations = as_tensor(problem.layer_gradient.preactivations(inputs[certified]).T.copy())
    own = normalized(as_tensor(gradients.T[certified]), dim=1)
    distance, cosine = rest.compared(preactivations, torch.arange(len(rest.shares)), own)
    sure = distances_but_rounding(rest.rest, rest.space, preactivations, rest.largest_tolerance)
    if sure is not None:  # the client's own rounding moves what is left where the network is sure of a label
        at = sure[0], torch.arange(len(own))
        distance[at] = torch.minimum(distance[at], sure[1])
    best, order = torch.sort(1 - cosine, dim=0)
    nearest, by_distance = torch.sort(distance, dim=0)
    is_inside = nearest <= rest.largest_tolerance
    is_alone = is_inside[0] & (nearest[1] >= DISTINCT * nearest[0])
    is_own = (best[0] <= 1 - ALIKE) & (best[1] >= DISTINCT * best[0])
    # What a column says that is not exact has to agree with what the column space says.
    of_own = distance.gather(0, order[:1])[0]
    agrees = (of_own <= rest.largest_tolerance) & (of_own < DISTINCT * nearest[0])
    labels = torch.where(is_alone & (~is_own | agrees), by_distance[0], NO_LABEL)
    labels = torch.where(is_own & agrees & ~is_alone, order[0], labels)
    # Behind straight pieces, but at a head, a pattern is right or not, and nothing lies between.
    is_by_pattern = problem.activation.is_piecewise_linear and not isinstance(problem.activation, Identity)
    if not is_by_pattern:
        here = rest.at(preactivations)
        over_noise = here.distances / here.expected
        labels = torch.where(over_noise <= IN_LINE * over_noise.median(), labels, NO_LABEL)
    labels = _of_one_share(rest.rest, preactivations, as_tensor(gradients.T[certified]), labels)
    found[certified] = labels.numpy()
    return found


def labels_of_columns(
    rest: RestOfNetwork, preactivations: np.ndarray, gradients: np.ndarray, errors: np.ndarray
) -> np.ndarray:
    """Return the label of each input whose gradient is known, where it is that of one label and of no other.

    Parameters
    ----------
    rest : RestOfNetwork
        What lies behind the layer.
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
    for label in range(rest.n_labels(z.shape[1])):
        expected = rest.gradients_for(z, label)
        squares = (expected**2).sum(dim=1).clamp_min(torch.finfo(z.dtype).tiny)
        # The share of an input in the loss: 1 / b, more for one that the batch holds twice, and never negative.
        weights = ((columns * expected).sum(dim=1) / squares).clamp_min(0.0)
        distances.append((columns - weights[:, None] * expected).norm(dim=1))
    nearest, order = torch.stack(distances).sort(dim=0)
    allowed = CLEAR * as_tensor(np.asarray(errors, dtype=np.float64))
    is_clear = (nearest[0] <= allowed) & (nearest[1] > allowed) & (nearest[0] <= SHARE * nearest[1])
    return _of_one_share(rest, z, columns, torch.where(is_clear, order[0], NO_LABEL)).numpy()


def _of_one_share(
    rest: RestOfNetwork, z: torch.Tensor, columns: torch.Tensor, labels: torch.Tensor, *, whole: float = 0.01
) -> torch.Tensor:
    """Return labels without those that a single output's sign alone has for them.

    There is a label for each sign, whatever the target is. Labels are what they are called where all inputs have the
    same share in the loss, or a whole multiple of it, to within ``whole``: targets that are numbers leave any.
    """
    known = labels != NO_LABEL
    if not known.any() or rest.outputs(z[:1]).shape[1] > 1:
        return labels
    expected = rest.gradients_for(z[known], labels[known])
    shares = (columns[known] * expected).sum(dim=1) / expected.square().sum(dim=1).clamp_min(torch.finfo(z.dtype).tiny)
    multiples = shares / shares.min()
    is_one = known.sum() > 1 and bool(((multiples - multiples.round()).abs() <= whole * multiples).all())
    return labels if is_one else torch.full_like(labels, NO_LABEL)

"""Samples on one line of which fewer are found: the sizes of their gradients show it.

The network tail's gradient is a smooth function ``d(t)`` along a line of samples of one label, ``x + t u``: an image
with more and with less contrast. Where it is nearly quadratic, ``sum_i d(t_i) (x + t_i u, 1)^T`` of three samples is
that of *two* with other weights, as Gauss integrates a cubic with two nodes. These two fulfil every equation and are no
samples; but their gradients have another size than that of one sample.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl_fl.constraints import TailGradient
from sparsedl_fl.constraints.label_terms import PREDICTION_ROUNDING

__all__ = ["ONE_INPUT", "WeightsByTail", "errors_by_weights"]

ONE_INPUT = 0.05
"""Relative deviation of the size of a gradient from the network tail's, against the others, up to which it is that of
one sample; not varied."""

FEWEST = 3
"""Number of inputs of one label from which on their weights say what the loss weighs it by; not varied."""


class WeightsByTail(NamedTuple):
    """The size of each gradient over that of one sample by the network tail.

    Attributes
    ----------
    labels : ndarray of shape (b,) of int
        The label of each whose gradient is most like its own, by its sign as well: those of two classes differ in sign
        alone.
    weights : ndarray of shape (b,)
        The sizes, up to a common factor. Of two near-duplicates that are recovered as one it is twice the others'.
    doubts : ndarray of shape (b,)
        Relative change by the client's rounding, where it is sure of a label.
    is_proven : ndarray of shape (b,) of bool
        Inputs that are certified but for their near-duplicates: what one sample has is known by these.
    """

    labels: np.ndarray
    weights: np.ndarray
    doubts: np.ndarray
    is_proven: np.ndarray

    @classmethod
    def of(
        cls, tail: TailGradient, preactivations: np.ndarray, gradients: np.ndarray, is_proven: np.ndarray
    ) -> WeightsByTail:
        """Return them for ``Z`` and ``D`` of shape (m, b)."""
        z, columns = as_tensor(preactivations.T.copy()), as_tensor(gradients.T.copy())
        cosines = tail.compared(z, torch.arange(len(tail.shares)), normalized(columns, dim=1))[1]
        labels = cosines.argmax(dim=0)
        of_one = torch.linalg.vector_norm(replace(tail, labels=labels).at(z).gradients.detach(), dim=1)
        weights = torch.linalg.vector_norm(columns, dim=1) / of_one.clamp(min=torch.finfo(z.dtype).tiny)
        doubts, in_doubt = torch.zeros_like(weights), tail.rest.with_doubt(z, labels)
        if in_doubt is not None:
            doubts = PREDICTION_ROUNDING * float(tail.space.precision) * torch.linalg.vector_norm(in_doubt[2], dim=1)
            doubts /= of_one.clamp(min=torch.finfo(z.dtype).tiny)
        return cls(labels.numpy(), weights.numpy(), doubts.numpy(), is_proven)

    @property
    def relative(self) -> np.ndarray:
        """The weights over that of one sample; of its own label where it has enough, as a loss may weigh labels."""
        found = self.weights / self._of_one_sample(self.weights[self.is_proven])
        for label in np.unique(self.labels[self.is_proven]):
            own = self.labels == label
            if np.sum(own & self.is_proven) >= FEWEST:
                found[own] = self.weights[own] / self._of_one_sample(self.weights[own & self.is_proven])
        return found

    @property
    def are_no_input(self) -> np.ndarray:
        """Which gradients have another size than that of one sample, against the others."""
        off = np.abs(self.relative - 1)
        noise = _lower_quartile(off[self.is_proven])
        return ~(off <= np.maximum(max(ONE_INPUT, 5 * noise), self.doubts))

    @staticmethod
    def _of_one_sample(weights: np.ndarray) -> float:
        """Return the lower quartile: half of the inputs may be pairs, and some mixtures with less than one sample's."""
        found = _lower_quartile(weights)
        return found if np.isfinite(found) and found > np.finfo(float).eps * np.max(weights, initial=0.0) else 1.0

    def errors(self, inputs: np.ndarray, reach: np.ndarray | float, *, is_loss_given: bool) -> np.ndarray:
        """Return the errors that are due to fewer inputs found than lie on a line (see `errors_by_weights`)."""
        return errors_by_weights(inputs, self.labels, self.weights, is_loss_given=is_loss_given, reach=reach)


def _lower_quartile(numbers: np.ndarray) -> float:
    """Return the number at a quarter, rounded down; zero of none."""
    return float(np.quantile(numbers, 0.25, method="lower")) if len(numbers) else 0.0


def errors_by_weights(
    inputs: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    *,
    is_loss_given: bool = False,
    reach: np.ndarray | float = np.inf,
) -> np.ndarray:
    """Return the root mean square error of each input that is due to fewer samples found than lie on a line.

    Let two samples lie at ``mu - s`` and ``mu + s`` from another one. To first order in ``s^2`` they are found as one
    of weight ``2 - 6 s^2 / mu^2``, and the other one is ``2 s^2 / mu`` off with the weight ``1 + 6 s^2 / mu^2``. So
    weights off a whole number by ``e`` give ``s = mu sqrt(e / 6)``, and the other one is off by ``mu e / 3``.

    Parameters
    ----------
    inputs : ndarray of shape (b, n)
        The recovered batch.
    labels : ndarray of shape (b,) of int
        The label of each whose gradient is most like its own; samples of two labels are never found as one.
    weights : ndarray of shape (b,)
        Size of the gradient of each, over the network tail's for one sample.
    is_loss_given : bool, default=False
        Whether the caller gave the loss: then one weight shared by all inputs of a label is that of their class.
    reach : ndarray of shape (b,) or float, default=np.inf
        How far from each a gradient is smooth: where a unit has a kink, no line goes further.

    Returns
    -------
    ndarray of shape (b,)
        Zero where every gradient is that of one sample.

    Examples
    --------
    Three samples at -1, 0 and 1 are found as two that are 0.18 off.

    >>> inputs = np.array([[-0.816], [0.816], [3.0], [5.0], [9.0]])
    >>> errors_by_weights(inputs, np.array([0, 0, 1, 1, 1]), np.array([1.5, 1.5, 1.0, 1.0, 1.0])).round(1)
    array([0.5, 0.5, 0. , 0. , 0. ])
    """
    ratios = weights / np.nanmedian(weights)
    copies = np.maximum(np.round(ratios), 1.0)
    off = np.abs(ratios - copies)
    noise = float(np.nanmedian(off))
    is_several = ~((np.abs(ratios - 1) <= max(ONE_INPUT, 5 * noise)) & np.isfinite(ratios))
    is_one_label = labels[:, None] == labels
    if is_loss_given:
        spread = np.array([np.ptp(ratios[labels == label]) for label in labels])
        is_several &= ~(spread <= ONE_INPUT * ratios)
    if not is_several.any():
        return np.zeros(len(inputs))
    squares = np.sum(inputs**2, axis=1)
    apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * inputs @ inputs.T, 0.0) / inputs.shape[1])
    beside = np.maximum(np.maximum(off[:, None], off), noise)
    is_near = apart <= reach + np.reshape(reach, (-1, 1))
    on_line = is_near & is_one_label & (is_several[:, None] | is_several) & ~np.eye(len(inputs), dtype=bool)
    errors = apart * np.where(is_several[:, None], np.sqrt(beside / 6), beside / 3)
    return np.max(np.where(on_line, errors, 0.0), axis=1, initial=0.0)

"""Label likelihood, and how far the gradient for each label is from the column space of the layer's gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import nnls

from sparsedl_fl.constraints.column_space import ColumnSpace
from sparsedl_fl.layers.network_tail import RestOfNetwork

__all__ = [
    "ANYWHERE",
    "NO_LABEL",
    "PREDICTION_ROUNDING",
    "LabelTerms",
    "distances_but_rounding",
    "distances_by_label",
    "likely_labels",
]

NO_LABEL = -1
"""Stands for an unknown label."""

ANYWHERE = 0.2
"""Probability that goes to all labels alike, whatever the estimate of their shares."""

PREDICTION_ROUNDING = 4.0
"""Rounding of a prediction's difference from one, in units of the last place: half a unit each for an exponential, a
sum, a logarithm, an exponential again and the difference make 2.5."""

VISIBLE = 0.1
"""Share of a tolerance up to which gradients moved by rounding are not looked at. With 0 and 0.1 labels are the same on
96 batches of 16 (ReLU, GELU and tanh, trained to losses of 3 to 3e-6); not varied otherwise."""


@dataclass(frozen=True)
class LabelTerms:
    """What a label adds to the gradient, where that is the same for all inputs: at a classifier's last layer.

    The square of ``d + t`` outside of the column space is that of ``d``, that of ``t`` and twice their product, so a
    thousand labels take two matrix products and no pass through the loss for each. Only in double precision: in single,
    the squares nearly cancel.

    Attributes
    ----------
    terms : torch.Tensor of shape (n_labels, m)
        ``t``, added to the gradient of the first label.
    weighted, outside : torch.Tensor of shape (n_labels, m)
        The same weighted by the noise of each output, and its part outside of the column space.
    """

    terms: torch.Tensor
    weighted: torch.Tensor
    outside: torch.Tensor

    @classmethod
    def of(cls, tail: RestOfNetwork, space: ColumnSpace) -> LabelTerms | None:
        """Return the terms, or None where they depend on the input."""
        terms = tail.label_terms(len(space.weights))
        if terms is None:
            return None
        weighted = terms * space.weights
        return cls(terms, weighted, space.outside(weighted))

    def gradients(self, tail: RestOfNetwork, preactivations: torch.Tensor) -> torch.Tensor:
        """Return the gradients of the first label at the scale of the terms, which those of the second determine.

        The scale of a loss that is a mean over its rows depends on their number.
        """
        first, second = (tail.gradients_for(preactivations, label) for label in (0, 1))
        term = self.terms[1]
        return first * (term.square().sum() / ((second - first) @ term).mean())

    def distances(self, gradients: torch.Tensor, space: ColumnSpace) -> torch.Tensor:
        """Return relative distances of shape (n_labels, n) for gradients of the first label, of shape (n, m)."""
        weighted = gradients * space.weights
        squares = _squares_of_sums(self.outside, space.outside(weighted))
        return (squares / _squares_of_sums(self.weighted, weighted)).sqrt()

    def cosines(self, gradients: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """Return cosines of shape (n_labels, n) with unit rows of shape (n, m)."""
        along = (gradients * own).sum(dim=1) + self.terms @ own.T
        return along / _squares_of_sums(self.terms, gradients).sqrt()


def distances_by_label(
    tail: RestOfNetwork,
    space: ColumnSpace,
    terms: LabelTerms | None,
    preactivations: torch.Tensor,
    among: torch.Tensor,
    own: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how far the gradients of some labels are from the column space, and their cosines with some rows.

    Parameters
    ----------
    tail, space : RestOfNetwork, ColumnSpace
        The network tail, and the column space of ``D``.
    terms : LabelTerms or None
        What a label adds, where that is the same for all inputs.
    preactivations : torch.Tensor of shape (n, m)
        ``z``.
    among : torch.Tensor of shape (k,) of int
        The labels.
    own : torch.Tensor of shape (n, m) or None, default=None
        Unit rows; None asks for no cosines, which are zero then.

    Returns
    -------
    distances, cosines : torch.Tensor of shape (k, n)
        Relative distances and cosines.
    """
    if terms is not None:
        gradients = terms.gradients(tail, preactivations)
        distances = terms.distances(gradients, space)[among]
        return distances, torch.zeros_like(distances) if own is None else terms.cosines(gradients, own)[among]
    by_label = [tail.directions(preactivations, int(label)) for label in among]
    distances = torch.stack([space.distances_of(directions) for directions in by_label])
    if own is None:
        return distances, torch.zeros_like(distances)
    return distances, torch.stack([(directions * own).sum(dim=1) for directions in by_label])


def distances_but_rounding(
    tail: RestOfNetwork,
    space: ColumnSpace,
    preactivations: torch.Tensor,
    enough: float,
    *,
    units: float = PREDICTION_ROUNDING,
    n_draws: int = 16,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the label with the smallest gradient for each row, and its least distance from the space within rounding.

    Parameters
    ----------
    tail, space : RestOfNetwork, ColumnSpace
        The network tail, and the column space of ``D``.
    preactivations : torch.Tensor of shape (n, m)
        ``z``.
    enough : float
        Distance at which the search for a smaller one stops.
    units : float, default=4
        Rounding of the difference of two numbers near one, in units of the last place (see `PREDICTION_ROUNDING`).
    n_draws : int, default=16
        Number of perturbations within the rounding that are tried as well: training leaves units at their kinks, and
        rounding decides on which side the client was.

    Returns
    -------
    labels, distances : torch.Tensor of shape (n,), or None
        None where the outputs are not one for each label.
    """
    most, generator = units * float(space.precision), torch.Generator().manual_seed(0)
    sizes, labels, least = preactivations.square().mean(dim=1, keepdim=True).sqrt(), None, None
    for number in range(n_draws + 1):
        drawn = torch.randn(preactivations.shape, generator=generator, dtype=preactivations.dtype)
        found = tail.with_doubt(preactivations + most * sizes * drawn if number else preactivations, labels)
        if found is None:
            return None
        labels, gradients, changes = found
        outside, along = (space.outside(rows * space.weights) for rows in (gradients, changes))
        squares = along.square().sum(dim=1).clamp(min=torch.finfo(along.dtype).tiny)
        best = (-(outside * along).sum(dim=1) / squares).clamp(-most, most)
        distances = space.distances_of(gradients + best[:, None] * changes)
        least = distances if least is None else torch.minimum(least, distances)
        # Where the network is not sure of a label, rounding moves its gradient too little to show.
        may_move = most * changes.norm(dim=1) > VISIBLE * enough * gradients.norm(dim=1)
        if not (may_move & (least > enough)).any():
            break
    return labels, least


def likely_labels(
    tail: RestOfNetwork, terms: LabelTerms | None, drawn: torch.Tensor, mean_gradient: torch.Tensor, batch_size: int
) -> torch.Tensor:
    """Return how likely each label is, from the mean of all gradients and that of each label, of shape (n_labels,).

    Parameters
    ----------
    tail : RestOfNetwork
        The network tail.
    terms : LabelTerms or None
        What a label adds, where that is the same for all inputs.
    drawn : torch.Tensor of shape (n, m)
        Pre-activations of prior draws.
    mean_gradient : torch.Tensor of shape (m,)
        ``g``, the gradient of the bias.
    batch_size : int
        Number of inputs.
    """
    n_labels = tail.n_labels(len(mean_gradient))
    if terms is None:
        by_label = torch.stack([tail.gradients_for(drawn, label).mean(dim=0) for label in range(n_labels)])
    else:
        by_label = terms.terms + terms.gradients(tail, drawn).mean(dim=0)
    by_label, mean_gradient = tail.in_own_units(by_label), tail.in_own_units(mean_gradient)
    counts = torch.from_numpy(nnls(by_label.T.numpy(), mean_gradient.numpy())[0])
    if n_labels > 2 * batch_size:  # most labels are absent
        counts = (counts - _open_share(by_label, counts)).clamp(min=0)
    has_gradient = by_label.any(dim=1).to(counts.dtype)  # no column has a label that the loss leaves out
    anything = has_gradient / has_gradient.sum()
    return anything if counts.sum() == 0 else (1 - ANYWHERE) * counts / counts.sum() + ANYWHERE * anything


def _open_share(by_label: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the part of counts, of which most are zero, that is a mixture of all labels with no gradient.

    With cross-entropy that mixture is the network's own prediction.
    """
    mixture = torch.linalg.eigh(by_label @ by_label.T)[1][:, 0]
    mixture = mixture * mixture.sum().sign()
    return mixture * (counts / mixture).median() if (mixture > 0).all() else counts.median()


def _squares_of_sums(terms: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return ``|t + r|^2`` for each pair of rows, of shape (k, n)."""
    squares = terms.square().sum(dim=1)[:, None] + 2 * terms @ rows.T + rows.square().sum(dim=1)
    return squares.clamp(min=torch.finfo(rows.dtype).tiny)

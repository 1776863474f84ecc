"""What labels say: how likely each is, and how far its gradient is from the column space of the layer's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import nnls

from sparsedl_fl.constraints.column_space import ColumnSpace
from sparsedl_fl.layers.network_tail import RestOfNetwork

__all__ = ["ANYWHERE", "NO_LABEL", "LabelTerms", "distances_but_rounding", "distances_by_label", "likely_labels"]

NO_LABEL = -1
"""What stands for a label that is not known."""

ANYWHERE = 0.2
"""Share of labels that estimates deny."""

VISIBLE = 0.1
"""Share of a tolerance up to which rounding moves no gradient that shows. With 0 and with 0.1 labels are the same on 96
batches of 16 (ReLU, GELU and tanh, trained to losses of 3 to 3e-6); not varied otherwise."""


@dataclass(frozen=True)
class LabelTerms:
    """What a label adds to the gradient, where that is the same for all inputs: behind a classifier's last layer.

    The square of ``d + t`` outside of the column space is that of ``d``, that of ``t`` and twice their product, so that
    a thousand labels take two products of matrices and no way through the loss for each. In double precision alone:
    squares that nearly cancel say nothing in single.

    Attributes
    ----------
    terms : torch.Tensor of shape (n_labels, m)
        ``t``: what is added to the gradient of the first label.
    weighted, outside : torch.Tensor of shape (n_labels, m)
        The same in units of the noise of each output, and what of that lies outside of the column space.
    """

    terms: torch.Tensor
    weighted: torch.Tensor
    outside: torch.Tensor

    @classmethod
    def of(cls, rest: RestOfNetwork, space: ColumnSpace) -> LabelTerms | None:
        """Return the terms, or None where what labels add depends on the input."""
        terms = rest.label_terms(len(space.weights))
        if terms is None:
            return None
        weighted = terms * space.weights
        return cls(terms, weighted, space.outside(weighted))

    def gradients(self, rest: RestOfNetwork, preactivations: torch.Tensor) -> torch.Tensor:
        """Return the gradients of the first label, at the scale of the terms: those of the second tell it.

        A loss that is a mean over its rows has a scale that depends on how many there are.
        """
        first, second = (rest.gradients_for(preactivations, label) for label in (0, 1))
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
    rest: RestOfNetwork,
    space: ColumnSpace,
    terms: LabelTerms | None,
    preactivations: torch.Tensor,
    among: torch.Tensor,
    own: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how far the gradients of some labels are from the column space, and their cosines with some rows.

    Parameters
    ----------
    rest, space : RestOfNetwork, ColumnSpace
        What lies behind the layer, and where the columns of ``D`` lie.
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
        gradients = terms.gradients(rest, preactivations)
        distances = terms.distances(gradients, space)[among]
        return distances, torch.zeros_like(distances) if own is None else terms.cosines(gradients, own)[among]
    by_label = [rest.directions(preactivations, int(label)) for label in among]
    distances = torch.stack([space.distances_of(directions) for directions in by_label])
    if own is None:
        return distances, torch.zeros_like(distances)
    return distances, torch.stack([(directions * own).sum(dim=1) for directions in by_label])


def distances_but_rounding(
    rest: RestOfNetwork,
    space: ColumnSpace,
    preactivations: torch.Tensor,
    enough: float,
    *,
    units: float = 4.0,
    n_draws: int = 16,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the label that leaves each row least gradient, and how far that is from the space but for rounding.

    Parameters
    ----------
    rest, space : RestOfNetwork, ColumnSpace
        What lies behind the layer, and where the columns of ``D`` lie.
    preactivations : torch.Tensor of shape (n, m)
        ``z``.
    enough : float
        Distance that needs to be no smaller.
    units : float, default=4
        Units of rounding that the difference of two numbers near one may be off by: half a unit each of an exponential,
        a sum, a logarithm, an exponential again and the difference make 2.5.
    n_draws : int, default=16
        Places within the rounding that are tried as well: training leaves units at their kinks, where it says on which
        side of them the client was.

    Returns
    -------
    labels, distances : torch.Tensor of shape (n,), or None
        None where the outputs are not one for each label.
    """
    most, generator = units * float(space.precision), torch.Generator().manual_seed(0)
    sizes, labels, least = preactivations.square().mean(dim=1, keepdim=True).sqrt(), None, None
    for number in range(n_draws + 1):
        drawn = torch.randn(preactivations.shape, generator=generator, dtype=preactivations.dtype)
        found = rest.with_doubt(preactivations + most * sizes * drawn if number else preactivations, labels)
        if found is None:
            return None
        labels, gradients, changes = found
        outside, along = (space.outside(rows * space.weights) for rows in (gradients, changes))
        squares = along.square().sum(dim=1).clamp(min=torch.finfo(along.dtype).tiny)
        best = (-(outside * along).sum(dim=1) / squares).clamp(-most, most)
        distances = space.distances_of(gradients + best[:, None] * changes)
        least = distances if least is None else torch.minimum(least, distances)
        # Where the network is not sure, rounding moves nothing that shows.
        may_move = most * changes.norm(dim=1) > VISIBLE * enough * gradients.norm(dim=1)
        if not (may_move & (least > enough)).any():
            break
    return labels, least


def likely_labels(
    rest: RestOfNetwork, terms: LabelTerms | None, places: torch.Tensor, mean_gradient: torch.Tensor, batch_size: int
) -> torch.Tensor:
    """Return how likely each label is, from the mean of all gradients and that of each label, of shape (n_labels,).

    Parameters
    ----------
    rest : RestOfNetwork
        What lies behind the layer.
    terms : LabelTerms or None
        What a label adds, where that is the same for all inputs.
    places : torch.Tensor of shape (n, m)
        Typical pre-activations.
    mean_gradient : torch.Tensor of shape (m,)
        ``g``, the gradient of the bias.
    batch_size : int
        Number of inputs.
    """
    n_labels = rest.n_labels(len(mean_gradient))
    if terms is None:
        by_label = torch.stack([rest.gradients_for(places, label).mean(dim=0) for label in range(n_labels)])
    else:
        by_label = terms.terms + terms.gradients(rest, places).mean(dim=0)
    by_label, mean_gradient = rest.in_own_units(by_label), rest.in_own_units(mean_gradient)
    counts = torch.from_numpy(nnls(by_label.T.numpy(), mean_gradient.numpy())[0])
    if n_labels > 2 * batch_size:  # most labels are not there
        counts = (counts - _open_share(by_label, counts)).clamp(min=0)
    leaves_some = by_label.any(dim=1).to(counts.dtype)  # a label that the loss leaves out is that of no column
    anything = leaves_some / leaves_some.sum()
    return anything if counts.sum() == 0 else (1 - ANYWHERE) * counts / counts.sum() + ANYWHERE * anything


def _open_share(by_label: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return how much of counts, of which most are zero, is a mixture of all labels that adds up to no gradient.

    With cross-entropy that mixture is what the network itself takes to be likely.
    """
    mixture = torch.linalg.eigh(by_label @ by_label.T)[1][:, 0]
    mixture = mixture * mixture.sum().sign()
    return mixture * (counts / mixture).median() if (mixture > 0).all() else counts.median()


def _squares_of_sums(terms: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return ``|t + r|^2`` for each pair of rows, of shape (k, n)."""
    squares = terms.square().sum(dim=1)[:, None] + 2 * terms @ rows.T + rows.square().sum(dim=1)
    return squares.clamp(min=torch.finfo(rows.dtype).tiny)

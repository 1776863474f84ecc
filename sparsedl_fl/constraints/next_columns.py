"""Deflation by the next layer's columns: each known sample takes one dimension from the others' activation subspace.

With ``G2 = D2 A^T = U2 S2 V2^T`` every activation is ``a_i = V2 S2 p_i`` and every column ``d_i = U2 q_i``, and
``p_i q_j = 0`` for different samples: a known sample with its column leaves the others one dimension less.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized, smallest_eigenvectors
from sparsedl_fl.activations import resolve
from sparsedl_fl.constraints.label_terms import NO_LABEL
from sparsedl_fl.constraints.many_samples import ManySamplesProblem

__all__ = ["NextColumns"]

TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class NextColumns:
    """The next layer's columns of known samples, by zeros where its units are inactive, or by the network tail.

    Attributes
    ----------
    problem : ManySamplesProblem
        The layer, and the next one.
    surely_off : float, default=1e-3
        Share of the spread of pre-activations by which a unit of the next layer has to be inactive to count as that.
    of_others : float, default=0.1
        Weight of the other samples, which are orthogonal to the column, relative to zeros.
    determined : float, default=1e-6
        Second smallest eigenvalue, over the mean of all, above which the column is determined.
    vanishing, alike : float, default=1e-9 and 1e-3
        Smallest eigenvalue, over the mean, up to which the zeros exist; and the residual of the tail's gradient for a
        label, relative, up to which that gradient and a column agree.
    distinct : float, default=10
        Factor by which the residual of every other label has to be larger.
    own_product : float, default=1e-3
        Overlap of a sample with the column of another one up to which both may be right.
    """

    problem: ManySamplesProblem
    surely_off: float = 1e-3
    of_others: float = 0.1
    determined: float = 1e-6
    vanishing: float = 1e-9
    alike: float = 1e-3
    distinct: float = 10.0
    own_product: float = 1e-3

    @property
    def left(self) -> torch.Tensor:
        """``U2``, of shape (k, b)."""
        return as_tensor(self.problem.next_layer.right.T.copy())

    def subspace_without(self, whitened: torch.Tensor) -> torch.Tensor:
        """Return an orthonormal basis, as columns, of the activation subspace of the others, given known samples."""
        factors = self.problem.next_layer
        columns, is_determined = self.of(whitened)
        known = columns[is_determined]
        free = torch.linalg.qr(known.T, mode="complete")[0][:, len(known) :]
        return torch.linalg.qr(as_tensor(factors.left * factors.singular_values) @ free)[0]

    def of(self, whitened: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the columns ``q`` of samples at their true scale, ``p q = 1``, and which are determined.

        Parameters
        ----------
        whitened : torch.Tensor of shape (k, r)
            Rows ``p`` of the layer, at their true scale.

        Returns
        -------
        columns : torch.Tensor of shape (k, b)
        is_determined : torch.Tensor of shape (k,) of bool
        """
        activations, coordinates = self.problem.activations(whitened.numpy()), self.coordinates(whitened)
        found, is_determined = self._by_zeros(activations, normalized(coordinates, dim=1))
        missing = torch.nonzero(~is_determined)[:, 0]
        if len(missing):
            found[missing], labels, _ = self.by_tail(whitened[missing])
            is_determined[missing] = labels != NO_LABEL
        # Where a column is not orthogonal to another sample, one of the two is wrong.
        overlaps = self._overlaps(activations, found).fill_diagonal_(0.0)
        is_determined &= overlaps.amax(dim=0) <= self.own_product
        is_determined &= torch.linalg.matrix_rank(found[is_determined]) == is_determined.sum()
        products = (coordinates * found).sum(dim=1, keepdim=True)
        return found / torch.where(products == 0, 1.0, products), is_determined

    def gradients(self, whitened: torch.Tensor) -> torch.Tensor:
        """Return the columns of ``D`` of samples at their true scale, of shape (m, k), NaN where not determined."""
        columns, is_determined = self.of(whitened)
        weight = as_tensor(self.problem.layer.layer_gradient.next_layer.weight.astype(float))
        slopes = self.problem.layer.activation.derivative(self.problem.preactivations(whitened.numpy()))
        found = slopes * (columns @ self.left.T @ weight)
        return torch.where(is_determined[:, None], found, torch.nan).T

    def coordinates(self, whitened: torch.Tensor) -> torch.Tensor:
        """Return the ``p`` of samples in the next layer, of shape (k, b)."""
        factors = self.problem.next_layer
        return self.problem.activations(whitened.numpy()) @ as_tensor(factors.left / factors.singular_values)

    def _overlaps(self, activations: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Return the cosine between activations and the dual of each column (see `SampleCoordinates.overlaps`)."""
        factors = self.problem.next_layer
        inside = normalized(activations @ as_tensor(factors.left), dim=1)
        return (inside @ normalized(columns / as_tensor(factors.singular_values), dim=1).T).abs()

    def _by_zeros(self, activations: torch.Tensor, coordinates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a column for each sample, and whether zeros and the other samples determine it."""
        n, b = coordinates.shape
        found, is_determined = torch.zeros((n, b), dtype=coordinates.dtype), torch.zeros(n, dtype=torch.bool)
        layer = self.problem.layer.layer_gradient.next_layer
        activation = None if layer.bias is None else resolve(layer.activation)
        if activation is None or not activation.has_flat_part:
            return found, is_determined
        z = activations @ as_tensor(layer.weight.astype(float)).T + as_tensor(layer.bias)
        is_off = activation.is_off(z, self.surely_off * z.std(dim=1, keepdim=True))
        left = self.left * len(self.left) ** 0.5
        of_all = coordinates.T @ coordinates
        for index in range(n):
            rows, own = left[is_off[index]], coordinates[index]
            gram = rows.T @ rows + self.of_others**2 * (of_all - own[:, None] * own)
            values, column = smallest_eigenvectors(gram[None])
            mean = gram.diagonal().mean()
            is_only = b == 1 or bool(values[0, 1] > self.determined * mean)
            is_determined[index] = is_only and bool(values[0, 0] <= self.vanishing * mean)
            found[index] = column[0]
        return found, is_determined

    def by_tail(self, whitened: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return column and label of samples, where the tail's gradient agrees with a column for one label only.

        A column's gradient is ``phi'(z) * (W2^T U2 q)`` with ``p q > 0``, up to a factor that all share. (The gradients
        of two classes differ in sign alone.)

        Parameters
        ----------
        whitened : torch.Tensor of shape (k, r)
            Rows ``p`` of the layer, at their true scale.

        Returns
        -------
        columns : torch.Tensor of shape (k, b)
            Unit rows ``q``.
        labels : torch.Tensor of shape (k,) of int
            `NO_LABEL` where no label or several agree.
        sizes : torch.Tensor of shape (k,)
            Length of the gradient.
        """
        given = self.problem.layer.layer_gradient
        preactivations, coordinates = self.problem.preactivations(whitened.numpy()), self.coordinates(whitened)
        n, b = coordinates.shape
        found, labels = torch.zeros((n, b), dtype=torch.float64), torch.full((n,), NO_LABEL)
        sizes = torch.zeros(n, dtype=torch.float64)
        tail = given.tail.rest
        if tail is None or n == 0:
            return found, labels, sizes
        possible = as_tensor(given.next_layer.weight.astype(float)).T @ self.left
        slopes = self.problem.layer.activation.derivative(preactivations)
        n_labels = tail.n_labels(preactivations.shape[1])
        returned = torch.stack([tail.gradients_for(preactivations, label) for label in range(n_labels)], dim=2)
        lengths = torch.linalg.vector_norm(returned, dim=1)
        for index in range(n):
            left, values, axes = torch.linalg.svd(slopes[index][:, None] * possible, full_matrices=False)
            if len(values) < b or values[-1] <= self.determined * values[0]:
                continue
            inside = left.T @ returned[index]
            outside = torch.linalg.vector_norm(returned[index] - left @ inside, dim=0) / lengths[index].clamp(min=TINY)
            columns = axes.T @ (inside / values[:, None])
            outside[coordinates[index] @ columns <= 0] = torch.inf
            nearest, order = torch.sort(outside)
            if nearest[0] > self.alike or (len(nearest) > 1 and nearest[1] < self.distinct * nearest[0]):
                continue
            found[index] = columns[:, order[0]]
            labels[index], sizes[index] = order[0], lengths[index, order[0]]
        return normalized(found, dim=1), labels, sizes

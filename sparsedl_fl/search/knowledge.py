"""Known samples ``p`` and columns ``q`` of a search, each used to find the others, and the deflation by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from sparsedl.candidates import CandidatePool
from sparsedl.linalg import normalized, smallest_eigenvectors
from sparsedl.selection import select_independent
from sparsedl.workers import mapped
from sparsedl.zeros import ZeroTest
from sparsedl_fl.constraints import KnownWeights, TailGradient
from sparsedl_fl.search.columns_and_forward_pass import SampleCoordinates

__all__ = ["Knowledge"]

NEAR_ZERO = 1e-2
"""Entries of ``U q`` up to this size, relative to the root mean square, count as zero before ``q`` is refitted."""

INPUT_WEIGHT, DETERMINED = 1e-3, 1e-9
"""Weight of other inputs relative to the inactive rows of a column: less exact, they decide only what these do not
determine. And the second smallest eigenvalue, relative to the mean of all, above which the column is determined."""


class Knowledge:
    """Columns ``q`` certified by their zeros, inputs ``p`` certified by constraints, and the coordinates they deflate.

    A ``p`` gives a column, the kernel of its inactive rows and of the other ``p``, as soon as these determine it.

    Parameters
    ----------
    test : ZeroTest
        The test that certifies columns.
    coordinates : SampleCoordinates
        The unknowns, without deflation.
    columns_from_downstream : sequence of KnownWeights or TailGradient, default=()
        Constraints that give the column of an input where zeros do not determine it; the first that does counts.
    surely_off : float, default=1e-3
        Share of the spread of the pre-activations by which a unit has to be inactive to count as that.
    trusts_downstream : bool, default=False
        Whether a column from downstream layers needs no zeros to be accepted: beyond half of the width none has enough.
        The gradient depends on the pattern alone, which all activation subspaces determine better.
    own_product : float, default=1e-3
        Overlap of an input and a column (see `SampleCoordinates.overlaps`) above which one belongs to the other.
    """

    def __init__(
        self,
        test: ZeroTest,
        coordinates: SampleCoordinates,
        columns_from_downstream: Sequence[KnownWeights | TailGradient] = (),
        *,
        surely_off: float = 1e-3,
        own_product: float = 1e-3,
        trusts_downstream: bool = False,
    ) -> None:
        self.test, self.columns_from_downstream = test, columns_from_downstream
        self.surely_off, self.own_product, self.trusts_downstream = surely_off, own_product, trusts_downstream
        self.coordinates, self.inputs = coordinates, coordinates.inputs
        self.pool = CandidatePool.empty(coordinates.left.shape[1])
        self.n_hits = 0

    @property
    def n_found(self) -> int:
        """Number of independent columns."""
        return len(self.coordinates.found)

    @property
    def columns(self) -> torch.Tensor:
        """Candidates for columns, as unit rows: all that were found."""
        return self.pool.directions if self.coordinates.activation.has_flat_part else self.coordinates.found

    @property
    def n_known(self) -> int:
        """Number of columns and of inputs."""
        return self.n_found + len(self.inputs)

    @property
    def is_complete(self) -> bool:
        """Whether the columns, or the inputs, are a basis."""
        return max(self.n_found, len(self.inputs)) == self.coordinates.left.shape[1]

    @property
    def has_all_inputs(self) -> bool:
        """Whether the inputs are a basis."""
        return len(self.inputs) == self.coordinates.left.shape[1]

    def pairs(self, first: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and their columns, as rows, for the columns from ``first`` on whose input is known."""
        found = self.coordinates.found[first:]
        if len(found) == 0 or len(self.inputs) == 0:
            return self.inputs[:0], found[:0]
        overlaps, own = self.coordinates.overlaps(self.inputs, found).max(dim=0)
        has_input = overlaps > self.own_product
        return self.inputs[own[has_input]], found[has_input]

    def deflate_columns(self) -> None:
        """Deflate the search for columns by the inputs, and by estimates of those of the other columns found."""
        if len(self.coordinates.inputs) >= max(self.n_found, len(self.inputs)):
            return
        inputs, found = self.inputs, self.coordinates.found
        is_own = self.own_product < self.coordinates.overlaps(inputs, found).T
        if not is_own.any(dim=1).all():
            estimates = self.coordinates.estimated_inputs(~self.test.likely_zeros(found))
            inputs = torch.cat([inputs, estimates[~is_own.any(dim=1)]])
        self.coordinates = replace(self.coordinates, inputs=inputs)

    def add(self, *proposed: torch.Tensor | None) -> bool:
        """Add what a stage proposes, in the order of `Proposals`; return whether anything is new."""
        inputs, is_determined, columns, proven = proposed
        is_new = inputs is not None and self.add_inputs(inputs, is_determined)
        is_new |= proven is not None and self.add_trusted(proven)
        return (columns is not None and self.add_columns(columns)) or is_new

    def add_columns(self, minimisers: torch.Tensor) -> bool:
        """Add candidates that zeros certify as columns; return whether any is new."""
        widths = self.test.tolerances(minimisers).clamp(min=NEAR_ZERO)
        is_near = ((minimisers @ self.test.observations.T).abs() < widths).sum(dim=1) > minimisers.shape[1]
        minimisers = minimisers[is_near]
        self.n_hits += len(minimisers)
        self.pool.add_proven(minimisers, self.test)
        return self._deflate()

    def add_inputs(self, inputs: torch.Tensor, is_determined: torch.Tensor) -> bool:
        """Add inputs that constraints certify; return whether any is new.

        Of one that is not determined only the pattern is right, and it gives a column where that determines one.
        """
        self.n_hits, n_before = self.n_hits + len(inputs), len(self.inputs)
        together = torch.cat([self.inputs, inputs[is_determined]])
        order = -torch.arange(len(together)).numpy()
        independent = select_independent(normalized(together * self.coordinates.sizes, dim=1).numpy().T, order)
        self.inputs = together[torch.from_numpy(independent)]
        nothing = self.inputs[:0]
        if self.trusts_downstream:  # an inexact input overlaps with all columns, and would reject those of the others
            columns = self._from_downstream(inputs, nothing)
            self._pool(columns)
            return self._deflate() or len(self.inputs) > n_before
        missing = self._without_column(self.inputs)
        if self.has_all_inputs:  # with all inputs known the columns follow
            columns = normalized(torch.linalg.inv(self.inputs).T, dim=1)[missing]
        elif not self.coordinates.activation.has_flat_part:
            columns = self._from_downstream(self.inputs[missing], self.inputs, torch.tensor(missing, dtype=torch.long))
        else:
            found = mapped(lambda i: self.column_of(self.inputs[i], _without_row(self.inputs, i)), missing)
            columns = torch.cat([nothing, *found])
        if not self.coordinates.activation.has_flat_part:
            return self._deflate_by(columns) or len(self.inputs) > n_before
        self._pool(columns)
        unsure = inputs[~is_determined]
        of_unsure = mapped(lambda i: self.column_of(unsure[i], nothing), self._without_column(unsure))
        self.pool.add_proven(torch.cat([nothing, *of_unsure]), self.test)
        return self._deflate() or len(self.inputs) > n_before

    def add_trusted(self, columns: torch.Tensor) -> bool:
        """Add columns that need no further test; return whether any is new."""
        self.n_hits += len(columns)
        self._pool(columns)
        return self._deflate()

    def _pool(self, columns: torch.Tensor) -> None:
        self.pool.add(columns, self.test.zeros(columns).sum(dim=1))

    def repeat_downstream(self, *, n_iterations: int = 5) -> bool:
        """Estimate all columns again by downstream layers, at the inputs of the columns so far; they get more exact.

        A last missing column starts from the input that is orthogonal to all others, and is kept only if all columns
        are determined in the end, and are a basis. (Two batches of 105 at 200 ReLU units: columns were off by 1e-5, and
        then by 5e-8.) Return whether columns were replaced.
        """
        found, is_whole = self.coordinates.found, self.n_found == self.inputs.shape[1]
        if not is_whole:
            last = self.coordinates.free.T
            found = torch.cat([found, self.columns_from_downstream[0].columns(self.preactivations(last))[0]])
        inputs, is_singular = torch.linalg.inv_ex(found.T)
        for _ in range(n_iterations):
            if is_singular:  # downstream layers give no column for some input
                return False
            columns, is_right = self.columns_from_downstream[0].columns(self.preactivations(normalized(inputs, dim=1)))
            found = torch.where(is_right[:, None] | (not is_whole), columns, found)
            inputs, is_singular = torch.linalg.inv_ex(found.T)
        if is_singular or not (is_whole or is_right.all()):
            return False
        self.take_whole(found, inputs)
        return True

    def take_whole(self, columns: torch.Tensor, inputs: torch.Tensor) -> None:
        """Replace all known columns and inputs, as rows."""
        self.pool = CandidatePool.empty(columns.shape[1])
        self._pool(columns)
        self.coordinates, self.inputs = self.coordinates.deflated_by(columns), normalized(inputs, dim=1)

    def settle(self) -> None:
        """Estimate columns again once all are known, from what is more exact.

        Without a zero-slope region this is the inputs. Else it is zeros, where a column has fewer than its input has
        inactive units: it was found by downstream layers, or from the other inputs.
        """
        found = self.coordinates.found
        if not self.coordinates.activation.has_flat_part:
            if self.has_all_inputs:
                self.coordinates = self.coordinates.deflated_by(normalized(torch.linalg.inv(self.inputs).T, dim=1))
            return
        if len(found) < found.shape[1]:
            return
        inputs = normalized(torch.linalg.inv(found.T), dim=1)
        overlaps = self.coordinates.overlaps(self.inputs, found)
        if len(overlaps):
            largest, index = overlaps.max(dim=0)
            inputs = torch.where((largest > self.own_product)[:, None], self.inputs[index], inputs)
        inputs = inputs * torch.sign(inputs @ self.coordinates.scale)[:, None]
        z = inputs @ self.coordinates.forward.T
        is_inactive = self.coordinates.activation.is_off(z, self.surely_off * z.std(dim=1, keepdim=True))
        doubtful = torch.nonzero((is_inactive & ~self.test.zeros(found)).any(dim=1))[:, 0].tolist()
        again = mapped(lambda i: self.column_of(inputs[i], _without_row(inputs, i), alone=True), doubtful)
        self._pool(torch.cat([found[:0], *again]))
        self._deflate()

    def _without_column(self, inputs: torch.Tensor) -> list[int]:
        """Return which inputs have no column yet: every other column is orthogonal to an input."""
        if self.n_found == 0:
            return list(range(len(inputs)))
        largest = self.coordinates.overlaps(inputs, self.coordinates.found).amax(dim=1)
        return torch.nonzero(largest <= self.own_product)[:, 0].tolist()

    def column_of(self, p: torch.Tensor, others: torch.Tensor, alone: bool = False) -> torch.Tensor:
        """Return the column of an input as one row, or none before its inactive rows and other inputs determine it.

        Where they do not, downstream weights may determine it, unless ``alone``.
        """
        z = self.coordinates.forward @ p
        is_inactive = self.coordinates.activation.is_off(z, self.surely_off * z.std())
        # In units of the noise, so that inputs with a small gradient blur no other column; and with all rows together
        # as large as an orthonormal basis, relative to which the other inputs, as unit vectors, have their weight.
        whitener, scaled = self.test.in_units_of_noise
        rows = scaled[is_inactive] / scaled.square().sum(dim=0).mean().sqrt()
        known = normalized(others @ whitener, dim=1)
        gram = rows.T @ rows + INPUT_WEIGHT**2 * (known.T @ known)
        values, column = smallest_eigenvectors(gram[None])
        column = normalized(column @ whitener.T, dim=1)
        is_only = values.shape[1] == 1 or values[0, 1] > DETERMINED * gram.diagonal().mean()
        is_consistent = bool(self.coordinates.overlaps(others, column).lt(self.own_product).all())
        if is_only and is_consistent and self.test.zeros(column)[0, is_inactive].all():
            return column
        return others[:0] if alone else self._from_downstream(p[None], others)

    def _from_downstream(
        self, inputs: torch.Tensor, others: torch.Tensor, own: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the columns of inputs by downstream constraints, without those that these do not determine.

        Every column has to be orthogonal to ``others``, except its own input, whose index there is ``own``.
        """
        preactivations = self.preactivations(inputs)
        left, found = torch.arange(len(inputs)), [self.inputs[:0]]
        for constraint in self.columns_from_downstream:
            columns, is_only = constraint.columns(preactivations[left])
            overlaps = self.coordinates.overlaps(others, columns)
            if own is not None:
                overlaps[own[left], torch.arange(len(left))] = 0.0
            is_right = is_only & (overlaps < self.own_product).all(dim=0)
            found.append(columns[is_right])
            left = left[~is_right]
        return torch.cat(found)

    def preactivations(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return those of inputs at any scale, of shape (n, m)."""
        at_scale = inputs / (inputs @ self.coordinates.scale)[:, None]
        return at_scale @ self.coordinates.forward.T + self.coordinates.kink

    def _deflate_by(self, columns: torch.Tensor) -> bool:
        """Add columns without a test of their zeros; return whether any is new.

        Where the network is nearly linear, columns of one label are nearly parallel: they differ along small singular
        values.
        """
        together = torch.cat([self.coordinates.found, columns])
        order = -torch.arange(len(together)).numpy()
        duals = normalized(together / self.coordinates.sizes, dim=1).numpy().T
        found = together[torch.from_numpy(select_independent(duals, order))]
        if len(found) <= self.n_found:
            return False
        self.coordinates = self.coordinates.deflated_by(found)
        return True

    def _deflate(self) -> bool:
        if self.trusts_downstream:
            return self._deflate_by(self.pool.directions)
        found = self.pool.selection().directions
        if len(found) <= self.n_found:
            return False
        self.coordinates = self.coordinates.deflated_by(found)
        return True


def _without_row(rows: torch.Tensor, index: int) -> torch.Tensor:
    return torch.cat([rows[:index], rows[index + 1 :]])

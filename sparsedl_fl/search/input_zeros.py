"""Zeros of the inputs themselves refine rough minimisers, where the gradient is a difference of stored weights.

The next layer's gradient is rounded as the layer's own is. Where it holds little of a sample, its activation subspace
determines that sample to a few hundredths only. But an input may have zeros of its own (features after a ReLU, pixels
around a stroke), and ``G^T`` is the same problem as ``G``: zeros determine it up to the noise of the layer alone.
Mixtures of inputs have many zeros as well; inactive units reject these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from sklearn.base import BaseEstimator

from sparsedl.linalg import normalized, random_kernels
from sparsedl.zeros import ZeroTest
from sparsedl_fl.search.columns_and_forward_pass import SampleCoordinates, leaders
from sparsedl_fl.search.knowledge import Knowledge

__all__ = ["InputZeros"]


@dataclass(eq=False, repr=False, kw_only=True)
class InputZeros(BaseEstimator):
    """Refines rough minimisers by their own zeros.

    Measured on the features of 32 CIFAR-10 images at the convolutions of a LeNet (``fc1``, 400 to 120), one step at
    rate 0.01 stored as float32 weights: of 24 minimisers 0.001 to 0.1 off a sample 18 came to within 7e-4 of it, most
    to within 2e-4. All numbers were chosen on that batch and not varied, except where stated.

    Parameters
    ----------
    n_refits : int, default=10
        Number of refits of a minimiser to its zeros. (With three, some stopped a hundredth off a sample.)
    same : float, default=0.9
        Cosine of a minimiser and its refit below which the zeros are those of another input.
    alike : float, default=0.99
        Cosine above which of two inputs only the one with more zeros counts.
    margins : tuple of float, default=(0.01, 0.03, 0.1)
        Share of the spread of pre-activations by which a unit has to be inactive: the first for an input that its zeros
        made exact, one after the other for others.
    n_more : int, default=5
        Zeros of a column, of inactive units and known inputs, beyond those that determine it.
    false_acceptance : float, default=1e-6
        Largest chance with which a column that vanishes at all inactive units of a rough input is taken as its own.
    roughly_own : float, default=0.1
        Overlap of a rough input with a column (see `SampleCoordinates.overlaps`) above which that is known already.
    most_missing, n_draws : int, default=8 and 1024
        Number of missing inputs up to which their zeros are drawn at random as well, and the number of draws. (Where
        four numbers in ten are zero, seven of one input are in one draw of 600.)
    n_kept, small : int and float, default=64 and 0.02
        Number of draws that go on, those with the most small entries, relative to the other entries.
    """

    n_refits: int = 10
    same: float = 0.9
    alike: float = 0.99
    margins: tuple[float, ...] = (0.01, 0.03, 0.1)
    n_more: int = 5
    false_acceptance: float = 1e-6
    roughly_own: float = 0.1
    most_missing: int = 8
    n_draws: int = 1024
    n_kept: int = 64
    small: float = 0.02

    def run(
        self, test: ZeroTest, knowledge: Knowledge, minimisers: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs that zeros certify and inactive units confirm, and the uncertified minimisers.

        Parameters
        ----------
        test : ZeroTest
            Of ``G^T``.
        knowledge : Knowledge
            Known samples and columns.
        minimisers : torch.Tensor of shape (n, b)
            Rough ``p``.
        generator : torch.Generator
            Source of randomness.

        Returns
        -------
        inputs, rough : torch.Tensor of shape (k, b) and (l, b)
            Unit rows ``p``.
        """
        inputs, certified = self._polished(test, knowledge.coordinates, minimisers)
        found = torch.cat([inputs[certified], self._drawn(test, knowledge.coordinates, generator)])
        knowledge.inputs = self._better(test, knowledge.coordinates, knowledge.inputs, found)
        found = self._distinct(test, knowledge.coordinates, found)
        confirmed = [self._is_confirmed(knowledge, p) for p in found]
        return found[torch.tensor(confirmed, dtype=torch.bool)], minimisers[~certified]

    def settle(self, test: ZeroTest, knowledge: Knowledge) -> bool:
        """Replace inputs and columns by those of the inputs' zeros, where all are known and their zeros certify them.

        Returns
        -------
        bool
            Whether they do.
        """
        b = knowledge.inputs.shape[1]
        if max(knowledge.n_found, len(knowledge.inputs)) < b:
            return False
        minimisers = (
            torch.linalg.inv_ex(knowledge.coordinates.found.T)[0] if knowledge.n_found == b else knowledge.inputs
        )
        if not minimisers.isfinite().all():
            return False
        inputs, certified = self._polished(test, knowledge.coordinates, minimisers)
        columns, is_singular = torch.linalg.inv_ex(inputs.T)
        if is_singular or not certified.all():
            return False
        for index, p in enumerate(inputs):  # zeros of a column determine it better than all the other inputs
            by_zeros = knowledge.column_of(p, torch.cat([inputs[:index], inputs[index + 1 :]]), alone=True)
            columns[index] = by_zeros[0] if len(by_zeros) else columns[index]
        knowledge.take_whole(normalized(columns, dim=1), inputs)
        return True

    def columns(self, knowledge: Knowledge, minimisers: torch.Tensor) -> torch.Tensor:
        """Return columns that vanish at all clearly inactive units of rough inputs, where that is not by chance."""
        overlaps = knowledge.coordinates.overlaps(minimisers, knowledge.coordinates.found)
        is_known = (overlaps > self.roughly_own).any(dim=1)
        return torch.cat([minimisers[:0], *(self._column(knowledge, p) for p in minimisers[~is_known])])

    def _polished(
        self, test: ZeroTest, coordinates: SampleCoordinates, inputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return unit rows ``p`` refitted to their own zeros, and which of them these certify."""
        if len(inputs) == 0:
            return inputs, torch.zeros(0, dtype=torch.bool)
        before = normalized(inputs * coordinates.sizes, dim=1)
        after = replace(test, refit_widths=(0.0,) * self.n_refits).refit(before)
        certified = test.prove(after, test.zeros(after)) & ((before * after).sum(dim=1).abs() > self.same)
        polished = normalized(after / coordinates.sizes, dim=1)
        return polished * torch.sign(polished @ coordinates.scale)[:, None], certified

    def _drawn(self, test: ZeroTest, coordinates: SampleCoordinates, generator: torch.Generator) -> torch.Tensor:
        """Return missing inputs found by random zeros, where few are missing; they are orthogonal to known columns."""
        n_missing = coordinates.free.shape[1]
        if n_missing == 1:  # the last one is orthogonal to all columns
            inputs, certified = self._polished(test, coordinates, coordinates.free.T)
            return inputs[certified]
        if not 0 < n_missing <= self.most_missing:
            return coordinates.free.T[:0]
        rows = test.observations @ (coordinates.sizes[:, None] * coordinates.free)
        weights = test.distinct_rows.double().expand(self.n_draws, -1)
        kernels = random_kernels(rows, weights, generator)
        entries = (kernels @ rows.T).abs()
        n_small = (entries < self.small * entries.square().mean(dim=1, keepdim=True).sqrt()).sum(dim=1)
        likely = kernels[n_small.argsort(descending=True, stable=True)[: self.n_kept]]
        inputs, certified = self._polished(test, coordinates, likely @ coordinates.free.T)
        return inputs[certified]

    def _distinct(self, test: ZeroTest, coordinates: SampleCoordinates, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs without repetitions, those with more zeros first."""
        within = normalized(inputs * coordinates.sizes, dim=1)
        order = test.zeros(within).sum(dim=1).argsort(descending=True, stable=True)
        return inputs[order][leaders(within[order], self.alike).unique()]

    def _better(
        self, test: ZeroTest, coordinates: SampleCoordinates, known: torch.Tensor, found: torch.Tensor
    ) -> torch.Tensor:
        """Return known inputs, each replaced by the same one found again if that has more zeros."""
        if len(known) == 0 or len(found) == 0:
            return known
        before, after = (normalized(inputs * coordinates.sizes, dim=1) for inputs in (known, found))
        n_before, n_after = (test.zeros(within).sum(dim=1) for within in (before, after))
        n_after = torch.where((before @ after.T).abs() > self.alike, n_after, 0)
        most, index = n_after.max(dim=1)
        return torch.where((most > n_before)[:, None], found[index], known)

    def _is_confirmed(self, knowledge: Knowledge, p: torch.Tensor) -> bool:
        """Return whether a column vanishes at the inactive units of an input, and is orthogonal to the known others."""
        coordinates = knowledge.coordinates
        cosines = normalized(knowledge.inputs * coordinates.sizes, dim=1) @ normalized(p * coordinates.sizes, dim=0)
        others = knowledge.inputs[cosines.abs() < self.same]
        n_more = int(self._is_inactive(knowledge, p, self.margins[0]).sum()) + len(others) - (len(p) - 1)
        return n_more >= self.n_more and len(knowledge.column_of(p, others, alone=True)) > 0

    def _column(self, knowledge: Knowledge, p: torch.Tensor) -> torch.Tensor:
        """Return the column of a rough input as one row, or none."""
        test, p = knowledge.test, p * torch.sign(p @ knowledge.coordinates.scale)
        for margin in self.margins:
            is_inactive = self._is_inactive(knowledge, p, margin)
            n_more = int(is_inactive.sum()) - (len(p) - 1)
            if n_more <= 0:
                break
            column = test.vanishing(is_inactive[None])
            width = min(1.0, float(test.tolerances(column)[0, is_inactive].mean()))
            if width**n_more <= self.false_acceptance and test.zeros(column)[0, is_inactive].all():
                return column
        return p[None][:0]

    @staticmethod
    def _is_inactive(knowledge: Knowledge, p: torch.Tensor, margin: float) -> torch.Tensor:
        """Return which units are inactive by a margin, without those that only repeat others."""
        z = knowledge.coordinates.forward @ p
        return knowledge.coordinates.activation.is_off(z, margin * z.std()) & knowledge.test.distinct_rows

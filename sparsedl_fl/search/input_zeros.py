"""Zeros of the inputs themselves: what takes the rough ends of a search to an input, where weights were stored.

The gradient of the next layer is rounded as the layer's own is. Where it holds little of an input its span hardly
tells where that lies, and ends come within a few hundredths. But an input may have zeros of its own (features behind a
ReLU, the pixels around a stroke), and ``G^T`` is the same problem as ``G``: they lead to it as far as the noise of the
layer alone allows. Mixtures of inputs have many zeros as well; the units that are off tell.
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
    """The stage that takes rough ends to where their own zeros lead.

    Measured on the features of 32 CIFAR-10 images behind the convolutions of a LeNet (``fc1``, 400 to 120), one step
    at rate 0.01 stored as float32 weights: of 24 ends 0.001 to 0.1 beside an input 18 came to within 7e-4 of it, most
    to within 2e-4. All numbers were chosen on that batch and not varied, but where it says so.

    Parameters
    ----------
    n_refits : int, default=10
        Steps from an end to where its zeros lead. (With three, some stopped a hundredth beside an input.)
    same : float, default=0.9
        Cosine of an end and where its zeros lead below which these are of another one.
    alike : float, default=0.99
        Cosine above which of two inputs only that with more zeros counts.
    margins : tuple of float, default=(0.01, 0.03, 0.1)
        A unit is clearly off that is so by this much of the spread of the pre-activations, for an input that its zeros
        made exact the first, for others one after the other.
    n_more : int, default=5
        Zeros of a column that an input has to have more than would determine it: units off, and inputs known.
    false_acceptance : float, default=1e-6
        Chance up to which a column that vanishes at all units that are off for a rough input is its own.
    roughly_own : float, default=0.1
        Overlap of a rough input with a column (see `SampleCoordinates.overlaps`) above which that is known already.
    most_missing, n_draws : int, default=8 and 1024
        Inputs missing from which on some of their zeros are drawn as well, and how often. (Where four numbers in ten
        are zero, seven of one input are in one draw of 600.)
    n_kept, small : int and float, default=64 and 0.02
        Draws that go on, those with the most small numbers: so small beside the others of that draw.
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
        """Return the inputs that ends lead to, and the ends that lead to none.

        Parameters
        ----------
        test : ZeroTest
            Of ``G^T``.
        knowledge : Knowledge
            What is known.
        ends : torch.Tensor of shape (n, b)
            Rough ``p``.
        generator : torch.Generator
            Source of randomness.

        Returns
        -------
        inputs, rest : torch.Tensor of shape (k, b) and (l, b)
            Unit rows ``p``.
        """
        inputs, proven = self._polished(test, knowledge.coordinates, minimisers)
        found = torch.cat([inputs[proven], self._drawn(test, knowledge.coordinates, generator)])
        knowledge.inputs = self._better(test, knowledge.coordinates, knowledge.inputs, found)
        found = self._distinct(test, knowledge.coordinates, found)
        confirmed = [self._is_confirmed(knowledge, p) for p in found]
        return found[torch.tensor(confirmed, dtype=torch.bool)], minimisers[~proven]

    def settle(self, test: ZeroTest, knowledge: Knowledge) -> bool:
        """Take inputs and columns as zeros of all inputs have them, where all are known and these prove them.

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
        inputs, proven = self._polished(test, knowledge.coordinates, minimisers)
        columns, is_singular = torch.linalg.inv_ex(inputs.T)
        if is_singular or not proven.all():
            return False
        for index, p in enumerate(inputs):  # zeros of its own say more of a column than all the other inputs
            by_zeros = knowledge.column_of(p, torch.cat([inputs[:index], inputs[index + 1 :]]), alone=True)
            columns[index] = by_zeros[0] if len(by_zeros) else columns[index]
        knowledge.take_whole(normalized(columns, dim=1), inputs)
        return True

    def columns(self, knowledge: Knowledge, minimisers: torch.Tensor) -> torch.Tensor:
        """Return the columns that vanish wherever a unit is clearly off for rough inputs, where that is no chance."""
        overlaps = knowledge.coordinates.overlaps(minimisers, knowledge.coordinates.found)
        is_known = (overlaps > self.roughly_own).any(dim=1)
        return torch.cat([minimisers[:0], *(self._column(knowledge, p) for p in minimisers[~is_known])])

    def _polished(
        self, test: ZeroTest, coordinates: SampleCoordinates, inputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return unit rows ``p`` as zeros of their own have them, and which these prove."""
        if len(inputs) == 0:
            return inputs, torch.zeros(0, dtype=torch.bool)
        before = normalized(inputs * coordinates.sizes, dim=1)
        after = replace(test, refit_widths=(0.0,) * self.n_refits).refit(before)
        proven = test.prove(after, test.zeros(after)) & ((before * after).sum(dim=1).abs() > self.same)
        polished = normalized(after / coordinates.sizes, dim=1)
        return polished * torch.sign(polished @ coordinates.scale)[:, None], proven

    def _drawn(self, test: ZeroTest, coordinates: SampleCoordinates, generator: torch.Generator) -> torch.Tensor:
        """Return what some zeros lead to of what is missing, where that is little; all of it is orthogonal to ``q``."""
        n_missing = coordinates.free.shape[1]
        if n_missing == 1:  # it is orthogonal to all columns
            inputs, proven = self._polished(test, coordinates, coordinates.free.T)
            return inputs[proven]
        if not 0 < n_missing <= self.most_missing:
            return coordinates.free.T[:0]
        rows = test.observations @ (coordinates.sizes[:, None] * coordinates.free)
        weights = test.distinct_rows.double().expand(self.n_draws, -1)
        kernels = random_kernels(rows, weights, generator)
        entries = (kernels @ rows.T).abs()
        n_small = (entries < self.small * entries.square().mean(dim=1, keepdim=True).sqrt()).sum(dim=1)
        likely = kernels[n_small.argsort(descending=True, stable=True)[: self.n_kept]]
        inputs, proven = self._polished(test, coordinates, likely @ coordinates.free.T)
        return inputs[proven]

    def _distinct(self, test: ZeroTest, coordinates: SampleCoordinates, inputs: torch.Tensor) -> torch.Tensor:
        """Return inputs without repetitions, those with more zeros first."""
        within = normalized(inputs * coordinates.sizes, dim=1)
        order = test.zeros(within).sum(dim=1).argsort(descending=True, stable=True)
        return inputs[order][leaders(within[order], self.alike).unique()]

    def _better(
        self, test: ZeroTest, coordinates: SampleCoordinates, known: torch.Tensor, found: torch.Tensor
    ) -> torch.Tensor:
        """Return inputs that are known, those that have more zeros where they were found again as they are there."""
        if len(known) == 0 or len(found) == 0:
            return known
        before, after = (normalized(inputs * coordinates.sizes, dim=1) for inputs in (known, found))
        n_before, n_after = (test.zeros(within).sum(dim=1) for within in (before, after))
        n_after = torch.where((before @ after.T).abs() > self.alike, n_after, 0)
        most, index = n_after.max(dim=1)
        return torch.where((most > n_before)[:, None], found[index], known)

    def _is_confirmed(self, knowledge: Knowledge, p: torch.Tensor) -> bool:
        """Return whether a column vanishes where units are off for an input, and is orthogonal to the others known."""
        coordinates = knowledge.coordinates
        cosines = normalized(knowledge.inputs * coordinates.sizes, dim=1) @ normalized(p * coordinates.sizes, dim=0)
        others = knowledge.inputs[cosines.abs() < self.same]
        n_more = int(self._is_off(knowledge, p, self.margins[0]).sum()) + len(others) - (len(p) - 1)
        return n_more >= self.n_more and len(knowledge.column_of(p, others, alone=True)) > 0

    def _column(self, knowledge: Knowledge, p: torch.Tensor) -> torch.Tensor:
        """Return the column of a rough input as one row, or none."""
        test, p = knowledge.test, p * torch.sign(p @ knowledge.coordinates.scale)
        for margin in self.margins:
            is_off = self._is_off(knowledge, p, margin)
            n_more = int(is_off.sum()) - (len(p) - 1)
            if n_more <= 0:
                break
            column = test.vanishing(is_off[None].double())
            width = min(1.0, float(test.tolerances(column)[0, is_off].mean()))
            if width**n_more <= self.false_acceptance and test.zeros(column)[0, is_off].all():
                return column
        return p[None][:0]

    @staticmethod
    def _is_off(knowledge: Knowledge, p: torch.Tensor, margin: float) -> torch.Tensor:
        """Return which units are off by a margin, without those that say nothing of their own."""
        z = knowledge.coordinates.forward @ p
        return knowledge.coordinates.activation.is_off(z, margin * z.std()) & knowledge.test.distinct_rows

"""Rough ends of a search under rounding: what zeros of an input's own, and those of its column, still say.

The next layer's gradient is rounded as the layer's own, and where it holds little of an input no span tells where that
lies. But ends come near: within a few hundredths. There an input has zeros of its own (features behind a ReLU, the
pixels around a stroke), which lead to it exactly, since ``G^T`` is the same problem; and the units that are clearly off
for it are zeros of its column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from sklearn.base import BaseEstimator

from sparsedl.linalg import normalized, random_kernels
from sparsedl.zeros import ZeroTest
from sparsedl_fl.directions.activation.knowledge import Knowledge
from sparsedl_fl.directions.activation.two_views import TwoViews, leaders

__all__ = ["OwnZeros"]


@dataclass(eq=False, repr=False, kw_only=True)
class OwnZeros(BaseEstimator):
    """The stage that takes rough ends to where their zeros lead.

    Measured on features of 8 to 48 CIFAR-10 images behind the convolutions of a LeNet, of an update stored as float32
    weights: ends within 0.001 to 0.1 of an input came to within 2e-4, and those that came elsewhere were not proven.

    Parameters
    ----------
    same : float, default=0.9
        Cosine of an end and where its zeros lead below which these are another input's.
    margins : tuple of float, default=(0.01, 0.03, 0.1)
        A unit is clearly off that is so by this much of the spread of the pre-activations; one after the other is
        tried.
    roughly_own : float, default=0.1
        Overlap of a rough input with a column (see `TwoViews.overlaps`) above which it is that of the column.
    false_acceptance : float, default=1e-6
        Chance up to which a column that vanishes where it should is taken in.
    most_free, n_draws : int, default=8 and 1024
        Inputs missing up to which kernels of so many draws of zeros are tried: of eight features in ten one draw in
        200 holds zeros of one input alone, where four in ten are zero.
    """

    same: float = 0.9
    widths: tuple[float, ...] = (0.0,) * 10
    margins: tuple[float, ...] = (0.01, 0.03, 0.1)
    roughly_own: float = 0.1
    false_acceptance: float = 1e-6
    n_more: int = 5
    distinct: float = 0.99
    most_free: int = 8
    n_draws: int = 1024

    def polished(self, test: ZeroTest, views: TwoViews, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return unit rows ``p`` as zeros of their own have them, where these prove them, and where they do.

        Parameters
        ----------
        test : ZeroTest
            Of ``G^T``.
        views : TwoViews
            Both views.
        inputs : torch.Tensor of shape (n, b)
            Rough ones, at any scale.
        """
        if len(inputs) == 0:
            return inputs, torch.zeros(0, dtype=torch.bool)
        before = normalized(inputs * views.sizes, dim=1)
        after = replace(test, refit_widths=self.widths).refit(before)
        proven = test.prove(after, test.zeros(after)) & ((before * after).sum(dim=1).abs() > self.same)
        polished = normalized(after / views.sizes, dim=1)
        polished = polished * torch.sign(polished @ views.scale)[:, None]
        return torch.where(proven[:, None], polished, inputs), proven

    def drawn(self, test: ZeroTest, views: TwoViews, generator: torch.Generator) -> torch.Tensor:
        """Return inputs that are missing, which some of their zeros lead to, where few are."""
        if not 1 < views.free.shape[1] <= self.most_free:
            return views.inputs[:0]
        rows = test.observations @ (views.sizes[:, None] * views.free)
        weights = test.distinct_rows.double().expand(self.n_draws, -1)
        starts = random_kernels(rows, weights, generator) @ views.free.T
        inputs, proven = self.polished(test, views, normalized(starts, dim=1))
        return self._sorted(test, views, inputs[proven])

    def _sorted(self, test, views, inputs):
        within = normalized(inputs * views.sizes, dim=1)
        order = test.zeros(within).sum(dim=1).argsort(descending=True)
        return inputs[order][leaders(within[order], self.distinct).unique()]

    def columns(self, knowledge: Knowledge, inputs: torch.Tensor) -> torch.Tensor:
        """Return the columns that vanish wherever a unit is clearly off for rough inputs, where that is no chance."""
        is_found = (knowledge.views.overlaps(inputs, knowledge.views.found) > self.roughly_own).any(dim=1)
        found = [self._column(knowledge.test, knowledge.views, p) for p in inputs[~is_found]]
        return torch.cat([inputs[:0], *found])

    def are_confirmed(self, knowledge: Knowledge, inputs: torch.Tensor) -> torch.Tensor:
        """Return which inputs have a column that vanishes where their units are off and beside what is known."""
        return torch.tensor([self._is_confirmed(knowledge, p) for p in inputs], dtype=torch.bool)

    def _is_confirmed(self, knowledge: Knowledge, p: torch.Tensor) -> bool:
        views = knowledge.views
        cosines = normalized(knowledge.inputs * views.sizes, dim=1) @ normalized(p[None] * views.sizes, dim=1).T
        others = knowledge.inputs[(cosines.abs() < self.same)[:, 0]]
        z = views.forward @ p
        is_off = views.activation.is_off(z, self.margins[0] * z.std()) & knowledge.test.distinct_rows
        n_more = int(is_off.sum()) + len(others) - len(p) + 1
        return n_more >= self.n_more and len(knowledge.column_of(p, others, alone=True)) > 0

    def _column(self, test: ZeroTest, views: TwoViews, p: torch.Tensor) -> torch.Tensor:
        z = views.forward @ (p * torch.sign(p @ views.scale))
        for margin in self.margins:
            is_off = views.activation.is_off(z, margin * z.std())
            column = test.vanishing(is_off[None].double())
            rows = is_off & test.distinct_rows
            width, n_more = float(test.tolerances(column)[0, rows].mean()), int(rows.sum()) - len(p) + 1
            is_no_chance = min(width, 1.0) ** max(0, n_more) <= self.false_acceptance
            if is_no_chance and test.zeros(column)[0, is_off].all():
                return column
        return p[None][:0]

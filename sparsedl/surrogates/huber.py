"""The absolute value with a parabola at the tip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sparsedl.surrogates.surrogate import Surrogate


@dataclass(eq=False, repr=False, kw_only=True)
class Huber(Surrogate):
    """The absolute value with a parabola at the tip, ``t^2 / (2 delta) + delta / 2`` for ``|t| <= delta``.

    Parameters
    ----------
    delta : float, default=0.1
        Half-width of the parabola.

    References
    ----------
    Qu, Zhu, Li, Tsakiris, Wright and Vidal, "Finding the sparsest vectors in a subspace", 2020, Table II.
    """

    smooth: ClassVar[bool] = True
    positive = ("delta",)
    delta: float = 0.1

    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``|t|`` beyond ``delta`` and the parabola that continues it within."""
        a = t.abs()
        return torch.where(a > self.delta, a, t.square() / (2 * self.delta) + self.delta / 2)

    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``t / delta`` clipped to [-1, 1]."""
        return (t / self.delta).clamp(-1, 1)

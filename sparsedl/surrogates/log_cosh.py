"""The absolute value, smoothed by a hyperbolic cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from sparsedl.surrogates.surrogate import Surrogate


@dataclass(eq=False, repr=False, kw_only=True)
class LogCosh(Surrogate):
    """The smoothed absolute value, ``phi(t) = mu log cosh(t / mu)``.

    Parameters
    ----------
    mu : float, default=0.1
        Width of the smoothing.

    References
    ----------
    Sun, Qu and Wright, "Complete dictionary recovery over the sphere I", IEEE Trans. Inf. Theory 2017, Eq. 1.3;
    SPEAR++ (2025), Sec. 5.1.
    """

    smooth: ClassVar[bool] = True
    positive = ("mu",)
    mu: float = 0.1

    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``mu log cosh(t / mu)``, without overflow."""
        a = t.abs() / self.mu
        return self.mu * (a + torch.log1p(torch.exp(-2 * a)) - math.log(2))

    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``tanh(t / mu)``."""
        return torch.tanh(t / self.mu)

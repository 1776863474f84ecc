"""The Lorentzian: the negative logarithm of a Cauchy density."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sparsedl.surrogates.surrogate import Surrogate


@dataclass(eq=False, repr=False, kw_only=True)
class Cauchy(Surrogate):
    """The Lorentzian, ``phi(t) = scale^2 / 2 log(1 + t^2 / scale^2)``: the negative logarithm of a Cauchy density.

    Its weights at a smoothing ``s`` are ``1 / (t^2 + s^2 + scale^2)`` up to a factor: smoothed, it is itself with a
    larger scale.

    Parameters
    ----------
    scale : float, default=1e-3
        Half-width of the Cauchy density.

    References
    ----------
    Black and Rangarajan, "On the unification of line processes, outlier rejection, and robust statistics", Int. J.
    Comput. Vis. 1996; Chartrand and Yin, ICASSP 2008, for its weights.
    """

    smooth: ClassVar[bool] = True
    positive = ("scale",)
    scale: float = 1e-3

    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``scale^2 / 2 log(1 + t^2 / scale^2)``."""
        return self.scale**2 / 2 * torch.log1p((t / self.scale).square())

    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``t / (1 + t^2 / scale^2)``."""
        return t / (1 + (t / self.scale).square())

    def weights(self, t: torch.Tensor, smoothing: float | torch.Tensor) -> torch.Tensor:
        """Return ``1 / (1 + (t^2 + smoothing^2) / scale^2)``."""
        return t.square().add_(smoothing**2 + self.scale**2).reciprocal_().mul_(self.scale**2)

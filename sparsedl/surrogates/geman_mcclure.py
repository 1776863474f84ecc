"""The bounded count of Geman and McClure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sparsedl.surrogates.surrogate import Surrogate


@dataclass(eq=False, repr=False, kw_only=True)
class GemanMcClure(Surrogate):
    """The bounded count ``phi(t) = scale^2 / 2 * t^2 / (t^2 + scale^2)``: large entries cost the same.

    Its weights at a smoothing ``s`` are ``1 / (t^2 + s^2 + scale^2)^2`` up to a factor. It reaches columns with fewer
    zeros than `Cauchy` does.

    Parameters
    ----------
    scale : float, default=1e-3
        Width of the dip at zero.

    References
    ----------
    Geman and McClure, "Statistical methods for tomographic image reconstruction", Bull. Int. Stat. Inst. 1987; Black
    and Rangarajan, Int. J. Comput. Vis. 1996.
    """

    smooth: ClassVar[bool] = True
    positive = ("scale",)
    scale: float = 1e-3

    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``scale^2 / 2 * t^2 / (t^2 + scale^2)``."""
        squares = t.square()
        return self.scale**2 / 2 * squares / (squares + self.scale**2)

    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``t / (1 + t^2 / scale^2)^2``."""
        return t / (1 + (t / self.scale).square()).square()

    def weights(self, t: torch.Tensor, smoothing: float | torch.Tensor) -> torch.Tensor:
        """Return ``1 / (1 + (t^2 + smoothing^2) / scale^2)^2``."""
        return t.square().add_(smoothing**2 + self.scale**2).reciprocal_().mul_(self.scale**2).square_()

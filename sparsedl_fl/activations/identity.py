"""A layer whose output is used unchanged."""

from __future__ import annotations

import torch
from torch import nn

from sparsedl_fl.activations.base_activation import Activation

__all__ = ["HEAD", "Identity"]


class Identity(Activation):
    """``z`` itself: a classifier's last layer, or one followed by an operation that mixes its units.

    Parameters
    ----------
    name : str, default="identity"
        Its name.
    """

    name = "identity"
    torch_types = (nn.Identity,)
    is_positively_homogeneous = True
    is_piecewise_linear = True
    slope_below = 1.0

    def __init__(self, name: str = "identity") -> None:
        self.name = name

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``z``."""
        return z

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return one."""
        return torch.ones_like(z)

    def nearest_on_graph(
        self, z: torch.Tensor, y: torch.Tensor, weight: float | torch.Tensor = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weighted mean of both."""
        mean = (z + weight * y) / (1 + weight)
        return mean, mean


HEAD = Identity("softmax")
"""A classifier's last layer, followed by cross-entropy."""

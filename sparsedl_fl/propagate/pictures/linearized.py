"""A function and its derivative at a point, as products that cost one pass each."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["Linearized"]


class Linearized:
    """The derivative ``J`` of a function at a point, which is never formed.

    ``J^T u`` is a backward pass, and linear in ``u``; its own backward pass is ``J v``. Nothing is computed again for
    another vector, and any function will do that torch differentiates twice.

    Parameters
    ----------
    function : callable
        Of tensors of the point's shape.
    point : torch.Tensor
    """

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], point: torch.Tensor) -> None:
        with torch.enable_grad():
            self.point = point.detach().requires_grad_()
            self._value = function(self.point)
            self._weights = torch.zeros_like(self._value, requires_grad=True)
            (self._back,) = torch.autograd.grad(self._value, self.point, self._weights, create_graph=True)
        self.value = self._value.detach()

    def along(self, direction: torch.Tensor) -> torch.Tensor:
        """Return ``J v``, of the shape of the value."""
        return torch.autograd.grad(self._back, self._weights, direction, retain_graph=True)[0]

    def back(self, weights: torch.Tensor) -> torch.Tensor:
        """Return ``J^T u``, of the shape of the point."""
        return torch.autograd.grad(self._value, self.point, weights, retain_graph=True)[0]

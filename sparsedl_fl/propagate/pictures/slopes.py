"""The slopes of units, apart from their values: what a gradient passes on its way back.

Given the slope of every unit and the entry that each window of max-pooling picks, gradients of convolutions depend on
the picture linearly; when a unit switches, they jump. Where it is not known which side of its kink a unit is on, its
slope is one more unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sparsedl_fl.propagate.pictures.sharpening import windows_of

__all__ = ["GivenSlopes", "Kinks", "SeenKinks"]

KINKS: dict[str, Callable[..., list[float]]] = {
    "relu": lambda *_, **__: [0.0],
    "leaky_relu": lambda *_, **__: [0.0],
    "prelu": lambda *_, **__: [0.0],
    "hardtanh": lambda low=-1.0, high=1.0, *_, min_val=None, max_val=None, **__: [
        low if min_val is None else min_val,
        high if max_val is None else max_val,
    ],
    "relu6": lambda *_, **__: [0.0, 6.0],
}
"""Kinks of functions of linear pieces, by the name of torch's function; each takes the function's parameters."""

POOLS = {f"max_pool{n}d": n for n in (1, 2, 3)}
"""Number of axes of pooling, by the name of torch's function."""


@dataclass(frozen=True, eq=False)
class Kinks:
    """Units of one call of a function with kinks.

    Attributes
    ----------
    inputs : torch.Tensor
        What the function was fed.
    slopes : torch.Tensor
        Derivative of each unit; of pooling, the share of each entry of a window, along the last axis.
    margins : torch.Tensor
        Distance of each unit's input to a kink; of pooling, that of each entry to the largest of its window.
    is_pooling : bool
    """

    inputs: torch.Tensor
    slopes: torch.Tensor
    margins: torch.Tensor
    is_pooling: bool

    def near(self, distance: float) -> torch.Tensor:
        """Return which slopes are open if inputs may be off by a distance."""
        is_near = self.margins <= distance
        return is_near & (is_near.sum(dim=-1, keepdim=True) > 1) if self.is_pooling else is_near


class SeenKinks(TorchFunctionMode):
    """A context that keeps the kinks of every call, in ``calls``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Kinks] = []

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the function's value."""
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "").rstrip("_")
        if name in POOLS:
            windows = windows_of(args[0].detach(), *args[1:], n_axes=POOLS[name], **kwargs)
            largest, at = windows.max(dim=-1, keepdim=True)
            picked = torch.zeros_like(windows).scatter_(-1, at, 1.0)
            self.calls.append(Kinks(args[0].detach(), picked, largest - windows, True))
        elif name in KINKS:
            self.calls.append(_kinks(name, function, args, kwargs))
        return function(*args, **kwargs)


def _kinks(name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kinks:
    given = {key: value for key, value in kwargs.items() if key != "inplace"}
    with torch.enable_grad():
        z = args[0].detach().clone().requires_grad_()
        (slopes,) = torch.autograd.grad(function(z * 1.0, *args[1:], **given).sum(), z)
    at = KINKS[name](*args[1:], **given)
    margins = torch.stack([(z.detach() - kink).abs() for kink in at]).amin(dim=0)
    return Kinks(z.detach(), slopes, margins, False)


class GivenSlopes(TorchFunctionMode):
    """A context in which functions with kinks have their values, and derivatives that are given.

    Parameters
    ----------
    slopes : sequence of torch.Tensor
        Of each call, as `SeenKinks` shows them; they may require gradients.
    """

    def __init__(self, slopes: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.slopes, self._n_calls = slopes, 0

    def __enter__(self) -> GivenSlopes:
        """Count calls from the first."""
        self._n_calls = 0
        return super().__enter__()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the function's value, with the derivative that is given."""
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "").rstrip("_")
        if name not in POOLS and name not in KINKS:
            return function(*args, **kwargs)
        slopes, self._n_calls = self.slopes[self._n_calls], self._n_calls + 1
        z = args[0]
        if name in POOLS:
            windows = windows_of(z, *args[1:], n_axes=POOLS[name], **kwargs)
            return windows.detach().amax(dim=-1) + (slopes * (windows - windows.detach())).sum(dim=-1)
        given = {key: value for key, value in kwargs.items() if key != "inplace"}
        return function(z.detach(), *args[1:], **given) + slopes * (z - z.detach())

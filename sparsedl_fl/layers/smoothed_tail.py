"""Network tails with smoothed kinks, for a descent by continuation.

Where units have kinks, so has the gradient through them, and Gauss-Newton steps stop at the first spurious local
minimiser. The mean over Gaussian perturbations of each unit's input has no kinks, and fewer minimisers the larger the
perturbations are. A descent that starts with large ones and makes them smaller reaches samples more often. Each kind of
unit has that mean in closed form.

References
----------
Mobahi and Fisher, "A theoretical analysis of optimization by Gaussian continuation", AAAI 2015.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sparsedl_fl.activations import SELU

__all__ = ["SMOOTHED", "Smoothing"]

Smoothed = Callable[..., torch.Tensor]


class Smoothing(TorchFunctionMode):
    """A context in which functions with kinks return their mean over Gaussian perturbations of their inputs.

    Parameters
    ----------
    deviations : sequence of float or None, default=None
        Standard deviation of the perturbations at each call of such a function, in order; further calls are not
        changed. None changes no call.

    Attributes
    ----------
    spreads : list of float
        Standard deviation of the input of each call.
    """

    def __init__(self, deviations: Sequence[float] | None = None) -> None:
        super().__init__()
        self.deviations, self._n_calls = deviations, 0
        self.spreads: list[float] = []

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the function's value, or its mean."""
        kwargs = kwargs or {}
        smoothed = SMOOTHED.get(getattr(function, "__name__", "").rstrip("_"))
        if smoothed is None:
            return function(*args, **kwargs)
        if self.deviations is None:
            self.spreads.append(float(args[0].detach().std(correction=0)))
            return function(*args, **kwargs)
        number, self._n_calls = self._n_calls, self._n_calls + 1
        if number >= len(self.deviations) or not self.deviations[number] > 0:
            return function(*args, **kwargs)
        given = {name: value for name, value in kwargs.items() if name != "inplace"}
        return smoothed(args[0], self.deviations[number], *args[1:], **given)


def _prelu(z: torch.Tensor, deviation: float, weight: torch.Tensor) -> torch.Tensor:
    slopes = weight if len(weight) == 1 else weight.reshape(1, -1, *[1] * (z.ndim - 2))
    return slopes * z + (1 - slopes) * _ramp(z, deviation)


def _leaky_relu(z: torch.Tensor, deviation: float, negative_slope: float = 0.01, *_: Any) -> torch.Tensor:
    return negative_slope * z + (1 - negative_slope) * _ramp(z, deviation)


def _hardtanh(z: torch.Tensor, deviation: float, min_val: float = -1.0, max_val: float = 1.0, *_: Any) -> torch.Tensor:
    return min_val + _ramp(z - min_val, deviation) - _ramp(z - max_val, deviation)


def _elu(z: torch.Tensor, deviation: float, alpha: float = 1.0, *_: Any) -> torch.Tensor:
    return _ramp(z, deviation) + alpha * _fall(z, deviation)


def _celu(z: torch.Tensor, deviation: float, alpha: float = 1.0, *_: Any) -> torch.Tensor:
    return alpha * _elu(z / alpha, deviation / abs(alpha))


SMOOTHED: dict[str, Smoothed] = {
    "relu": lambda z, deviation, *_: _ramp(z, deviation),
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "hardtanh": _hardtanh,
    "relu6": lambda z, deviation, *_: _hardtanh(z, deviation, 0.0, 6.0),
    "elu": _elu,
    "selu": lambda z, deviation, *_: SELU.scale * _elu(z, deviation, SELU.alpha),
    "celu": _celu,
}
"""Means over Gaussian perturbations, by the name of torch's function; each takes the function's input, the standard
deviation and the function's parameters."""


def _ramp(z: torch.Tensor, deviation: float) -> torch.Tensor:
    """Return the mean of ``max(z, 0)``."""
    units = z / deviation
    return z * torch.special.ndtr(units) + deviation / math.sqrt(2 * math.pi) * (-units.square() / 2).exp()


def _fall(z: torch.Tensor, deviation: float, largest: float = 30.0) -> torch.Tensor:
    """Return the mean of ``min(exp(z) - 1, 0)``; far above zero it is zero."""
    grown = (z + deviation**2 / 2).clamp(max=largest).exp()
    return grown * torch.special.ndtr(-z / deviation - deviation) - torch.special.ndtr(-z / deviation)

"""A network whose kinks are smoothed, more sharply with each stage, until it is the true one.

Behind ReLU and max-pooling, Gauss-Newton steps from a picture far away stop among kinks. Smoothed, the network is
nearly linear, and sharpened by and by it carries the picture with it. The maximum over a window becomes
``log(sum exp(beta z)) / beta``, the ramp of ReLU ``log(1 + exp(beta z)) / beta``, and so for all that is made of ramps.

References
----------
Chen and Mangasarian, "A class of smoothing functions for nonlinear and mixed complementarity problems", Comput. Optim.
Appl. 1996.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sparsedl_fl.layers.smoothed_tail import SMOOTHED

__all__ = ["Sharpened", "windows_of"]

LOGISTIC = 1.702
"""A Gaussian of standard deviation ``1.702 / beta`` has the distribution function nearest to ``sigmoid(beta z)``."""


class Sharpened(TorchFunctionMode):
    """A context in which activations with kinks and max-pooling are smoothed.

    Parameters
    ----------
    sharpness : torch.Tensor of shape (b,) or None, default=None
        ``beta`` of each sample times the spread of the function's input. None changes no call.
    spreads : sequence of float, default=()
        Standard deviation of the input of each call of such a function, in order.

    Attributes
    ----------
    seen : list of float
        Standard deviation of the input of each call, where no call is changed.
    """

    def __init__(self, sharpness: torch.Tensor | None = None, spreads: Sequence[float] = ()) -> None:
        super().__init__()
        self.sharpness, self.spreads = sharpness, spreads
        self.seen: list[float] = []
        self._n_calls = 0

    def __enter__(self) -> Sharpened:
        """Count calls from the first."""
        self.seen, self._n_calls = [], 0
        return super().__enter__()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the function's value, or its smoothed one."""
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "").rstrip("_")
        pooled, curved = POOLS.get(name), SMOOTHED.get(name)
        if pooled is None and curved is None:
            return function(*args, **kwargs)
        if self.sharpness is None:
            self.seen.append(float(args[0].detach().std(correction=0)))
            return function(*args, **kwargs)
        number, self._n_calls = self._n_calls, self._n_calls + 1
        beta = (self.sharpness / self.spreads[number]).to(args[0].dtype).reshape(-1, *[1] * (args[0].ndim - 1))
        if pooled is not None:
            return pooled(args[0], beta, *args[1:], **kwargs)
        given = {key: value for key, value in kwargs.items() if key != "inplace"}
        return curved(args[0], LOGISTIC / beta, *args[1:], **given)


def _max_pool(z: torch.Tensor, beta: torch.Tensor, *args: Any, n_axes: int, **kwargs: Any) -> torch.Tensor:
    """Return the smoothed maximum over windows of the last axes."""
    return windows_of(z * beta, *args, n_axes=n_axes, **kwargs).logsumexp(dim=-1) / beta


def windows_of(
    z: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,  # those that do are another function of torch
    *,
    n_axes: int,
) -> torch.Tensor:
    """Return the windows of a pooling over the last axes, their entries along one more axis.

    The parameters are those of torch's function; padding is far below all numbers.
    """
    stride = kernel_size if stride is None or stride == [] else stride
    each = zip(*(_each(part, n_axes) for part in (kernel_size, stride, padding, dilation)), strict=True)
    windows, outside = z, torch.finfo(z.dtype).min / 4
    for axis, (kernel, step, pad, gap) in enumerate(each):
        windows = _windowed(windows, z.ndim - n_axes + axis, kernel, step, pad, gap, ceil_mode, outside)
    return windows.flatten(z.ndim)


def _each(part: Any, n_axes: int) -> Sequence[int]:
    return [part] * n_axes if isinstance(part, int) else list(part) if len(part) == n_axes else [part[0]] * n_axes


def _windowed(
    z: torch.Tensor, axis: int, kernel: int, step: int, pad: int, gap: int, ceil_mode: bool, outside: float
) -> torch.Tensor:
    """Return windows along an axis, their entries along a new last axis; padding is ``outside``."""
    length, reach = z.shape[axis], gap * (kernel - 1) + 1
    n = (math.ceil if ceil_mode else math.floor)((length + 2 * pad - reach) / step) + 1
    if ceil_mode and (n - 1) * step >= length + pad:  # torch drops a window that would start in the padding
        n -= 1
    if kernel == step and pad == 0 and gap == 1 and n * step <= length:
        return z.narrow(axis, 0, n * step).unflatten(axis, (n, step)).movedim(axis + 1, -1)
    after = max(0, (n - 1) * step + reach - length - pad)
    widths = [0, 0] * (z.ndim - 1 - axis) + [pad, after]
    index = (torch.arange(n)[:, None] * step + torch.arange(kernel) * gap).flatten().to(z.device)
    padded = functional.pad(z, widths, value=outside)
    return padded.index_select(axis, index).unflatten(axis, (n, kernel)).movedim(axis + 1, -1)


def _adaptive(
    z: torch.Tensor, beta: torch.Tensor, output_size: Any, return_indices: bool = False, *, n_axes: int
) -> torch.Tensor:
    """Return the smoothed maximum over windows that cover the last axes in as many parts as asked for."""
    found = z * beta
    for axis, wanted in zip(range(z.ndim - n_axes, z.ndim), _each(output_size, n_axes), strict=True):
        length = found.shape[axis]
        n = length if wanted is None else wanted
        limits = [((part * length) // n, -((-(part + 1) * length) // n)) for part in range(n)]
        parts = [found.narrow(axis, a, b - a).logsumexp(dim=axis, keepdim=True) for a, b in limits]
        found = torch.cat(parts, dim=axis)
    return found / beta


def _pool(function: Callable[..., torch.Tensor], n_axes: int) -> Callable[..., torch.Tensor]:
    return lambda z, beta, *args, **kwargs: function(z, beta, *args, n_axes=n_axes, **kwargs)


def _indexed(*_: Any, **__: Any) -> torch.Tensor:
    raise ValueError("max-pooling that returns indices cannot be smoothed: unpooling is not supported")


POOLS: dict[str, Callable[..., torch.Tensor]] = {
    **{f"max_pool{n}d": _pool(_max_pool, n) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": _pool(_adaptive, n) for n in (1, 2, 3)},
    **{f"{kind}max_pool{n}d_with_indices": _indexed for kind in ("", "adaptive_") for n in (1, 2, 3)},
}
"""Smoothed pooling, by the name of torch's function; each takes its input, the sharpness and its parameters."""

"""A user's own activation, and its check."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sparsedl_fl.activations.base_activation import Activation
from sparsedl_fl.activations.smooth import Smooth

__all__ = ["Elementwise", "check_activation"]

Function = Callable[[torch.Tensor], torch.Tensor]


class Elementwise(Smooth):
    """A function of your own, applied to each entry by itself.

    Parameters
    ----------
    function : callable
        Takes and returns a tensor of any shape, entry by entry, and can be differentiated by torch.
    is_monotone : bool, default=False
        Whether it never decreases.

    Raises
    ------
    ValueError
        If `check_activation` finds something wrong.

    Examples
    --------
    >>> snake = Elementwise(lambda z: z + torch.sin(z) ** 2)
    >>> snake.derivative(torch.zeros(2)).tolist()
    [1.0, 1.0]
    """

    name = "elementwise"

    def __init__(self, function: Function, is_monotone: bool = False) -> None:
        self.function, self.is_monotone = function, bool(is_monotone)
        check_activation(self)

    def value(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi(z)``."""
        return self.function(z)

    def derivative(self, z: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(z)``, by torch."""
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            (slopes,) = torch.autograd.grad(self.function(z).sum(), z)
        return slopes

    def __repr__(self) -> str:
        return f"Elementwise({getattr(self.function, '__name__', self.function)!s})"


def check_activation(activation: Activation, *, tolerance: float = 1e-6) -> None:
    """Check that an activation fulfils what the package needs.

    It has to act on each entry by itself and in double precision, be finite, and its derivative has to be that of its
    value.

    Parameters
    ----------
    activation : Activation
        The activation.
    tolerance : float, default=1e-6
        Largest difference of a slope from the difference quotient, relative to one plus its size; kinks are left out.

    Raises
    ------
    TypeError
        If this is no `Activation`.
    ValueError
        If it changes shape or precision, mixes entries, is not finite, or has another derivative than it says.
    """
    if not isinstance(activation, Activation):
        raise TypeError(f"expected an Activation, got {type(activation).__name__}")
    generator = torch.Generator().manual_seed(0)
    z = 3 * torch.randn((7, 30), generator=generator, dtype=torch.float64)
    value, slope = activation.value(z), activation.derivative(z)
    for name, result in (("value", value), ("derivative", slope)):
        if result.shape != z.shape or result.dtype != z.dtype:
            raise ValueError(
                f"{activation!r}: {name} must return the shape and precision it is given, {tuple(z.shape)} and "
                f"{z.dtype}, got {tuple(result.shape)} and {result.dtype}"
            )
        if not torch.isfinite(result).all():
            raise ValueError(f"{activation!r}: {name} is not finite for numbers of the size of one")
    alone = torch.cat([activation.value(row[None]) for row in z])
    reversed_back = activation.value(z.flip(0)).flip(0)
    if not (torch.allclose(alone, value) and torch.allclose(reversed_back, value)):
        raise ValueError(f"{activation!r}: value mixes the inputs of a batch")
    changed = z.clone()
    changed[:, 0] += 1
    if not torch.equal(activation.value(changed)[:, 1:], value[:, 1:]):
        raise ValueError(f"{activation!r}: value mixes units; it has to act on each by itself")
    step = 1e-6
    above, below = activation.value(z + step), activation.value(z - step)
    right, left = (above - value) / step, (value - below) / step
    is_smooth = (right - left).abs() < 1e-3 * (1 + left.abs())
    wrong = ((above - below) / (2 * step) - slope).abs() > tolerance * (1 + slope.abs())
    if (wrong & is_smooth).any():
        raise ValueError(f"{activation!r}: derivative is not that of value")

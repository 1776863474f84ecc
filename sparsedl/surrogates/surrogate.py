"""What every surrogate shares: the abstract base, and the check of a user's own."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch

from sparsedl._validation import Strategy

__all__ = ["Surrogate", "check_surrogate"]


class Surrogate(Strategy):
    """An even function ``phi(t)``, elementwise, with its derivative.

    A surrogate of your own derives from this class, takes its parameters as keywords, and defines `value` and
    `derivative`; `check_surrogate` tells what is wrong with it.
    """

    smooth: ClassVar[bool] = False
    """True when minima lie near sparse directions rather than at them."""

    @abstractmethod
    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``phi(t)``, of the shape of ``t``."""

    @abstractmethod
    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(t)``, of the shape of ``t``; a subgradient where ``phi`` has a kink."""

    def weights(self, t: torch.Tensor, smoothing: float | torch.Tensor) -> torch.Tensor:
        """Return ``phi'(s) / s`` at ``s = sqrt(t^2 + smoothing^2)``: the parabola that touches ``phi`` there."""
        moduli = (t.square() + smoothing**2).sqrt()
        return self.derivative(moduli) / moduli


def check_surrogate(surrogate: Surrogate) -> None:
    """Check a surrogate of your own, and say what is wrong with it.

    Parameters
    ----------
    surrogate : Surrogate
        An instance.

    Raises
    ------
    TypeError
        If it is no `Surrogate`, or its results are not tensors of the shape and dtype of their argument.
    ValueError
        If it is not even, not stationary at zero, not finite, or its derivative is not that of its value.

    Examples
    --------
    >>> from sparsedl.surrogates import LogCosh
    >>> check_surrogate(LogCosh(mu=0.2))
    """
    name = type(surrogate).__name__
    if not isinstance(surrogate, Surrogate):
        raise TypeError(f"{name} must derive from sparsedl.surrogates.Surrogate")
    surrogate.check_parameters()
    positive = torch.tensor([0.013, 0.07, 0.19, 0.43, 0.77, 1.3, 2.9, 7.1], dtype=torch.float64)
    t = torch.cat([-positive.flip(0), positive])
    results = {"value": surrogate.value(t), "derivative": surrogate.derivative(t)}
    for method, result in results.items():
        if not isinstance(result, torch.Tensor) or result.shape != t.shape or result.dtype != t.dtype:
            raise TypeError(f"{name}.{method} must return a tensor of the shape and dtype of its argument")
        if not torch.isfinite(result).all():
            raise ValueError(f"{name}.{method} is not finite everywhere")
    if not torch.allclose(results["value"], results["value"].flip(0)):
        raise ValueError(f"{name}.value is not even: phi(t) and phi(-t) differ")
    step = 1e-6
    slope = (surrogate.value(t + step) - surrogate.value(t - step)) / (2 * step)
    wrong = ~torch.isclose(results["derivative"], slope, rtol=1e-4, atol=1e-6)
    if wrong.any():
        at = t[wrong][0].item()
        raise ValueError(
            f"{name}.derivative is not that of its value: at t={at:g} it is {results['derivative'][wrong][0]:g}, "
            f"and the slope of the value is {slope[wrong][0]:g}"
        )
    if surrogate.derivative(torch.zeros(1, dtype=torch.float64)).item() != 0:
        raise ValueError(f"{name}.derivative must be zero at zero")

"""Surrogates of the number of non-zeros: even functions ``phi`` whose sum over the entries of ``L q`` is minimised.

Which one to use
----------------
- `LogSum` (the default) is concave away from zero, so a true column stays a minimum even when the samples are few
  for the number of components. It recovers the most, and needs no rounding of its own.
- `L1` is the surrogate of SPEAR++: one minimum a column when samples are plentiful.
- `LogCosh` and `Huber` are smooth versions of `L1`: fewer spurious minima, but they stop near a sparse direction, not
  at it, so `sparsedl.rounding` has to finish.
- `GaussianMoments` knows how large the noise is, and is blind to it: what it measures of noisy entries is, in
  expectation, what it would measure of clean ones. Where most entries are noise, `sparsedl.noisy` does better.
- `NegativeL4` is the classical spiky-ness measure. It wants many samples and very sparse codes.

Entries are in units in which a unit direction gives entries of mean square one, so parameters need no rescaling.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from sklearn.base import BaseEstimator

from sparsedl._validation import check_positive

__all__ = ["Surrogate", "L1", "LogSum", "LogCosh", "Huber", "GaussianMoments", "NegativeL4", "check_surrogate"]


class Surrogate(BaseEstimator, ABC):
    """An even function ``phi(t)``, elementwise, with its derivative.

    A surrogate of your own derives from this class, takes its parameters as keywords, and defines `value` and
    `derivative`; `check_surrogate` tells what is wrong with it.
    """

    smooth: ClassVar[bool] = False
    """True when minima lie near sparse directions rather than at them."""

    def check_parameters(self) -> None:
        """Raise ``ValueError`` for a parameter out of its range. Called once by ``fit``."""

    @abstractmethod
    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``phi(t)``, of the shape of ``t``."""

    @abstractmethod
    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``phi'(t)``, of the shape of ``t``; a subgradient where ``phi`` has a kink."""

    def weights(self, t: torch.Tensor, smoothing: float) -> torch.Tensor:
        """Return ``phi'(s) / s`` at ``s = sqrt(t^2 + smoothing^2)``: the parabola that touches ``phi`` there."""
        moduli = (t.square() + smoothing**2).sqrt()
        return self.derivative(moduli) / moduli


@dataclass(eq=False, repr=False, kw_only=True)
class L1(Surrogate):
    """The absolute value, ``phi(t) = |t|``.

    References
    ----------
    Bai, Jiang and Sun, "Subgradient descent learns orthogonal dictionaries", ICLR 2019; SPEAR++ (2025), Sec. 4.2.

    Examples
    --------
    >>> import torch
    >>> L1().value(torch.tensor([-2.0, 0.5]))
    tensor([2.0000, 0.5000])
    """

    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``|t|``."""
        return t.abs()

    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``sign(t)``."""
        return t.sign()


@dataclass(eq=False, repr=False, kw_only=True)
class LogSum(Surrogate):
    """The log-sum penalty, ``phi(t) = epsilon log(1 + |t| / epsilon)``.

    Parameters
    ----------
    epsilon : float, default=0.3
        Where the penalty bends. Large values approach `L1`; small ones count non-zeros and get rugged.

    References
    ----------
    Candes, Wakin and Boyd, "Enhancing sparsity by reweighted l1 minimization", J. Fourier Anal. Appl. 2008, Eq. 9.
    """

    epsilon: float = 0.3

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless ``epsilon`` is positive."""
        check_positive(self, "epsilon", self.epsilon)

    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``epsilon log(1 + |t| / epsilon)``."""
        return self.epsilon * torch.log1p(t.abs() / self.epsilon)

    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``sign(t) / (1 + |t| / epsilon)``."""
        return t.sign() / (1 + t.abs() / self.epsilon)


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
    mu: float = 0.1

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless ``mu`` is positive."""
        check_positive(self, "mu", self.mu)

    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``mu log cosh(t / mu)``, without overflow."""
        a = t.abs() / self.mu
        return self.mu * (a + torch.log1p(torch.exp(-2 * a)) - math.log(2))

    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``tanh(t / mu)``."""
        return torch.tanh(t / self.mu)


@dataclass(eq=False, repr=False, kw_only=True)
class Huber(Surrogate):
    """The absolute value with a parabola at the tip, ``t^2 / (2 delta) + delta / 2`` for ``|t| <= delta``.

    Parameters
    ----------
    delta : float, default=0.1
        Half-width of the parabola.

    References
    ----------
    Qu, Zhu, Li, Tsakiris, Wright and Vidal, "Finding the sparsest vectors in a subspace", 2020, Table II.
    """

    smooth: ClassVar[bool] = True
    delta: float = 0.1

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless ``delta`` is positive."""
        check_positive(self, "delta", self.delta)

    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``|t|`` beyond ``delta`` and the parabola that continues it within."""
        a = t.abs()
        return torch.where(a > self.delta, a, t.square() / (2 * self.delta) + self.delta / 2)

    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``t / delta`` clipped to [-1, 1]."""
        return (t / self.delta).clamp(-1, 1)


@dataclass(eq=False, repr=False, kw_only=True)
class GaussianMoments(Surrogate):
    """A Gaussian valley that takes the noise off, ``phi(t) = c^2 (1 - c / v exp(-t^2 / (2 v^2)))``.

    With ``v^2 = c^2 - s^2``. For ``t = y + s e`` with standard Gaussian ``e`` its expectation is that of a valley of
    width ``c`` around the clean ``y``, ``c^2 (1 - exp(-y^2 / (2 c^2)))``. Other surrogates grow with the noise of a
    direction, and so prefer quiet directions to sparse ones.

    Parameters
    ----------
    width : float, default=0.3
        The width ``c``, more than ``noise``. Twice the noise was best of 1.2, 1.5, 2 and 3 at 15 and 20 dB.
    noise : float, default=0.03
        Standard deviation ``s`` of the noise on the entries of ``L q``.

    References
    ----------
    Hyvarinen, "Gaussian moments for noisy independent component analysis", IEEE Signal Process. Lett. 1999, Eq. 5.
    """

    smooth: ClassVar[bool] = True
    width: float = 0.3
    noise: float = 0.03

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless both parameters are positive and ``noise`` is less than ``width``."""
        check_positive(self, "width", self.width)
        check_positive(self, "noise", self.noise)
        if self.noise >= self.width:
            raise ValueError(f"GaussianMoments: noise must be less than width, {self.width!r}, got {self.noise!r}")

    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``c^2 (1 - c / v exp(-t^2 / (2 v^2)))``."""
        remaining = self.width**2 - self.noise**2
        return self.width**2 * (1 - self.width / remaining**0.5 * torch.exp(-t.square() / (2 * remaining)))

    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``c^3 / v^3 t exp(-t^2 / (2 v^2))``."""
        remaining = self.width**2 - self.noise**2
        return (self.width / remaining**0.5) ** 3 * t * torch.exp(-t.square() / (2 * remaining))


@dataclass(eq=False, repr=False, kw_only=True)
class NegativeL4(Surrogate):
    """The negative fourth power, ``phi(t) = -t^4 / 4``.

    References
    ----------
    Zhai, Yang, Liao, Wright and Ma, "Complete dictionary learning via l4-norm maximization over the orthogonal
    group", JMLR 2020.
    """

    smooth: ClassVar[bool] = True

    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``-t^4 / 4``."""
        return -t.pow(4) / 4

    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``-t^3``."""
        return -t.pow(3)


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

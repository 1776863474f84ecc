"""Surrogates of the number of non-zeros: even functions ``phi`` whose sum over the entries of ``L q`` is minimised.

Which one to use
----------------
- `LogSum` (the default) is concave away from zero, so a true column stays a minimum even when the samples are few
  for the number of components. It recovers the most, and needs no rounding of its own.
- `L1` is the surrogate of SPEAR++: one minimum a column when samples are plentiful.
- `LogCosh` and `Huber` are smooth versions of `L1`: fewer spurious minima, but they stop near a sparse direction, not
  at it, so `sparsedl.rounding` has to finish.
- `Cauchy` and `GemanMcClure` count non-zeros, smoothly: the most rugged, and the ones for
  `sparsedl.optimizers.Graduated`, which starts them from a smooth version of themselves.
- `NegativeL4` is the classical spiky-ness measure. It wants many samples and very sparse codes.

Entries are in units in which a unit direction gives entries of mean square one, so parameters need no rescaling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from sparsedl._surrogate import Surrogate, check_surrogate
from sparsedl._validation import check_positive

__all__ = ["Surrogate", "L1", "LogSum", "LogCosh", "Huber", "Cauchy", "GemanMcClure", "NegativeL4", "check_surrogate"]


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
class Cauchy(Surrogate):
    """The Lorentzian, ``phi(t) = scale^2 / 2 log(1 + t^2 / scale^2)``: the negative logarithm of a Cauchy density.

    Its weights at a smoothing ``s`` are ``1 / (t^2 + s^2 + scale^2)`` up to a factor: smoothed, it is itself with a
    larger scale.

    Parameters
    ----------
    scale : float, default=0.01
        Half-width of the Cauchy density.

    References
    ----------
    Black and Rangarajan, "On the unification of line processes, outlier rejection, and robust statistics", Int. J.
    Comput. Vis. 1996; Chartrand and Yin, ICASSP 2008, for its weights.
    """

    smooth: ClassVar[bool] = True
    scale: float = 0.01

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless ``scale`` is positive."""
        check_positive(self, "scale", self.scale)

    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``scale^2 / 2 log(1 + t^2 / scale^2)``."""
        return self.scale**2 / 2 * torch.log1p((t / self.scale).square())

    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``t / (1 + t^2 / scale^2)``."""
        return t / (1 + (t / self.scale).square())

    def weights(self, t: torch.Tensor, smoothing: float | torch.Tensor) -> torch.Tensor:
        """Return ``1 / (1 + (t^2 + smoothing^2) / scale^2)``."""
        return t.square().add_(smoothing**2 + self.scale**2).reciprocal_().mul_(self.scale**2)


@dataclass(eq=False, repr=False, kw_only=True)
class GemanMcClure(Surrogate):
    """The bounded count ``phi(t) = scale^2 / 2 * t^2 / (t^2 + scale^2)``: large entries cost the same.

    Its weights at a smoothing ``s`` are ``1 / (t^2 + s^2 + scale^2)^2`` up to a factor. It reaches columns with fewer
    zeros than `Cauchy` does.

    Parameters
    ----------
    scale : float, default=0.01
        Width of the dip at zero.

    References
    ----------
    Geman and McClure, "Statistical methods for tomographic image reconstruction", Bull. Int. Stat. Inst. 1987; Black
    and Rangarajan, Int. J. Comput. Vis. 1996.
    """

    smooth: ClassVar[bool] = True
    scale: float = 0.01

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless ``scale`` is positive."""
        check_positive(self, "scale", self.scale)

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

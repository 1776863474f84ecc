"""The log-sum penalty."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsedl.surrogates.surrogate import Surrogate


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

    positive = ("epsilon",)
    epsilon: float = 0.3

    def value(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``epsilon log(1 + |t| / epsilon)``."""
        return self.epsilon * torch.log1p(t.abs() / self.epsilon)

    def derivative(self, t: torch.Tensor) -> torch.Tensor:
        """Return ``sign(t) / (1 + |t| / epsilon)``."""
        return t.sign() / (1 + t.abs() / self.epsilon)

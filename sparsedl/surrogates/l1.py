"""The absolute value, the surrogate of SPEAR++."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsedl.surrogates.surrogate import Surrogate


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

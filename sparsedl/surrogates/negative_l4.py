"""The negative fourth power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sparsedl.surrogates.surrogate import Surrogate


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

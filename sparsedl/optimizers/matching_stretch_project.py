"""Matching, stretching and projection: l4 maximisation over the orthogonal group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from sparsedl.optimizers.optimizer import OptimizationResult, Optimizer
from sparsedl.surrogates import NegativeL4, Surrogate


@dataclass(eq=False, repr=False, kw_only=True)
class MatchingStretchProject(Optimizer):
    """All components at once: an orthogonal ``A`` is replaced by the polar factor of ``(A L^T)^3 L``.

    Starts are taken in groups of ``n_components``, each made orthogonal. It goes with `NegativeL4` alone, whose
    derivative is the cube.

    Parameters
    ----------
    max_iter : int, default=100
        Number of iterations.

    References
    ----------
    Zhai, Yang, Liao, Wright and Ma, "Complete dictionary learning via l4-norm maximization over the orthogonal
    group", JMLR 2020, Algorithm 1.
    """

    wants_white: ClassVar[bool] = True
    counts = ("max_iter",)
    max_iter: int = 100

    def check_surrogate(self, surrogate: Surrogate) -> None:
        """Raise ``TypeError`` unless the surrogate is `NegativeL4`."""
        if not isinstance(surrogate, NegativeL4):
            raise TypeError(
                "MatchingStretchProject maximises the fourth power and goes with the surrogate NegativeL4(), "
                f"got {surrogate!r}"
            )

    def minimize(self, observations: torch.Tensor, starts: torch.Tensor, surrogate: Surrogate) -> OptimizationResult:
        """Run every group of starts for ``max_iter`` iterations."""
        n_starts, n_components = starts.shape
        n_groups = -(-n_starts // n_components)
        padding = torch.eye(n_components, dtype=starts.dtype, device=starts.device)
        groups = torch.cat([starts, padding])[: n_groups * n_components].view(n_groups, n_components, n_components)
        frames = _polar(groups)
        for _ in range(self.max_iter):
            frames = _polar(-surrogate.derivative(frames @ observations.T) @ observations)
        return OptimizationResult(directions=frames.reshape(-1, n_components)[:n_starts], n_iter=self.max_iter)


def _polar(matrices: torch.Tensor) -> torch.Tensor:
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    return left @ right

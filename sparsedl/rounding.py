"""Rounding: from a direction near a sparse one to the sparse one itself.

Which one to use
----------------
- `ReweightedRounding` (the default) polishes every candidate at once with a few eigenvalue problems. It repairs the
  error of a first-order optimiser as well as that of a smooth surrogate.
- `KernelRounding` is the one of SPEAR++: the kernel of rows drawn among those that are nearly zero.
- `LinearProgramRounding` is the classical one and the slowest: one linear programme a direction.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import linprog

from sparsedl._validation import Strategy
from sparsedl.linalg import normalized, reweight, vanishing_vectors
from sparsedl.zeros import informative_rows

__all__ = ["Rounding", "ReweightedRounding", "KernelRounding", "LinearProgramRounding"]


ROUNDING = 100.0
"""Entries below this many units of rounding are all the same: zero."""


class Rounding(Strategy):
    """Moves approximate directions onto sparse ones."""

    draws: ClassVar[bool] = True
    """False where a direction is rounded without chance, and without regard to the others."""

    @abstractmethod
    def round(self, observations: torch.Tensor, directions: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return unit directions at which ``L q`` is sparser.

        Parameters
        ----------
        observations : torch.Tensor of shape (n_samples, n_components)
            Whitened observations ``L``.
        directions : torch.Tensor of shape (n_directions, n_components)
            Approximate unit directions, one a row.
        generator : torch.Generator
            Source of randomness, on the CPU.
        """


@dataclass(eq=False, repr=False, kw_only=True)
class ReweightedRounding(Rounding):
    """Iteratively reweighted least squares with a shrinking smoothing.

    Each iteration takes the smallest eigenvector of ``L^T diag(1 / ((L q)^2 + s^2)) L`` and shrinks ``s``.

    Parameters
    ----------
    smoothing : float, default=0.05
        First ``s``; about the size that the entries at zeros still have.
    shrinkage : float, default=0.2
        Factor on ``s`` after each iteration.
    max_iter : int, default=6
        Number of eigenvalue problems.

    References
    ----------
    Chartrand and Yin, "Iteratively reweighted algorithms for compressive sensing", ICASSP 2008.
    """

    draws: ClassVar[bool] = False
    positive, counts = ("smoothing", "shrinkage"), ("max_iter",)
    smoothing: float = 0.05
    shrinkage: float = 0.2
    max_iter: int = 6

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless all parameters are positive and ``shrinkage`` is at most one."""
        super().check_parameters()
        if self.shrinkage > 1:
            raise ValueError(f"{type(self).__name__}: shrinkage must be at most 1, got {self.shrinkage!r}")

    def round(self, observations: torch.Tensor, directions: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Reweight ``max_iter`` times."""
        return reweight(
            directions,
            observations,
            scales=[self.smoothing * self.shrinkage**iteration for iteration in range(self.max_iter)],
            weigh=lambda entries, scale: scale**2 / (entries.square() + scale**2),
            step=lambda weights, _: vanishing_vectors(observations, weights),
        )


@dataclass(eq=False, repr=False, kw_only=True)
class KernelRounding(Rounding):
    """The kernel of ``k - 1`` rows drawn among those where ``|L q|`` is smallest.

    Parameters
    ----------
    pool_factor : float, default=1.5
        The rows are drawn among the ``pool_factor * k`` smallest.
    n_draws : int, default=16
        Draws a direction; the sparsest outcome is kept. The paper draws once.

    References
    ----------
    SPEAR++ (2025), Sec. 4.4.
    """

    positive, counts = ("pool_factor",), ("n_draws",)
    pool_factor: float = 1.5
    n_draws: int = 16

    def check_parameters(self) -> None:
        """Raise ``ValueError`` unless ``pool_factor`` is at least one and ``n_draws`` a positive integer."""
        super().check_parameters()
        if self.pool_factor < 1:
            raise ValueError(f"{type(self).__name__}: pool_factor must be at least 1, got {self.pool_factor!r}")

    def round(self, observations: torch.Tensor, directions: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw all rows of all directions, and take all kernels, at once."""
        n_rows, k = observations.shape
        if k == 1:
            return directions
        n_pool = min(n_rows, max(k - 1, int(self.pool_factor * k)))
        entries = (directions @ observations.T).abs()
        entries[:, ~informative_rows(observations)] = torch.inf
        # Which of several zeros is smallest is rounding, which prefers rows that are alike: let chance decide.
        lengths = torch.linalg.vector_norm(observations, dim=1)
        rounding = ROUNDING * torch.finfo(entries.dtype).eps * lengths.max()
        chance = torch.rand(entries.shape, generator=generator, dtype=torch.float64).to(entries)
        entries = torch.where(entries <= rounding, rounding * chance, entries)
        smallest = entries.topk(n_pool, dim=1, largest=False).indices
        order = torch.rand((self.n_draws, len(directions), n_pool), generator=generator, dtype=torch.float64)
        drawn = order.argsort(dim=2)[:, :, : k - 1].to(smallest.device)
        rows = torch.gather(smallest.expand(self.n_draws, -1, -1), 2, drawn)
        kernels = torch.linalg.svd(observations[rows], full_matrices=True).Vh[:, :, -1]
        near_zero = ((kernels @ observations.T).abs() < 1e-2).sum(dim=2)
        best = near_zero.argmax(dim=0)
        return kernels[best, torch.arange(len(directions), device=best.device)]


@dataclass(eq=False, repr=False, kw_only=True)
class LinearProgramRounding(Rounding):
    """The linear programme ``min |L q|_1`` subject to ``<r, q> = 1``, with ``r`` the approximate direction.

    References
    ----------
    Spielman, Wang and Wright, "Exact recovery of sparsely-used dictionaries", COLT 2012; Sun, Qu and Wright 2017,
    Eq. 2.8. Solved by HiGHS.
    """

    draws: ClassVar[bool] = False

    def round(self, observations: torch.Tensor, directions: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Solve one linear programme a direction; a direction that HiGHS cannot solve is returned as it came."""
        L = observations.cpu().numpy()
        n_rows, k = L.shape
        cost = np.concatenate([np.zeros(k), np.ones(n_rows)])
        upper = np.block([[L, -np.eye(n_rows)], [-L, -np.eye(n_rows)]])
        bounds = [(None, None)] * k + [(0, None)] * n_rows
        rounded = []
        for direction in directions.cpu().numpy():
            equality = np.concatenate([direction, np.zeros(n_rows)])[None, :]
            solution = linprog(cost, upper, np.zeros(2 * n_rows), equality, [1.0], bounds, method="highs")
            rounded.append(solution.x[:k] if solution.success else direction)
        return normalized(torch.as_tensor(np.array(rounded), dtype=directions.dtype), dim=1).to(directions.device)

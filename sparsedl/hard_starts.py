"""Starts for few samples: thousands of cheap graduated descents, of which the few that may be a column are looked at.

At four or five samples a component a start in a thousand reaches a given column, and the columns with the fewest zeros
are reached last. So starts have to be cheap (single precision, two products a step), different from each other (the
hot end of the smoothing is spread over them, and each task draws its price on the columns found), and looked at
cheaply: an end is handed on only where it has converged to more zeros than chance. Two surrogates take turns. `Cauchy`
reaches the most columns a second from 50 components on, and `GemanMcClure` those with few zeros.

The order of calls, for one task with its own generator::

    turns = graduations(n_components)
    ends = hard_ends(test.observations, found, n_starts, turns[index % len(turns)], generator)
    candidates = test.refit(rounded(test.observations, ends.directions, generator))
    accepted, n_zeros = test.accept(candidates)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sparsedl.linalg import normalized
from sparsedl.optimizers import Graduated, Optimizer
from sparsedl.pools import distinct
from sparsedl.rounding import ReweightedRounding
from sparsedl.surrogates import Cauchy, GemanMcClure, Surrogate
from sparsedl.zeros import required_zeros

__all__ = ["Graduation", "HardEnds", "draw_starts", "graduations", "hard_ends", "rounded", "stretch"]

SCALE, CONVERGED, NEAR_ZERO = 1e-3, 2e-3, 6e-3
"""Least width of the surrogates, smoothing at which a descent has converged, and what its zeros are smaller than."""

HALF_NORMAL_DENSITY, CROWDING, FALSE_LOOK = 0.8, 4.0, 0.01
"""Density of a Gaussian entry's modulus at zero, how much denser entries are at spurious minima (as in
`sparsedl.search`), and the probability at which a spurious end passes the look."""


@dataclass(frozen=True)
class Graduation:
    """One way down, and the look at where it ended.

    The numbers of those below are tuned on `make_sparse_dictionary` with half zeros, seeds 3000 to 3005, at
    (components, samples a component) = (20, 4), (50, 5), (50, 4) and (100, 6).

    Attributes
    ----------
    surrogate : Surrogate
        What is minimised.
    optimizer : Optimizer
        How, on the stretched sphere.
    finish : Optimizer
        How the best ends are made to converge, on the sphere itself, with `Cauchy`.
    look : float
        Entries below this are counted to find the best ends.
    """

    surrogate: Surrogate
    optimizer: Optimizer
    finish: Optimizer
    look: float


FAST_CAUCHY, SLOW_CAUCHY = (
    Graduation(
        surrogate=Cauchy(scale=SCALE),
        optimizer=Graduated(max_iter=max_iter, smoothing=(0.4, 2.5), final_smoothing=0.1),
        finish=Graduated(max_iter=40, smoothing=0.1, final_smoothing=CONVERGED, momentum=0.5),
        look=0.05,
    )
    for max_iter in (75, 200)
)
FAST_GEMAN, SLOW_GEMAN = (
    Graduation(
        surrogate=GemanMcClure(scale=SCALE),
        optimizer=Graduated(max_iter=max_iter, smoothing=(0.3, hot), final_smoothing=cold),
        finish=Graduated(max_iter=8, smoothing=cold, final_smoothing=CONVERGED, momentum=0.5),
        look=0.02,
    )
    for max_iter, hot, cold in ((100, 1.0, 0.02), (250, 1.5, 0.03))
)


def graduations(n_components: int, *, many: int = 32) -> tuple[Graduation, ...]:
    """Return the graduations that take turns, task by task.

    The boundary lies between 20 components, where `GemanMcClure` alone was the fastest for the last columns, and 50,
    where only the slow ones recovered (50, 4) whole; in between nothing was measured.
    """
    if n_components < many:
        return FAST_CAUCHY, FAST_GEMAN, FAST_GEMAN, FAST_GEMAN
    return FAST_CAUCHY, FAST_GEMAN, SLOW_CAUCHY, SLOW_GEMAN


@dataclass(frozen=True)
class HardEnds:
    """What a task hands on.

    Attributes
    ----------
    directions : torch.Tensor of shape (n_ends, n_components)
        Ends worth rounding: converged, with more zeros than chance, and none of them found before; float64 unit rows.
    n_starts : int
        Starts spent.
    n_found : int
        Starts that ended at a column found before.
    """

    directions: torch.Tensor
    n_starts: int
    n_found: int


def hard_ends(
    observations: torch.Tensor,
    found: torch.Tensor,
    n_starts: int,
    graduation: Graduation,
    generator: torch.Generator,
    *,
    largest_price: float = 5.0,
    share_looked_at: float = 0.1,
    near_found: float = 0.9,
) -> HardEnds:
    """Run one task of starts and return the ends that are worth rounding.

    Parameters
    ----------
    observations : torch.Tensor of shape (n_samples, n_components)
        Whitened observations ``L`` in float64, on the device where the starts are to run.
    found : torch.Tensor of shape (n_found, n_components)
        Independent columns found so far.
    n_starts : int
        Starts in this task; 256 is fast from 20 components on.
    graduation : Graduation
        One of `graduations`, in turn.
    generator : torch.Generator
        Source of randomness, on the CPU: of the starts and of the price.
    largest_price : float, default=5.0
        The sphere is stretched along what is found by a factor drawn log-uniformly from one to this.
    share_looked_at : float, default=0.1
        Share of the ends that converge; the hits of a hundred tasks were all among the best 8 %.
    near_found : float, default=0.9
        Cosine to a column found before from which on an end is left out.
    """
    starts = draw_starts(observations.cpu(), found, n_starts, generator)
    price = math.exp(math.log(largest_price) * torch.rand((), generator=generator, dtype=torch.float64).item())
    stretching = stretch(found, price)
    starts = normalized(torch.linalg.solve(stretching, starts.T).T, dim=1)
    L = observations.float()
    stretched = (observations @ stretching.to(observations)).float()
    ends = graduation.optimizer.minimize(stretched, starts.to(L), graduation.surrogate).directions
    ends = normalized(ends @ stretching.T.to(L), dim=1)
    n_zeros = ((ends @ L.T).abs() < graduation.look).sum(dim=1)
    is_found = ((ends @ found.T.to(L)).abs() > near_found).any(dim=1)
    order = torch.argsort(n_zeros.masked_fill(is_found, -1), descending=True, stable=True)
    best = order[: min(math.ceil(share_looked_at * n_starts), n_starts - int(is_found.sum()))]
    converged = graduation.finish.minimize(L, ends[best], Cauchy(scale=SCALE)).directions
    passed = converged[((converged @ L.T).abs() < NEAR_ZERO).sum(dim=1) >= _zeros_to_look_at(*L.shape)]
    directions = normalized(passed.double().cpu(), dim=1)
    new = distinct(torch.cat([found, directions]))[len(found) :]
    return HardEnds(directions[new], n_starts, int(is_found.sum()))


def draw_starts(
    observations: torch.Tensor, found: torch.Tensor, n_starts: int, generator: torch.Generator
) -> torch.Tensor:
    """Draw rows of ``L``, less a random share of their part in the span of the columns found.

    Parameters
    ----------
    observations : torch.Tensor of shape (n_samples, n_components)
        Whitened observations.
    found : torch.Tensor of shape (n_found, n_components)
        Independent columns found so far.
    n_starts : int
        Number of starts.
    generator : torch.Generator
        Source of randomness.
    """
    n_rows, n_components = observations.shape
    starts = observations[torch.randint(n_rows, (n_starts,), generator=generator)]
    # A random perturbation keeps repeated rows apart, and replaces a row that is zero.
    starts = starts + 0.1 * torch.randn((n_starts, n_components), generator=generator, dtype=starts.dtype)
    share = torch.rand((n_starts, 1), generator=generator, dtype=starts.dtype).sqrt()
    if 0 < len(found) < n_components:
        basis = torch.linalg.qr(found.T)[0]
        starts = starts - share * (starts @ basis) @ basis.T
    return normalized(starts, dim=1)


def stretch(found: torch.Tensor, strength: float) -> torch.Tensor:
    """Return ``T = [complement, strength * span]`` of the columns found, of shape (n_components, n_components)."""
    n_found, n_components = found.shape
    if not 0 < n_found < n_components:
        return torch.eye(n_components, dtype=found.dtype)
    basis = torch.linalg.qr(found.T, mode="complete")[0]
    return torch.cat([basis[:, n_found:], strength * basis[:, :n_found]], dim=1)


def rounded(observations: torch.Tensor, directions: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Round converged ends, starting at the width that they have converged to.

    A wide first step jumps: at 0.02, the smallest eigenvector left the exact column with 36 zeros of 80 in the problem
    (20 components, 4 samples each, half zeros, seed 3004), and none of its hits survived.
    """
    rounding = ReweightedRounding(smoothing=CONVERGED, shrinkage=0.1, max_iter=3)
    return rounding.round(observations, directions, generator)


def _zeros_to_look_at(n_rows: int, n_components: int) -> int:
    return required_zeros(n_rows, n_components, CROWDING * HALF_NORMAL_DENSITY * NEAR_ZERO, FALSE_LOOK)

"""Many starts of the third view at once: samples whose activations lie in the span of the next layer's gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn.functional import normalize

from sparsedl_fl.activations import ActivationSpan
from sparsedl_fl.directions._alternation import TwoViews

__all__ = ["project"]

MOMENTUM, RIDGE_SHRINKAGE, LAST_RIDGE = 0.8, 0.94, 1e-6
N_PROJECTIONS = 50
DAMPING, LAST_DAMPING, N_POLISHING = 0.02, 1e-6, 3


@dataclass(frozen=True)
class Schedule:
    """The first ridge of the projections, and how many Newton steps by how much shrinks the damping."""

    ridge: float
    n_newton: int
    damping_shrinkage: float


ROOMY = Schedule(ridge=1e-3, n_newton=10, damping_shrinkage=0.5)
CROWDED = Schedule(ridge=0.1, n_newton=25, damping_shrinkage=0.75)
CROWDED_ABOVE = 0.35
"""Batch size over width above which few ends are samples. A large ridge then leads starts to the same places, of which
only one goes on; in smaller batches a small one leads them to more of the samples."""

SAME_END = 0.98
"""Cosine of the pre-activations of two starts above which one of them goes on."""

WORTH_POLISHING, NEAR, POLISHED = 1e-2, 1e-3, 1e-7
"""Distances from the span, relative: up to which an end goes on in double precision; and at which it is near enough,
in single and in double."""

FEW_ROWS = 0.15
"""Share of rows up to which it is faster to pick those that change."""

_WORKING = torch.float32
_CHUNK_ENTRIES = 16_000_000


def project(views: TwoViews, span: ActivationSpan, n_starts: int, generator: torch.Generator) -> torch.Tensor:
    """Run random starts and return the samples among their ends, as unit rows ``p`` of shape (n_found, b).

    Alternating projections between the span and the pre-activations that the forward view allows bring a start near a
    sample; Newton's method, for the current pattern an eigenvector problem, takes it there.

    Parameters
    ----------
    views : TwoViews
        The forward view, deflated by what is known.
    span : ActivationSpan
        Where activations lie.
    n_starts : int
        Number of starts.
    generator : torch.Generator
        Source of randomness.
    """
    schedule = CROWDED if span.basis.shape[1] > CROWDED_ABOVE * len(span.basis) else ROOMY
    orthonormal, mixing = torch.linalg.qr(views.forward @ views.free)
    ends = _alternating_projections(orthonormal, mixing, span.basis, n_starts, schedule, generator)
    close = (ends @ ends.T).abs() > SAME_END
    ends = ends[~close.tril(diagonal=-1).any(dim=1)]
    rough = replace(span, basis=span.basis.to(_WORKING))
    ends = _newton(
        orthonormal.to(_WORKING), rough, ends, schedule.n_newton, DAMPING, schedule.damping_shrinkage, goal=NEAR
    ).to(orthonormal.dtype)
    ends = ends[span.distances(ends @ orthonormal.T) < WORTH_POLISHING]
    ends = _newton(orthonormal, span, ends, N_POLISHING, LAST_DAMPING, 1.0, goal=POLISHED)
    ends = ends[span.distances(ends @ orthonormal.T) < span.tolerance]
    samples = torch.linalg.solve_triangular(mixing, ends.T, upper=True)
    return normalize((views.free @ samples).T, dim=1)


def _alternating_projections(
    orthonormal: torch.Tensor,
    mixing: torch.Tensor,
    basis: torch.Tensor,
    n_starts: int,
    schedule: Schedule,
    generator: torch.Generator,
) -> torch.Tensor:
    """Return unit coordinates of shape (n_starts, d) in the orthonormal basis of the forward view.

    The ridge, which shrinks, prefers ``p`` of the natural size to those that happen to fit.
    """
    directions, sizes, _ = torch.linalg.svd(mixing)
    regressors, basis = (orthonormal @ directions).to(_WORKING), basis.to(_WORKING)
    power = (sizes.square() / sizes.square().mean()).to(_WORKING)
    z = torch.randn((n_starts, len(sizes)), generator=generator) * power.sqrt() @ regressors.T
    z = previous = normalize(z, dim=1)
    ridge = schedule.ridge
    for _ in range(N_PROJECTIONS):
        ahead = z + MOMENTUM * (z - previous)
        fitted = (torch.relu(ahead) @ basis) @ basis.T
        target = torch.where(ahead > 0, fitted, torch.minimum(ahead, fitted))
        previous, z = z, normalize((target @ regressors) * (power / (power + ridge)) @ regressors.T, dim=1)
        ridge = max(ridge * RIDGE_SHRINKAGE, LAST_RIDGE)
    return normalize(z @ orthonormal.to(_WORKING), dim=1)


def _newton(
    orthonormal: torch.Tensor,
    span: ActivationSpan,
    ends: torch.Tensor,
    n_iterations: int,
    damping: float,
    shrinkage: float,
    goal: float,
) -> torch.Tensor:
    """Minimise ``|(I - V V^T) relu(z)|`` over unit ``z``, for the pattern of the last ``z`` in each iteration.

    An end goes on until its distance from the span is less than the goal.
    """
    parts = ends.split(max(1, _CHUNK_ENTRIES // orthonormal.numel()))
    return torch.cat([_newton_part(orthonormal, span, part, n_iterations, damping, shrinkage, goal) for part in parts])


def _newton_part(
    orthonormal: torch.Tensor,
    span: ActivationSpan,
    ends: torch.Tensor,
    n_iterations: int,
    damping: float,
    shrinkage: float,
    goal: float,
) -> torch.Tensor:
    """Run Newton's method on as many ends as fit into memory."""
    m, d = orthonormal.shape
    ends, is_far, both = ends.clone(), torch.arange(len(ends)), torch.cat([orthonormal, span.basis], dim=1)
    pattern, products = torch.zeros((len(ends), m), dtype=ends.dtype), ends.new_zeros((len(ends), d, both.shape[1]))
    for _ in range(n_iterations):
        if len(is_far) == 0:
            break
        last, pattern = pattern, (ends[is_far] @ orthonormal.T > 0).to(ends.dtype)
        _add_rows(products, orthonormal, both, pattern - last)
        gram, inside = products[:, :, :d], products[:, :, d:]
        system = torch.baddbmm(gram, inside, inside.mT, alpha=-1)
        system.diagonal(dim1=1, dim2=2).add_(damping)
        ends[is_far] = normalize(torch.linalg.solve(system, ends[is_far][..., None])[..., 0], dim=1)
        goes_on = span.distances(ends[is_far] @ orthonormal.T) > goal
        if not goes_on.all():
            is_far, pattern, products = is_far[goes_on], pattern[goes_on], products[goes_on]
        damping = max(damping * shrinkage, LAST_DAMPING)
    return ends


def _add_rows(products: torch.Tensor, left: torch.Tensor, right: torch.Tensor, weights: torch.Tensor) -> None:
    """Add ``left^T diag(w) right`` to each product in place, for each row ``w`` of the weights, most of them zeros."""
    n_rows = (weights != 0).sum(dim=1)
    is_many = n_rows > len(left) * FEW_ROWS
    if is_many.any():
        products[is_many] += (left.T * weights[is_many][:, None, :]) @ right
        weights = torch.where(is_many[:, None], 0.0, weights)
    index = weights.abs().topk(int(torch.where(is_many, 0, n_rows).max()), dim=1).indices
    products.baddbmm_((left[index] * weights.gather(1, index)[..., None]).mT, right[index])

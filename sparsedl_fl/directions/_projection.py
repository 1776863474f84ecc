"""Many starts of the third view at once: samples whose activations lie in the span of the next layer's gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from sparsedl_fl.activations import ActivationSpan
from sparsedl_fl.directions._alternation import TwoViews

__all__ = ["project"]

MOMENTUM, RIDGE, LAST_RIDGE = 0.5, 0.1, 1e-6
DAMPING, LAST_DAMPING, N_POLISHING = 0.02, 1e-6, 3


@dataclass(frozen=True)
class Schedule:
    """How many alternating projections and Newton steps, and by how much ridge and damping shrink in each."""

    n_projections: int
    ridge_shrinkage: float
    n_newton: int
    damping_shrinkage: float


ROOMY = Schedule(n_projections=100, ridge_shrinkage=0.97, n_newton=10, damping_shrinkage=0.5)
CROWDED = Schedule(n_projections=20, ridge_shrinkage=0.9, n_newton=25, damping_shrinkage=0.75)
CROWDED_ABOVE = 0.35
"""Batch size over width above which projections lead to the same wrong places: fewer of them, and more of Newton."""

SAME_END = 0.98
"""Cosine of the pre-activations of two starts above which one of them goes on."""

WORTH_POLISHING = 1e-2
"""Distance from the span, relative, below which an end is polished in double precision."""

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
    rough = orthonormal.to(_WORKING), span.basis.to(_WORKING)
    ends = _newton(*rough, ends, schedule.n_newton, DAMPING, schedule.damping_shrinkage).to(orthonormal.dtype)
    ends = ends[span.distances(ends @ orthonormal.T) < WORTH_POLISHING]
    ends = _newton(orthonormal, span.basis, ends, N_POLISHING, LAST_DAMPING, 1.0)
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
    ridge = RIDGE
    for _ in range(schedule.n_projections):
        ahead = z + MOMENTUM * (z - previous)
        fitted = (torch.relu(ahead) @ basis) @ basis.T
        target = torch.where(ahead > 0, fitted, torch.minimum(ahead, fitted))
        previous, z = z, normalize((target @ regressors) * (power / (power + ridge)) @ regressors.T, dim=1)
        ridge = max(ridge * schedule.ridge_shrinkage, LAST_RIDGE)
    return normalize(z @ orthonormal.to(_WORKING), dim=1)


def _newton(
    orthonormal: torch.Tensor,
    basis: torch.Tensor,
    ends: torch.Tensor,
    n_iterations: int,
    damping: float,
    shrinkage: float,
) -> torch.Tensor:
    """Minimise ``|(I - V V^T) relu(z)|`` over unit ``z``, for the pattern of the last ``z`` in each iteration."""
    m, d = orthonormal.shape
    eye = torch.eye(d, dtype=orthonormal.dtype)
    for _ in range(n_iterations):
        parts = []
        for part in ends.split(max(1, _CHUNK_ENTRIES // (m * d))):
            active = orthonormal.T * (part @ orthonormal.T > 0)[:, None, :]
            inside = active @ basis
            system = active @ orthonormal - inside @ inside.mT + damping * eye
            parts.append(normalize(torch.linalg.solve(system, part[..., None])[..., 0], dim=1))
        ends = torch.cat(parts) if parts else ends
        damping = max(damping * shrinkage, LAST_DAMPING)
    return ends

"""Many starts of the third view at once: samples whose activations lie in the span of the next layer's gradient."""

from __future__ import annotations

from dataclasses import replace

import torch
from scipy.linalg import eigh
from torch.nn.functional import normalize

from sparsedl_fl.activations import ActivationSpan
from sparsedl_fl.directions._reflection import reflections
from sparsedl_fl.directions._views import PrincipalForward, TwoViews, leaders

__all__ = ["project"]

LAST_RIDGE = 1e-7
DAMPING, DAMPING_SHRINKAGE, LAST_DAMPING = 0.02, 0.65, 1e-6
N_NEWTON, N_POLISHING = 15, 3

FEWEST_REFLECTIONS, MORE_REFLECTIONS = 40, 1000
"""The nearer the batch is to half the width, the slower; with unknowns found fewer do, but what is left is harder."""

WIDE = 1000
"""Width from which on the number grows, with its root: half of the starts at 4000 were still far from the span."""

CROWDED = 0.5
"""Unknowns of the sample times those of the span, over the square of the equations, from which on starts need care."""

FIRST_RIDGES, CROWDED_FIRST_RIDGES = (1e-5, 1e-3), (1e-3, 0.1)
"""Range of the first ridge of a start: small ones spread the starts over the samples, large ones lead to the same few,
but where the batch is crowded they alone lead to any."""

SPAN_WEIGHT, CROWDED_SPAN_WEIGHT = 50.0, 8.0
"""Weight of the distance of the activations over that of the pre-activations."""

WORTH_NEWTON, WORTH_NEWTON_BY_COLUMNS = 0.1, 0.25
"""Distances from the span, relative, up to which Newton's method takes over: the column view knows nothing of it."""

WORTH_POLISHING, NEAR, POLISHED = 1e-2, 1e-3, 1e-6
"""Up to which it goes on in double precision; and at which an end is near enough, in single and in double."""

AMPLE, DETERMINED = 2, 3e-3
"""Active units for each unknown that make an end the only one; and with fewer, the second smallest eigenvalue of
Newton's matrix, whose largest is one, above which it is."""

SLOWEST = 0.95
"""Ratio of the distances before and after a step of Newton's method above which an end has come to rest elsewhere."""

FEW_ROWS = 0.15
"""Share of rows up to which it is faster to pick those that change."""

_WORKING = torch.float32
_CHUNK_ENTRIES = 16_000_000


def project(
    views: TwoViews, span: ActivationSpan, n_starts: int, generator: torch.Generator, by_columns: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run random starts and return the samples among their ends.

    Reflections bring a start near a sample, out of places where alternating projections end; Newton's method, for the
    current pattern an eigenvector problem, takes it there.

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
    by_columns : bool, default=False
        Whether the column view, instead of the span, leads the starts near samples. Mixtures of many samples that are
        much alike are nearly in the span and hold starts up there, at any width; they are not columns.

    Returns
    -------
    samples : torch.Tensor of shape (n_found, b)
        Unit rows ``p``.
    is_determined : torch.Tensor of shape (n_found,) of bool
        Whether no other ``p`` has the same activations: with fewer active units than unknowns only the pattern is
        certain.

    References
    ----------
    Douglas and Rachford, Trans. AMS 1956; Gravel and Elser, "Divide and concur", Phys. Rev. E 2008, for reflections
    between a subspace and a set that is not convex, in a product space.
    """
    forward = PrincipalForward.of(views)
    orthonormal = forward.orthonormal
    single, rough = orthonormal.to(_WORKING), replace(span, basis=span.basis.to(_WORKING))
    if by_columns:
        ends, worth = reflections(views, forward, n_starts, generator)[1], WORTH_NEWTON_BY_COLUMNS
    else:
        ends, worth = _span_reflections(forward, rough.basis, n_starts, generator), WORTH_NEWTON
    ends = ends[rough.distances(ends @ single.T) < worth]
    ends = ends[leaders(ends).unique()]
    ends = _newton(single, rough, ends, N_NEWTON, DAMPING, goal=NEAR).to(orthonormal.dtype)
    ends = ends[span.distances(ends @ orthonormal.T) < WORTH_POLISHING]
    ends = _newton(orthonormal, span, ends, N_POLISHING, LAST_DAMPING, goal=POLISHED)
    ends = ends[span.distances(ends @ orthonormal.T) < span.tolerance]
    is_determined = torch.tensor([_is_determined(orthonormal, span, end) for end in ends], dtype=torch.bool)
    return normalize((ends / forward.sizes) @ forward.axes.T, dim=1), is_determined


def _span_reflections(
    forward: PrincipalForward, basis: torch.Tensor, n_starts: int, generator: torch.Generator
) -> torch.Tensor:
    """Return where starts end: unit rows ``z`` of shape (n_starts, d), along the principal directions.

    Douglas and Rachford's reflections between pairs ``(z, y)`` of a ``z`` of the forward view with a ``y`` of the
    span, and pairs with ``y = relu(z)``. The ridge, which shrinks, prefers ``p`` of the natural size to those that
    happen to fit.
    """
    (m, b), regressors, power = basis.shape, forward.orthonormal.to(_WORKING), forward.power
    crowding = b * len(power) / (m - b) ** 2
    n_reflections = round((FEWEST_REFLECTIONS + MORE_REFLECTIONS * crowding) * max(1.0, m / WIDE) ** 0.5)
    smallest, largest = FIRST_RIDGES if crowding < CROWDED else CROWDED_FIRST_RIDGES
    weight = SPAN_WEIGHT if crowding < CROWDED else CROWDED_SPAN_WEIGHT
    z = forward.draw(n_starts, generator)
    y = torch.relu(z)
    ridge = largest * (smallest / largest) ** torch.rand((n_starts, 1), generator=generator)
    shrinkage = (LAST_RIDGE / ridge) ** (1 / n_reflections)
    for _ in range(n_reflections):
        # The nearest pair with y = relu(z): both at their weighted mean, or y = 0 and z not positive.
        mean = (z + weight * y) / (1 + weight)
        negative = z.clamp(max=0)
        is_active = (mean > -negative / (1 + weight) ** 0.5).to(_WORKING)
        nearest_y = mean * is_active
        nearest_z = nearest_y + negative * (1 - is_active)
        fit = ((2 * nearest_z - z) @ regressors) * (power / (power + ridge)) @ regressors.T
        z = z + fit - nearest_z
        y = y + ((2 * nearest_y - y) @ basis) @ basis.T - nearest_y
        size = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        z, y, ridge = z / size, y / size, ridge * shrinkage
    return normalize(z @ regressors, dim=1)


def _newton(
    orthonormal: torch.Tensor,
    span: ActivationSpan,
    ends: torch.Tensor,
    n_iterations: int,
    damping: float,
    goal: float,
) -> torch.Tensor:
    """Minimise ``|(I - V V^T) relu(z)|`` over unit ``z``, for the pattern of the last ``z`` in each iteration.

    An end goes on until its distance from the span is less than the goal, or hardly shrinks.
    """
    n_at_once = max(1, _CHUNK_ENTRIES // orthonormal.numel())
    if len(ends) > n_at_once:
        parts = ends.split(n_at_once)
        return torch.cat([_newton(orthonormal, span, part, n_iterations, damping, goal) for part in parts])
    (m, d), both = orthonormal.shape, torch.cat([orthonormal, span.basis], dim=1)
    distances = span.distances(ends @ orthonormal.T)
    ends, is_far = ends.clone(), torch.nonzero(distances > goal)[:, 0]
    distances = distances[is_far]
    pattern, products = ends.new_zeros((len(is_far), m)), ends.new_zeros((len(is_far), d, both.shape[1]))
    # The products O^T A O and O^T A V of the forward view, the pattern and the span: few rows change in a step.
    for _ in range(n_iterations):
        if len(is_far) == 0:
            break
        last, pattern = pattern, (ends[is_far] @ orthonormal.T > 0).to(ends.dtype)
        _add_rows(products, orthonormal, both, pattern - last)
        gram, inside = products[:, :, :d], products[:, :, d:]
        system = torch.baddbmm(gram, inside, inside.mT, alpha=-1)
        system.diagonal(dim1=1, dim2=2).add_(damping)
        ends[is_far] = normalize(torch.linalg.solve(system, ends[is_far][..., None])[..., 0], dim=1)
        before, distances = distances, span.distances(ends[is_far] @ orthonormal.T)
        goes_on = (distances > goal) & (distances < SLOWEST * before)
        if not goes_on.all():
            is_far, pattern = is_far[goes_on], pattern[goes_on]
            products, distances = products[goes_on], distances[goes_on]
        damping = max(damping * DAMPING_SHRINKAGE, LAST_DAMPING)
    return ends


def _is_determined(orthonormal: torch.Tensor, span: ActivationSpan, end: torch.Tensor) -> bool:
    """Return whether the pattern of an end leaves nothing in the span but its own activations."""
    is_active = orthonormal @ end > 0
    if len(end) == 1 or is_active.sum() >= AMPLE * len(end):
        return True
    rows = orthonormal[is_active]
    inside = rows.T @ span.basis[is_active]
    system = (rows.T @ rows - inside @ inside.T).numpy()
    return bool(eigh(system, subset_by_index=[1, 1], eigvals_only=True)[0] > DETERMINED)


def _add_rows(products: torch.Tensor, left: torch.Tensor, right: torch.Tensor, weights: torch.Tensor) -> None:
    """Add ``left^T diag(w) right`` to each product in place, for each row ``w`` of the weights, most of them zeros."""
    n_rows = (weights != 0).sum(dim=1)
    is_many = n_rows > len(left) * FEW_ROWS
    if is_many.any():
        products[is_many] += (left.T * weights[is_many][:, None, :]) @ right
        weights = torch.where(is_many[:, None], 0.0, weights)
    index = weights.abs().topk(int(torch.where(is_many, 0, n_rows).max()), dim=1).indices
    products.baddbmm_((left[index] * weights.gather(1, index)[..., None]).mT, right[index])

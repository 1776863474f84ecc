"""Many starts of the two views at once, by reflections: the fast search for large batches behind wide layers."""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from sparsedl.linalg import weighted_gram
from sparsedl_fl.directions._alternation import inverse_iteration
from sparsedl_fl.directions._views import PrincipalForward, TwoViews, leaders

__all__ = ["reflect", "reflections"]

FEWEST_REFLECTIONS, MORE_REFLECTIONS = 60, 7000
"""The larger the batch, the slower; with columns found fewer do, but what is left is harder."""

FIRST_RIDGES, LAST_RIDGE = (0.3, 3.0), 0.01
COLUMN_WEIGHTS = (0.3, 1.0)
"""Range of the weight of the distance of the column over that of the pre-activations."""

DEFLATION, DEFLATION_SHRINKAGE = (0.3, 3.0), 0.5
FADING, FADED = 0.2, 0.01
"""In this last share of the reflections the deflation of the column view fades to that share: samples are estimates."""

SPARSE_SHARE, SPARSE_BELOW = 0.43, 0.6
"""An end is nearly a column when this share of its entries, the smallest, is below this multiple of what does not come
free of it with a kernel, to the power of 1.5. Those of other ends are at 1.4 times that power."""

KNOWN_COSINE, SAME_COSINE = 0.8, 0.9
"""Cosines above which an end belongs to a column found, and to another end."""

SMOOTHINGS = (0.1, 0.03, 0.01, 0.003, 0.003)
"""Scales, one after the other, on which entries count as zeros of an end."""

_WORKING = torch.float32


def reflect(views: TwoViews, n_starts: int, generator: torch.Generator) -> torch.Tensor:
    """Run random starts and return the ends near columns, as unit rows ``q`` of shape (n, b).

    Those near a column found are replaced by it; of those that are near each other one is brought to exact zeros.

    Parameters
    ----------
    views : TwoViews
        Both views, deflated by what is known.
    n_starts : int
        Number of starts.
    generator : torch.Generator
        Source of randomness.

    References
    ----------
    Douglas and Rachford, Trans. AMS 1956; Gravel and Elser, "Divide and concur", Phys. Rev. E 2008, for reflections
    between a subspace and a set that is not convex, in a product space.
    """
    q, left = reflections(views, PrincipalForward.of(views), n_starts, generator)[0], views.left.to(_WORKING)
    entries = (q @ left.T).abs()
    m, b = left.shape
    smallest = entries.topk(round(SPARSE_SHARE * m), dim=1, largest=False).values
    limit = SPARSE_BELOW * max(0.0, SPARSE_SHARE - b / m) ** 1.5
    q = q[smallest.square().mean(dim=1) < limit**2 * entries.square().mean(dim=1)]
    products = q @ views.found.T.to(_WORKING)
    is_new = (products.abs() < KNOWN_COSINE).all(dim=1)
    known = views.found[products[~is_new].abs().argmax(dim=1)] if len(views.found) else views.found
    q = q[is_new]
    skewness = (q @ left.T).pow(3).sum(dim=1, keepdim=True)  # a column and its negative are the same
    going_on, follows = leaders(q * skewness.sign(), SAME_COSINE).unique(return_inverse=True)
    q = q[going_on]
    for smoothing in SMOOTHINGS:
        weights = 1 / ((q @ left.T).square() + smoothing**2)
        q = inverse_iteration(weighted_gram(left, weights), q)
    return torch.cat([known, normalize(q.to(views.left.dtype), dim=1)[follows]])


def reflections(
    views: TwoViews, forward: PrincipalForward, n_starts: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where starts end: unit rows ``q`` of shape (n_starts, b), and ``z`` along the principal directions.

    Douglas and Rachford's reflections between pairs ``(z, d)`` of a ``z`` of the forward view with ``d = U q``, and
    pairs of which at each unit ``z`` is negative or ``d`` is zero. Ridge and deflation shrink; they are drawn for
    each start, since what helps with one sample hinders with another.
    """
    m, b = views.left.shape
    n_reflections = round(FEWEST_REFLECTIONS + MORE_REFLECTIONS * b * len(forward.sizes) / m**2)

    def draw(limits: tuple[float, float]) -> torch.Tensor:
        return limits[0] * (limits[1] / limits[0]) ** torch.rand((n_starts, 1), generator=generator)

    strengths, axes = torch.linalg.eigh(views.samples.T @ views.samples)
    strengths = strengths.clamp(min=0).to(_WORKING)
    columns = (views.left @ axes / m**0.5).to(_WORKING)
    regressors, power = forward.orthonormal.to(_WORKING), forward.power
    ridge, deflation, root = draw(FIRST_RIDGES), draw(DEFLATION), draw(COLUMN_WEIGHTS).sqrt()
    shrinkage, n_fading = (LAST_RIDGE / ridge) ** (1 / n_reflections), round(FADING * n_reflections)
    z = forward.draw(n_starts, generator)
    d = normalize(torch.randn((n_starts, b), generator=generator) @ columns.T, dim=1)
    for remaining in range(n_reflections, 0, -1):
        is_active = (z > -root * d.abs()).to(_WORKING)
        nearest_z, nearest_d = torch.where(is_active > 0, z.clamp(min=0), z), d * is_active
        fit = ((2 * nearest_z - z) @ regressors) * (power / (power + ridge)) @ regressors.T
        column = ((2 * nearest_d - d) @ columns) / (1 + deflation * strengths) @ columns.T
        z = normalize(z + fit - nearest_z, dim=1)
        d = normalize(d + column - nearest_d, dim=1)
        ridge = ridge * shrinkage
        is_fading = remaining <= n_fading
        deflation = deflation * (FADED ** (1 / n_fading) if is_fading else DEFLATION_SHRINKAGE ** (1 / n_reflections))
    return normalize(d @ columns @ axes.T.to(_WORKING), dim=1), normalize(z @ regressors, dim=1)

"""Many starts of the two views at once, by alternation between the columns of the gradient and the forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import cosine_similarity, normalize

from sparsedl.linalg import weighted_gram
from sparsedl_fl.directions._views import TwoViews, leaders

__all__ = ["alternate", "inverse_iteration"]

N_COARSE, N_FINE = 12, 20
FLOOR_COARSE, FLOOR_FINE = 1e-3, 0.05
"""Weight of a row that looks active: it may yet be inactive."""

SETTLED = 0.9995
"""Cosine of the pre-activations before and after a coarse iteration above which a start has settled."""

VANISHED, ENOUGH = 0.01, 0.98
"""A start is done when this share of the units thought inactive is this close to zero."""

SMOOTHING, SHRINKAGE = 0.3, 0.75
DEFLATION = (0.3, 4.0)
"""Range of the weight of the deflation of the column view; it is drawn for each start, since samples are estimates."""

DEFLATION_FADING = 0.5
CROWDED_ABOVE = 0.26
"""Batch size over width above which the fine stage separates units by a classifier: better, and twice the work."""

ACTIVE_ABOVE, CLASSIFIER_RIDGE = 0.3, 1e-3
_WORKING = torch.float32


def alternate(
    views: TwoViews,
    n_starts: int,
    ridge: float,
    generator: torch.Generator,
    observe: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
) -> torch.Tensor:
    """Run random starts and return where they end, as unit rows ``q`` of shape (n_starts, b).

    A coarse stage alternates between ``q``, which should vanish at the rows thought inactive (the smallest eigenvector
    of ``U^T diag(relu(-z)) U``), and ``z``, a ridge regression of ``tanh|U q|`` on ``F``. A fine stage reweights the
    rows by ``1 / |U q|`` as well, with shrinking smoothing, until ``U q`` has exact zeros; of starts that have come to
    the same place by then, one goes on for all, and each only as long as it moves. It works in single precision:
    whoever accepts a direction estimates it again.

    Parameters
    ----------
    views : TwoViews
        Both views, deflated by what is known.
    n_starts : int
        Number of starts.
    ridge : float
        Variance of the noise of the regression over that of ``z``. A large one leads most starts to the same few
        samples, a small one spreads them.
    generator : torch.Generator
        Source of randomness.
    observe : callable or None, default=None
        Called with ``q`` and ``z`` after every iteration, to watch.
    """
    watch = observe or _ignore
    shared = _Shared.of(views, ridge)
    (m, b), (weakest, strongest) = views.left.shape, DEFLATION
    strength = m * strongest * (weakest / strongest) ** torch.rand((n_starts, 1, 1), generator=generator)
    z = torch.randn((n_starts, shared.forward.shape[1]), generator=generator) @ shared.forward.T
    q = normalize(torch.randn((n_starts, b), generator=generator), dim=1)
    q, z = _coarse(shared, q, z, strength, watch)
    going_on, follows = leaders(z).unique(return_inverse=True)
    q = _fine(shared, q[going_on], z[going_on], strength[going_on], lambda q, z: watch(q[follows], z[follows]))
    return normalize(q[follows].to(views.left.dtype), dim=1)


@dataclass(frozen=True)
class _Shared:
    """What all starts share, in single precision; ``known`` is ``P^T P`` of the samples known."""

    left: torch.Tensor
    forward: torch.Tensor
    regression: torch.Tensor
    known: torch.Tensor

    @classmethod
    def of(cls, views: TwoViews, ridge: float) -> _Shared:
        left, forward = views.left.to(_WORKING), (views.forward @ views.free).to(_WORKING)
        known = (views.samples.T @ views.samples).to(_WORKING)
        return cls(left, forward, _ridge_operator(forward, ridge * len(left)), known)


def _coarse(
    shared: _Shared, q: torch.Tensor, z: torch.Tensor, strength: torch.Tensor, watch: Callable
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find out which units a start has active; one that has settled waits for the others."""
    running = torch.arange(len(q))
    for iteration in range(N_COARSE):
        before = z[running]
        weights = torch.relu(-before)
        weights = weights / weights.mean(dim=1, keepdim=True).clamp(min=torch.finfo(_WORKING).tiny) + FLOOR_COARSE
        gram = weighted_gram(shared.left, weights) + strength[running] * shared.known
        q = q.index_copy(0, running, inverse_iteration(gram, q[running], n_iterations=3 if iteration == 0 else 2))
        moduli = (q[running] @ shared.left.T).abs()
        after = _regress(torch.tanh(moduli / moduli.mean(dim=1, keepdim=True)), shared)
        z = z.index_copy(0, running, after)
        watch(q, z)
        running = running[cosine_similarity(after, before) < SETTLED]
        if len(running) == 0:
            break
    return q, z


def _fine(shared: _Shared, q: torch.Tensor, z: torch.Tensor, strength: torch.Tensor, watch: Callable) -> torch.Tensor:
    """Bring each start to exact zeros; one that has enough of them is done."""
    m, b = shared.left.shape
    smoothing, running = SMOOTHING, torch.arange(len(q))
    for _ in range(N_FINE):
        strength = strength * DEFLATION_FADING
        before, moduli = z[running], (q[running] @ shared.left.T).abs()
        weights = torch.relu(-before / before.std(dim=1, keepdim=True)) + FLOOR_FINE
        weights = weights / (moduli.square() + smoothing**2).sqrt()
        fading = strength[running] * weights.mean(dim=1)[:, None, None]
        gram = weighted_gram(shared.left, weights) + fading * shared.known
        q = q.index_copy(0, running, inverse_iteration(gram, q[running]))
        moduli = (q[running] @ shared.left.T).abs()
        targets = torch.tanh(moduli / max(smoothing, FLOOR_FINE))
        after = _classify(moduli, targets, shared) if b > CROWDED_ABOVE * m else _regress(targets, shared)
        z = z.index_copy(0, running, after)
        smoothing *= SHRINKAGE
        watch(q, z)
        inactive = after < 0
        running = running[((moduli < VANISHED) & inactive).sum(dim=1) < ENOUGH * inactive.sum(dim=1)]
        if len(running) == 0:
            break
    return q


def _ignore(q: torch.Tensor, z: torch.Tensor) -> None:
    """Watch nothing."""


def _ridge_operator(regressors: torch.Tensor, ridge: float) -> torch.Tensor:
    """Return the matrix of shape (d, m) of a ridge regression, with the ridge in units of the regressors' variance."""
    gram = regressors.T @ regressors
    scale = regressors.square().sum() / len(regressors)
    return torch.linalg.solve(gram + ridge * scale * torch.eye(len(gram), dtype=gram.dtype), regressors.T)


def _regress(targets: torch.Tensor, shared: _Shared) -> torch.Tensor:
    """Regress centred targets of shape (n, m) and return their fit."""
    return (targets - targets.mean(dim=1, keepdim=True)) @ shared.regression.T @ shared.forward.T


def _classify(moduli: torch.Tensor, targets: torch.Tensor, shared: _Shared) -> torch.Tensor:
    """Separate active from inactive units, as the moduli of shape (n, m) have them, with a squared hinge loss."""
    forward = shared.forward
    threshold = moduli.median(dim=1, keepdim=True).values.clamp(max=ACTIVE_ABOVE)
    signs = torch.where(moduli > threshold, 1.0, -1.0)
    z = 2 * _regress(targets, shared)
    ridge = CLASSIFIER_RIDGE * forward.square().sum() * torch.eye(forward.shape[1], dtype=forward.dtype)
    for _ in range(2):
        support = (signs * z < 1).to(z.dtype)
        system = weighted_gram(forward, support) + ridge
        weights, _ = torch.linalg.solve_ex(system, ((support * signs) @ forward)[..., None])
        z = weights[..., 0].nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) @ forward.T
    return z


def inverse_iteration(gram: torch.Tensor, start: torch.Tensor, n_iterations: int = 2) -> torch.Tensor:
    """Return approximate eigenvectors of the smallest eigenvalues, by inverse iteration from where the last ended."""
    scale = gram.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    factor, _ = torch.linalg.cholesky_ex(gram + 1e-6 * scale * torch.eye(gram.shape[1], dtype=gram.dtype))
    vectors = start[..., None]
    for _ in range(n_iterations):
        vectors = normalize(torch.cholesky_solve(vectors, factor), dim=1)
    return vectors[..., 0].nan_to_num(nan=0.0)

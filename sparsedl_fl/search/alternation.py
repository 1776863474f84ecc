"""Alternation between the columns of the gradient and the forward pass, from many random starts at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator
from torch.nn.functional import cosine_similarity

from sparsedl.linalg import inverse_iteration, normalized, random_kernels, weighted_gram
from sparsedl_fl.search.columns_and_forward_pass import WORKING, SampleCoordinates, leaders

__all__ = ["Alternation"]

Observer = Callable[[torch.Tensor, torch.Tensor], None]


@dataclass(eq=False, repr=False, kw_only=True)
class Alternation(BaseEstimator):
    """The stage for layers up to a few hundred units, and for columns that reflections miss.

    A coarse phase alternates between ``q``, which should vanish at the units that look inactive (the smallest
    eigenvector of ``U^T diag(depth(z)) U``), and ``z``, a ridge regression of ``tanh|U q|`` on ``F``. A fine phase
    reweights the rows by ``1 / |U q|`` as well, with shrinking smoothing, until ``U q`` has exact zeros. Starts that
    have merged by then go on as one, each only as long as it moves. All is in single precision: a direction is
    estimated again where it is accepted.

    The numbers were tuned on CIFAR-10 batches at layers 200 to 4000 wide; which ones was not recorded.

    Parameters
    ----------
    n_coarse, n_fine : int, default=12 and 20
        Iterations at most.
    coarse_floor, fine_floor : float, default=1e-3 and 0.05
        Weight of a row that looks active: it may be inactive.
    settled : float, default=0.9995
        Cosine of the pre-activations before and after a coarse iteration above which a start has settled.
    vanished, enough : float, default=0.01 and 0.98
        A start is done when this share (the second) of the units that look inactive is this close to zero (the first).
    smoothing, shrinkage : float, default=0.3 and 0.75
        First scale on which entries count as zeros in the fine phase, and its factor in each iteration.
    deflation : (float, float), default=(0.3, 4)
        Range of the weight of the deflation of columns; drawn for each start, since the ``p`` are estimates.
    deflation_fading : float, default=0.5
        Its factor in each fine iteration.
    crowded_above : float, default=0.26
        Batch size over width above which the fine phase separates units by a classifier: better, and twice the work.
    active_above : float, default=0.3
        Modulus of ``U q`` from which a unit is active for that classifier.
    classifier_ridge : float, default=1e-3
        Its ridge, over the sum of squares of the regressors.
    n_draws : int, default=8
        Kernels drawn for each start, of a FedAvg client. 8 and 32 found as many of 8 batches.
    """

    n_coarse: int = 12
    n_fine: int = 20
    coarse_floor: float = 1e-3
    fine_floor: float = 0.05
    settled: float = 0.9995
    vanished: float = 0.01
    enough: float = 0.98
    smoothing: float = 0.3
    shrinkage: float = 0.75
    deflation: tuple[float, float] = (0.3, 4.0)
    deflation_fading: float = 0.5
    crowded_above: float = 0.26
    active_above: float = 0.3
    classifier_ridge: float = 1e-3
    n_draws: int = 8

    def run(
        self,
        coordinates: SampleCoordinates,
        n_starts: int,
        ridge: float,
        generator: torch.Generator,
        observe: Observer | None = None,
    ) -> torch.Tensor:
        """Run random starts and return their candidates, as unit rows ``q`` of shape (n_starts, b), or more.

        Parameters
        ----------
        coordinates : SampleCoordinates
            The unknowns, deflated by known columns.
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
        shared = _Shared.of(coordinates, ridge)
        (m, b), (weakest, strongest) = coordinates.left.shape, self.deflation
        strength = (
            m * strongest * (weakest / strongest) ** torch.rand((n_starts, 1, 1), generator=generator, dtype=WORKING)
        )
        z = shared.preactivations(torch.randn((n_starts, shared.forward.shape[1]), generator=generator, dtype=WORKING))
        q = normalized(torch.randn((n_starts, b), generator=generator, dtype=WORKING), dim=1)
        q, z = self._coarse(shared, q, z, strength, watch)
        kernels = self._kernels(shared, z, generator)
        going_on, follows = leaders(z).unique(return_inverse=True)
        q = self._fine(shared, q[going_on], z[going_on], strength[going_on], lambda q, z: watch(q[follows], z[follows]))
        return normalized(torch.cat([q[follows], kernels]).to(coordinates.left.dtype), dim=1)

    def _kernels(self, shared: _Shared, z: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return the ``q`` that vanish at random rows of units that look inactive, (n_draws * n_starts, b)."""
        b = shared.left.shape[1]
        if shared.half_way is None or b == 1:
            return torch.zeros((0, b), dtype=WORKING)
        depth = shared.coordinates.activation.depth(z).repeat(self.n_draws, 1)
        return random_kernels(shared.left, depth, generator, floor=self.coarse_floor)

    def _coarse(
        self, shared: _Shared, q: torch.Tensor, z: torch.Tensor, strength: torch.Tensor, watch: Observer
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Estimate the active units of each start; one that has settled waits for the others."""
        running = torch.arange(len(q))
        for iteration in range(self.n_coarse):
            before = z[running]
            weights = shared.coordinates.activation.depth(before)
            weights = weights / weights.mean(dim=1, keepdim=True).clamp(min=torch.finfo(WORKING).tiny)
            gram = weighted_gram(shared.left, weights + self.coarse_floor) + strength[running] * shared.known
            q = q.index_copy(0, running, inverse_iteration(gram, q[running], n_iterations=3 if iteration == 0 else 2))
            moduli = (q[running] @ shared.left.T).abs()
            after = _regress(torch.tanh(moduli / moduli.mean(dim=1, keepdim=True)), shared)
            z = z.index_copy(0, running, after)
            watch(q, z)
            running = running[cosine_similarity(after, before) < self.settled]
            if len(running) == 0:
                break
        return q, z

    def _fine(
        self, shared: _Shared, q: torch.Tensor, z: torch.Tensor, strength: torch.Tensor, watch: Observer
    ) -> torch.Tensor:
        """Refine each start to exact zeros; one that has enough of them is done."""
        m, b = shared.left.shape
        activation, smoothing, running = shared.coordinates.activation, self.smoothing, torch.arange(len(q))
        for _ in range(self.n_fine):
            strength = strength * self.deflation_fading
            before, moduli = z[running], (q[running] @ shared.left.T).abs()
            weights = activation.depth(before / before.std(dim=1, keepdim=True)) + self.fine_floor
            weights = weights / (moduli.square() + smoothing**2).sqrt()
            fading = strength[running] * weights.mean(dim=1)[:, None, None]
            gram = weighted_gram(shared.left, weights) + fading * shared.known
            q = q.index_copy(0, running, inverse_iteration(gram, q[running]))
            moduli = (q[running] @ shared.left.T).abs()
            targets = torch.tanh(moduli / max(smoothing, self.fine_floor))
            is_crowded = b > self.crowded_above * m
            after = self._classify(moduli, targets, shared) if is_crowded else _regress(targets, shared)
            z = z.index_copy(0, running, after)
            smoothing *= self.shrinkage
            watch(q, z)
            is_inactive = activation.is_off(after)
            is_done = ((moduli < self.vanished) & is_inactive).sum(dim=1) >= self.enough * is_inactive.sum(dim=1)
            running = running[~is_done]
            if len(running) == 0:
                break
        return q

    def _classify(self, moduli: torch.Tensor, targets: torch.Tensor, shared: _Shared) -> torch.Tensor:
        """Separate active from inactive units, by moduli of shape (n, m), with a squared hinge loss."""
        forward = shared.forward
        threshold = moduli.median(dim=1, keepdim=True).values.clamp(max=self.active_above)
        signs = torch.where(moduli > threshold, 1.0, -1.0).to(moduli.dtype)
        z = 2 * _regress(targets, shared)
        ridge = self.classifier_ridge * forward.square().sum() * torch.eye(forward.shape[1], dtype=forward.dtype)
        for _ in range(2):
            support = (signs * z < 1).to(z.dtype)
            system = weighted_gram(forward, support) + ridge
            weights, _ = torch.linalg.solve_ex(system, ((support * signs) @ forward)[..., None])
            found = weights[..., 0].nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            z = found @ forward.T
        return shared.preactivations(found)


@dataclass(frozen=True)
class _Shared:
    """Matrices that all starts share, in single precision; ``known`` is ``P^T P`` of the known ``p``."""

    coordinates: SampleCoordinates
    left: torch.Tensor
    forward: torch.Tensor
    regression: torch.Tensor
    known: torch.Tensor
    half_way: torch.Tensor | None = None

    @classmethod
    def of(cls, coordinates: SampleCoordinates, ridge: float) -> _Shared:
        left, forward = coordinates.left.to(WORKING), (coordinates.forward @ coordinates.free).to(WORKING)
        known = (coordinates.inputs.T @ coordinates.inputs).to(WORKING)
        half_way = None if coordinates.half_way is None else (coordinates.half_way @ coordinates.free).to(WORKING)
        return cls(coordinates, left, forward, _ridge_operator(forward, ridge * len(left)), known, half_way)

    def preactivations(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return the larger pre-activations of initial and final weights, (n, m): a unit active at either counts."""
        z = coordinates @ self.forward.T
        return z if self.half_way is None else z + (coordinates @ self.half_way.T).abs()


def _ignore(q: torch.Tensor, z: torch.Tensor) -> None:
    """Watch nothing."""


def _ridge_operator(regressors: torch.Tensor, ridge: float) -> torch.Tensor:
    """Return the matrix of shape (d, m) of a ridge regression, with the ridge in units of the regressors' variance."""
    gram = regressors.T @ regressors
    scale = regressors.square().sum() / len(regressors)
    return torch.linalg.solve(gram + ridge * scale * torch.eye(len(gram), dtype=gram.dtype), regressors.T)


def _regress(targets: torch.Tensor, shared: _Shared) -> torch.Tensor:
    """Regress centred targets of shape (n, m) and return their fit."""
    return shared.preactivations((targets - targets.mean(dim=1, keepdim=True)) @ shared.regression.T)

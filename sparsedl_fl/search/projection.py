"""Samples in the next layer's activation subspace, by reflections from many random starts and Newton's method."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from scipy.linalg import eigh
from sklearn.base import BaseEstimator

from sparsedl.arrays import chunks
from sparsedl.linalg import normalized
from sparsedl_fl.constraints import ActivationSubspace
from sparsedl_fl.search.columns_and_forward_pass import WORKING, PrincipalForward, SampleCoordinates, leaders
from sparsedl_fl.solvers import douglas_rachford, log_uniform
from sparsedl_fl.solvers.douglas_rachford import Points

__all__ = ["Projection"]


@dataclass(eq=False, repr=False, kw_only=True)
class Projection(BaseEstimator):
    """The stage for layers of which the next layer's gradient is known too.

    Reflections bring a start near a sample, past points where alternating projections stop; Newton's method, an
    eigenvector problem for the current pattern, converges from there.

    The numbers were tuned on CIFAR-10 batches at layers 200 to 4000 wide; which ones was not recorded.

    Parameters
    ----------
    fewest, more : int, default=40 and 1000
        Reflections for the smallest batch, and how many more for a crowding of one: the unknowns of a sample times
        the dimension of the subspace, over the square of the equations. Known columns reduce the number, but the
        samples left are harder.
    wide : int, default=1000
        Width from which on the number grows, with its root: half of the starts at 4000 were still far from the
        subspace.
    crowded : float, default=0.5
        Crowding from which on the second ridges and weight serve.
    first_ridges, crowded_first_ridges : (float, float), default=(1e-5, 1e-3) and (1e-3, 0.1)
        Range of the first ridge of a start: small ones spread the starts over the samples, large ones lead to the same
        few, but only they lead to any where crowding is large.
    last_ridge : float, default=1e-7
        The last ridge.
    span_weight, crowded_span_weight : float, default=50 and 8
        Weight of the distance of the activations over that of the pre-activations.
    overshoot, step : float, default=1 and 1
        Overshoot of a reflection beyond the graph, as a share of the distance to it, and length of the step to the next
        pair; plain Douglas-Rachford has 1 and 1.
    worth_newton : float, default=0.1
        Relative distance from the subspace up to which Newton's method takes over.
    n_newton, n_polishing : int, default=15 and 3
        Its steps in single and in double precision.
    damping, damping_shrinkage, last_damping : float, default=0.02, 0.65 and 1e-6
        Added to its matrix, whose largest eigenvalue is one.
    near, worth_polishing, polished : float, default=1e-3, 1e-2 and 1e-6
        Distance at which a candidate stops in single precision, up to which it is polished in double precision, and at
        which it stops there.
    slowest : float, default=0.95
        Ratio of the distances after and before a step above which a candidate is at a spurious minimiser.
    ample, determined : float, default=2 and 3e-3
        Active units for each unknown that make a minimiser isolated; and with fewer, the second smallest eigenvalue of
        Newton's matrix above which it is.
    is_last : bool, default=True
        Whether candidates are polished here, and only those that lie in the subspace then are returned. A later stage
        without deflation needs no exact columns: with two slopes that of a sample with a unit next to its kink may be
        off by a few hundredths, and deflation by it leaves no sample in the subspace.
    few_rows : float, default=0.15
        Share of units up to which updating only those that a Newton step switches is faster.

    References
    ----------
    Douglas and Rachford, Trans. AMS 1956; Gravel and Elser, "Divide and concur", Phys. Rev. E 2008, for reflections
    between a subspace and a set that is not convex, in a product space.
    """

    fewest: int = 40
    more: int = 1000
    wide: int = 1000
    crowded: float = 0.5
    first_ridges: tuple[float, float] = (1e-5, 1e-3)
    crowded_first_ridges: tuple[float, float] = (1e-3, 0.1)
    last_ridge: float = 1e-7
    span_weight: float = 50.0
    crowded_span_weight: float = 8.0
    overshoot: float = 1.0
    step: float = 1.0
    worth_newton: float = 0.1
    n_newton: int = 15
    n_polishing: int = 3
    damping: float = 0.02
    damping_shrinkage: float = 0.65
    last_damping: float = 1e-6
    near: float = 1e-3
    worth_polishing: float = 1e-2
    polished: float = 1e-6
    slowest: float = 0.95
    ample: float = 2.0
    determined: float = 3e-3
    is_last: bool = True
    few_rows: float = 0.15

    @classmethod
    def for_two_slopes(cls) -> Projection:
        """Return the stage for activations whose slope below zero is not zero, for which less crowding is too much.

        One batch of CIFAR-10 each: 80 at 200 units of slope 0.2, whole in 9 rounds, not in 26 without; 300 at 1000, 22
        of 32 starts come near samples, and 10 with the weight and ridges for one slope. Most of these have few large
        coordinates: with 94 known, 4 % of starts come near a sample by whole reflections, the same after 112 as after
        448, and three quarters with an overshoot of 0.2 (0.3 is as good after 112).
        """
        return cls(crowded=0.3, first_ridges=(1e-4, 1e-2), span_weight=8.0, overshoot=0.3, step=1.5, is_last=False)

    def run(
        self, coordinates: SampleCoordinates, subspace: ActivationSubspace, n_starts: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run random starts and return the candidates in the subspace.

        Parameters
        ----------
        coordinates : SampleCoordinates
            The unknowns, deflated by known columns.
        subspace : ActivationSubspace
            The activation subspace, for pre-activations of no particular scale.
        n_starts : int
            Number of starts.
        generator : torch.Generator
            Source of randomness.

        Returns
        -------
        inputs : torch.Tensor of shape (n_found, b)
            Unit rows ``p``.
        is_determined : torch.Tensor of shape (n_found,) of bool
            Whether no other ``p`` has the same activations: with fewer active units than unknowns only the pattern is
            certain.
        """
        forward = PrincipalForward.of(coordinates)
        orthonormal = forward.orthonormal
        single, rough = orthonormal.to(WORKING), replace(subspace, basis=subspace.basis.to(WORKING))
        minimisers = self.reflections(forward, rough, n_starts, generator)
        minimisers = minimisers[rough.distances(minimisers @ single.T) < self.worth_newton]
        minimisers = minimisers[leaders(minimisers).unique()]
        minimisers = self._newton(single, rough, minimisers, self.n_newton, self.damping, self.near).to(
            orthonormal.dtype
        )
        minimisers = minimisers[subspace.distances(minimisers @ orthonormal.T) < self.worth_polishing]
        if self.is_last:
            minimisers = self._newton(
                orthonormal, subspace, minimisers, self.n_polishing, self.last_damping, self.polished
            )
            activations = subspace.activation.value(minimisers @ orthonormal.T)
            minimisers = minimisers[subspace.distances_of(activations) < subspace.tolerances_of(activations)]
        is_determined = torch.tensor(
            [self._is_determined(orthonormal, subspace, z) for z in minimisers], dtype=torch.bool
        )
        return normalized((minimisers / forward.sizes) @ forward.axes.T, dim=1), is_determined

    def reflections(
        self, forward: PrincipalForward, subspace: ActivationSubspace, n_starts: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Return the candidate of each start: unit rows ``z`` of shape (n_starts, d), along the principal directions.

        Reflections between pairs ``(z, y)`` of a ``z = F p`` with a ``y`` of the subspace, and pairs with
        ``y = phi(z)``. The shrinking ridge prefers ``p`` that are likely by the prior to those that fit by chance.
        """
        basis, phi = subspace.basis, subspace.activation
        (m, b), regressors, power = basis.shape, forward.orthonormal.to(WORKING), forward.power
        crowding = b * len(power) / (m - b) ** 2
        n_reflections = round((self.fewest + self.more * crowding) * max(1.0, m / self.wide) ** 0.5)
        is_crowded = crowding >= self.crowded
        smallest, largest = self.crowded_first_ridges if is_crowded else self.first_ridges
        weight = self.crowded_span_weight if is_crowded else self.span_weight
        z = forward.draw(n_starts, generator)
        ridge = log_uniform((largest, smallest), n_starts, generator, WORKING)
        shrinkage = (self.last_ridge / ridge) ** (1 / n_reflections)

        def fitted(points: Points, number: int) -> Points:
            z, y = points
            fit = (z @ regressors) * (power / (power + ridge * shrinkage**number)) @ regressors.T
            return fit, (y @ basis) @ basis.T

        def unit(points: Points) -> Points:
            size = torch.linalg.vector_norm(points[0], dim=1, keepdim=True)
            return [part / size for part in points]

        z, _ = douglas_rachford(
            (z, phi.value(z)),
            lambda points: phi.nearest_on_graph(points[0], points[1], weight),
            fitted,
            n_reflections,
            step=self.step,
            overshoot=self.overshoot,
            normalize=unit,
        )
        return normalized(z @ regressors, dim=1)

    def _newton(
        self,
        orthonormal: torch.Tensor,
        subspace: ActivationSubspace,
        minimisers: torch.Tensor,
        n_iterations: int,
        damping: float,
        goal: float,
    ) -> torch.Tensor:
        """Minimise ``|(I - V V^T) phi(z)|`` over unit ``z``, for the pattern of the last ``z`` in each iteration.

        Each goes on until its distance from the subspace is less than the goal, or hardly shrinks.
        """
        parts = list(chunks(len(minimisers), orthonormal.numel()))
        if len(parts) > 1:
            return torch.cat(
                [self._newton(orthonormal, subspace, minimisers[part], n_iterations, damping, goal) for part in parts]
            )
        slope_below = subspace.activation.slope_below
        (m, d), both = orthonormal.shape, torch.cat([orthonormal, subspace.basis], dim=1)
        distances = subspace.distances(minimisers @ orthonormal.T)
        minimisers, is_far = minimisers.clone(), torch.nonzero(distances > goal)[:, 0]
        distances = distances[is_far]
        pattern, products = (
            minimisers.new_zeros((len(is_far), m)),
            minimisers.new_zeros((len(is_far), d, both.shape[1])),
        )
        # The products O^T A O and O^T A V, with the pattern A: few of its rows change in a step.
        for _ in range(n_iterations):
            if len(is_far) == 0:
                break
            last, pattern = pattern, subspace.activation.derivative(minimisers[is_far] @ orthonormal.T)
            _add_rows(products, orthonormal, both, pattern - last, self.few_rows)
            gram, inside = products[:, :, :d], products[:, :, d:]
            # Squares of two slopes, one and a, are (1 + a) times a slope, less a.
            system = torch.baddbmm(gram, inside, inside.mT, beta=1 + slope_below, alpha=-1)
            system.diagonal(dim1=1, dim2=2).add_(damping - slope_below)
            minimisers[is_far] = normalized(torch.linalg.solve(system, minimisers[is_far][..., None])[..., 0], dim=1)
            before, distances = distances, subspace.distances(minimisers[is_far] @ orthonormal.T)
            goes_on = (distances > goal) & (distances < self.slowest * before)
            if not goes_on.all():
                is_far, pattern = is_far[goes_on], pattern[goes_on]
                products, distances = products[goes_on], distances[goes_on]
            damping = max(damping * self.damping_shrinkage, self.last_damping)
        return minimisers

    def _is_determined(self, orthonormal: torch.Tensor, subspace: ActivationSubspace, z: torch.Tensor) -> bool:
        """Return whether no other ``z`` of the same pattern has its activations in the subspace."""
        is_active = ~subspace.activation.is_off(orthonormal @ z)
        if len(z) == 1 or is_active.sum() >= self.ample * len(z):
            return True
        rows = orthonormal[is_active]
        inside = rows.T @ subspace.basis[is_active]
        system = (rows.T @ rows - inside @ inside.T).numpy()
        return bool(eigh(system, subset_by_index=[1, 1], eigvals_only=True)[0] > self.determined)


def _add_rows(
    products: torch.Tensor, left: torch.Tensor, right: torch.Tensor, weights: torch.Tensor, few_rows: float
) -> None:
    """Add ``left^T diag(w) right`` to each product in place, for each row ``w`` of the weights, most of them zeros."""
    n_rows = (weights != 0).sum(dim=1)
    is_many = n_rows > len(left) * few_rows
    if is_many.any():
        products[is_many] += (left.T * weights[is_many][:, None, :]) @ right
        weights = torch.where(is_many[:, None], 0.0, weights)
    index = weights.abs().topk(int(torch.where(is_many, 0, n_rows).max()), dim=1).indices
    products.baddbmm_((left[index] * weights.gather(1, index)[..., None]).mT, right[index])

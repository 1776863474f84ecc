"""The linear systems of the final fits: of each sample by itself, and of the whole batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from sparsedl_fl.constraints import Constraint, TailGradient
from sparsedl_fl.search.natural_coordinates import NaturalCoordinates, SquaresAt

__all__ = ["BatchSystem", "InputSystems", "Returned"]


@dataclass(frozen=True)
class InputSystems:
    """The Gauss-Newton matrix of each sample, of shape (d, d), and its Cholesky factor.

    Attributes
    ----------
    matrices : torch.Tensor of shape (n, d, d)
        ``K^T J^T J K``.
    units : torch.Tensor of shape (n, d)
        Scales that make their diagonals one.
    roots : torch.Tensor of shape (n, d, d)
        Lower Cholesky factors, in these units.
    """

    matrices: torch.Tensor
    units: torch.Tensor
    roots: torch.Tensor

    @classmethod
    def of(cls, matrices: torch.Tensor, ridge: float) -> InputSystems:
        """Factorise matrices; where one is singular in double precision, its ridge grows until it is not.

        One that is not finite (its sample has no gradient) counts as zero.
        """
        d, is_finite = matrices.shape[1], torch.isfinite(matrices).flatten(1).all(dim=1)
        matrices = torch.where(is_finite[:, None, None], matrices, 0.0)
        diagonals = matrices.diagonal(dim1=1, dim2=2)
        # Coordinates without any information stay as they are.
        units = torch.where(diagonals > 0, diagonals, torch.inf).rsqrt()
        regular = matrices * units[:, :, None] * units[:, None, :]
        regular.diagonal(dim1=1, dim2=2).add_(ridge)
        roots, failed = torch.linalg.cholesky_ex(regular)
        while failed.any():
            ridge = 100 * ridge
            regular[failed > 0] += ridge * torch.eye(d, dtype=regular.dtype)
            roots, failed = torch.linalg.cholesky_ex(regular)
        return cls(matrices, units, roots)

    def times(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return the product with each matrix."""
        return torch.bmm(self.matrices, coordinates[:, :, None])[:, :, 0]

    def root_times(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return the product with a root of each matrix."""
        image = torch.bmm(self.roots, coordinates[:, :, None])[:, :, 0]
        return torch.where(self.units > 0, image / self.units, 0.0)

    def solve(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return the product with the inverse of each."""
        scaled = (self.units * coordinates)[:, :, None]
        return self.units * torch.cholesky_solve(scaled, self.roots)[:, :, 0]

    @cached_property
    def _inverses(self) -> torch.Tensor:
        return torch.cholesky_inverse(self.roots)

    def about_solve(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return the same but for rounding, several times as fast where it is called often."""
        return self.units * torch.bmm(self._inverses, (self.units * coordinates)[:, :, None])[:, :, 0]


@dataclass(frozen=True)
class Returned:
    """The residual of ``U^T D = P^-1`` for the tail's gradients ``D`` of a whole batch, in units of the noise.

    Attributes
    ----------
    forward : NaturalCoordinates
        The coordinates of samples.
    rest : TailGradient
        The constraint of the network tail, with a label for each sample.
    left : torch.Tensor of shape (m, b)
        ``U``.
    inputs : torch.Tensor of shape (b, b)
        Rows ``p``, at their true scale.
    preactivations : torch.Tensor of shape (b, m)
        ``z``.
    columns : torch.Tensor of shape (b, b)
        ``Q = P^-1``.
    share : torch.Tensor of shape ()
        Share of a sample's loss in the client's.
    noise : torch.Tensor of shape (b,)
        Noise of each entry of a column.
    returned : torch.Tensor of shape (b, b)
        ``U^T D``, up to that share.
    """

    forward: NaturalCoordinates
    rest: TailGradient
    left: torch.Tensor
    inputs: torch.Tensor
    preactivations: torch.Tensor
    columns: torch.Tensor
    share: torch.Tensor
    noise: torch.Tensor
    returned: torch.Tensor

    @classmethod
    def of(cls, forward: NaturalCoordinates, tail: TailGradient, left: torch.Tensor, inputs: torch.Tensor) -> Returned:
        """Compute the gradients of a batch."""
        z = forward.preactivations(forward.coordinates(inputs))
        tail = tail.settled(z)
        at, columns = tail.at(z), torch.linalg.inv(inputs)
        gradients = at.gradients.detach()
        returned = left.T @ gradients.T
        share = (returned * columns).sum() / returned.square().sum()
        m, b = left.shape
        noise = at.expected * torch.linalg.vector_norm(gradients, dim=1) * share / (m - b) ** 0.5
        return cls(forward, tail, left, inputs, z, columns, share, noise, returned)

    @property
    def residual(self) -> torch.Tensor:
        """``U^T D - Q``, of shape (b, b)."""
        return (self.share * self.returned - self.columns) / self.noise

    @property
    def cost(self) -> torch.Tensor:
        """The squared residual."""
        return self.residual.square().sum()

    @cached_property
    def matrices(self) -> torch.Tensor:
        """How the gradient of each sample changes with its coordinates, of shape (b, d, b)."""
        b, d = self.forward.axes.shape
        found = torch.empty((b, d, b), dtype=self.columns.dtype)
        for index, z in enumerate(self.preactivations):
            along = self.rest.of_some(torch.tensor([index])).at(z[None]).along(self.forward.basis.T)
            found[index] = self.share * along @ self.left
        return found

    def changed(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return how changes of the samples change the residual."""
        by_gradients = torch.bmm(coordinates[:, None], self.matrices)[:, 0].T
        of_columns = self.columns @ (coordinates @ self.forward.axes.T) @ self.columns
        return (by_gradients + of_columns) / self.noise

    def pull(self, residual: torch.Tensor) -> torch.Tensor:
        """Return ``J^T r`` for a residual: the transpose of `changed`."""
        scaled = residual / self.noise
        by_gradients = torch.bmm(self.matrices, scaled.T[:, :, None])[:, :, 0]
        return by_gradients + (self.columns.T @ scaled @ self.columns.T) @ self.forward.axes

    def blocks(self) -> torch.Tensor:
        """Return the diagonal blocks of ``J^T J``, one for each sample, of shape (b, d, d)."""
        Q, axes, n = self.columns, self.forward.axes, self.forward.axes.shape[1]
        of_all = axes.T @ (Q / self.noise**2) @ Q.T @ axes
        found = torch.empty((len(Q), n, n), dtype=Q.dtype)
        for index, matrix in enumerate(self.matrices):
            own, column = Q[:, index] @ axes, Q[:, index]
            changed = matrix + own[:, None] * column
            of_others = of_all - own[:, None] * own / self.noise[index] ** 2
            found[index] = column.square().sum() * of_others + changed @ changed.T / self.noise[index] ** 2
        return found


@dataclass(frozen=True)
class BatchSystem:
    """The linearised equations of each sample and of the whole batch.

    Attributes
    ----------
    equations : Constraint
        The equations of each sample, weighted by their noise.
    batch : Returned
        The joint equations.
    ridge : float
        Keeps matrices with a unit diagonal regular.
    """

    equations: Constraint
    batch: Returned
    ridge: float

    @classmethod
    def of(
        cls,
        forward: NaturalCoordinates,
        equations: Constraint,
        tail: TailGradient,
        left: torch.Tensor,
        inputs: torch.Tensor,
        ridge: float,
    ) -> BatchSystem:
        """Compute the gradients of a batch."""
        batch = Returned.of(forward, tail, left, inputs)
        return cls(equations.settled(batch.preactivations).by_noise(batch.preactivations), batch, ridge)

    @property
    def inputs(self) -> torch.Tensor:
        """Rows ``p``, at their true scale, of shape (b, b)."""
        return self.batch.inputs

    @property
    def weight(self) -> float:
        """Weight of the equations of each sample, which by their noise sum to one for a sample."""
        m, b = self.batch.left.shape
        return float(m - b)

    @cached_property
    def alone(self) -> InputSystems:
        """The systems of each sample's own equations."""
        return InputSystems.of(self._at.matrices, self.ridge)

    @cached_property
    def blocks(self) -> InputSystems:
        """The diagonal blocks of all equations."""
        return InputSystems.of(self.weight * self.alone.matrices + self.batch.blocks(), self.ridge)

    @cached_property
    def _at(self) -> SquaresAt:
        return SquaresAt(self.equations, self.batch.preactivations, self.batch.forward.basis)

    @cached_property
    def cost(self) -> torch.Tensor:
        """The squared residual of all equations, of shape ()."""
        return self.weight * self._at.cost.sum() + self.batch.cost

    @cached_property
    def goal(self) -> torch.Tensor:
        """Minus half the gradient of the cost, of shape (b, d)."""
        return -self.weight * self._at.gradient - self.batch.pull(self.batch.residual)

    @property
    def n_spare(self) -> int:
        """Surplus of equations over unknowns: the tail gives ``m`` for each sample, ``b`` of them jointly."""
        b, m = self.batch.preactivations.shape
        return b * (m - self.batch.forward.axes.shape[1])

    @property
    def disagreement(self) -> float:
        """The squared residual of the joint equations over that of each sample's own, all over their noise."""
        of_batch = self.batch.cost / self.batch.columns.numel()
        of_inputs = (self.cost - self.batch.cost) / (self.weight * len(self.batch.columns))
        return float(of_batch / of_inputs.clamp(min=1.0))

    @property
    def promise(self) -> float:
        """Relative decrease of the cost that a step by the diagonal blocks promises."""
        return float((self.goal * self.blocks.solve(self.goal)).sum() / self.cost)

    def cost_at(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the cost at other samples."""
        there = Returned.of(self.batch.forward, self.batch.rest, self.batch.left, inputs)
        return self.weight * self.equations.at(there.preactivations).cost.sum() + there.cost

    def times(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return ``J^T J`` of all equations times changes of the samples."""
        return self.weight * self.alone.times(coordinates) + self.batch.pull(self.batch.changed(coordinates))

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """Return ``J^T`` of a draw of the noise of all equations: its covariance is the matrix of `times`."""
        shape, dtype = self.goal.shape, self.goal.dtype
        by_alone = self.alone.root_times(torch.randn(shape, generator=generator, dtype=dtype))
        of_batch = torch.randn(self.batch.columns.shape, generator=generator, dtype=dtype)
        return self.weight**0.5 * by_alone + self.batch.pull(of_batch)

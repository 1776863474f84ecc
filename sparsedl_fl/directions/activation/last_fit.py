"""The last digits: each input fitted to all views exactly, and then the whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from sparsedl_fl.directions.activation.descent import NaturalForward
from sparsedl_fl.views import RestAt, RestView, View

__all__ = ["LastFit"]


@dataclass(eq=False, repr=False, kw_only=True)
class LastFit(BaseEstimator):
    """The stage for the last digits, behind activations without flat parts.

    A `Descent` forms no matrix, and near the limits of the views its steps end before all digits are there. Here the
    matrix of each input is formed, and a few steps of Gauss and Newton's method are exact.

    Where the rest of the network is known, the inputs also say something of each other: the gradients ``D`` that come
    back for the whole batch have to fulfil ``P Q = I``, with ``Q = U^T D``. Each input by itself knows the column space
    as exactly as the gradient shows it; together they have to return the gradient itself.

    Measured on one batch each of CIFAR-10 (decibels, of standardised pixels; after the descents, each by itself,
    together): sigmoid (80, 200) 76, 102, 110; GELU (80, 200) 118, 119, 125; tanh (125, 200) with two spans 70, 94, 112;
    GELU (140, 200) with three 78, 92, 105.

    Parameters
    ----------
    widest : int, default=400
        Layers up to that width, and heads; on wider ones the matrices take longer than the search.
    n_alone, n_together : int, default=12 and 2
        Steps for each input by itself, and for the batch, at most.
    n_draws : int, default=2
        Draws of the noise that show how exact the batch is.
    n_products : int, default=300
        Steps of conjugate gradients for each of the latter.
    solved : float, default=1e-8
        Share of the square of what is left at which they end.
    lengths : tuple of float, default=(1, 1/4, 1/16)
        Shares of a step that are tried, until all equations together are fulfilled better.
    worth : float, default=0.01
        Share of what is left that another step has to promise.
    ridge : float, default=1e-12
        Keeps matrices with a unit diagonal regular.
    """

    widest: int = 400
    n_alone: int = 12
    n_together: int = 2
    n_draws: int = 2
    n_products: int = 300
    solved: float = 1e-8
    lengths: tuple[float, ...] = (1.0, 0.25, 0.0625)
    worth: float = 0.01
    ridge: float = 1e-12

    def alone(self, forward: NaturalForward, equations: View, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``p`` at their true scale, of shape (n, b), fitted to equations by their noise, each by itself."""
        coordinates = forward.coordinates(inputs)
        for _ in range(self.n_alone):
            z = forward.preactivations(coordinates)
            fitted = equations.settled(z).by_noise(z)
            here = fitted.at(z)
            system = _System.of(forward, fitted, z, self.ridge)
            step, cost = -system.solve(here.gradient @ forward.basis), here.cost
            best = coordinates
            for length in self.lengths:
                moved = coordinates + length * step
                there = fitted.at(forward.preactivations(moved)).cost
                is_better = there < cost
                best, cost = torch.where(is_better[:, None], moved, best), torch.where(is_better, there, cost)
            is_worth = cost < (1 - self.worth) * here.cost
            coordinates = best
            if not is_worth.any():
                break
        return forward.inputs(coordinates)

    def together(
        self, forward: NaturalForward, equations: View, rest: RestView, left: torch.Tensor, inputs: torch.Tensor
    ) -> torch.Tensor:
        """Return the whole batch fitted at once.

        Parameters
        ----------
        forward : NaturalForward
            The forward view, with nothing known.
        equations : View
            What each input fulfils by itself.
        rest : RestView
            What returns the gradients.
        left : torch.Tensor of shape (m, b)
            ``U``.
        inputs : torch.Tensor of shape (b, b)
            Rows ``p``, at their true scale.
        """
        for _ in range(self.n_together):
            here = _Together.of(forward, equations, rest, left, inputs, self.ridge)
            if (here.goal * here.blocks.solve(here.goal)).sum() < self.worth * here.cost:
                break
            step = self._solved(here, here.goal)[0] @ forward.axes.T
            for length in self.lengths:
                if here.cost_at(inputs + length * step) < here.cost:
                    break
            else:
                break
            inputs = inputs + length * step
        return inputs

    def errors(
        self,
        forward: NaturalForward,
        equations: View,
        rest: RestView,
        left: torch.Tensor,
        inputs: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor | None:
        """Return how the noise moves a batch that was fitted at once: some draws of it, of shape (n_draws, b, b).

        The changes of noise as large as what is left of all equations; None where these leave nothing to measure it by,
        or where the method does not end.

        Parameters
        ----------
        forward, equations, rest, left, inputs
            As in `together`.
        generator : torch.Generator
            Source of randomness.
        """
        here = _Together.of(forward, equations, rest, left, inputs, self.ridge)
        if here.n_spare <= 0:
            return None
        draws = []
        for _ in range(self.n_draws):
            change, is_solved = self._solved(here, here.draw(generator))
            if not is_solved:
                return None
            draws.append(change @ forward.axes.T)
        return torch.stack(draws) * (here.cost / here.n_spare).clamp(min=1.0).sqrt()

    def _solved(self, here: _Together, goal: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Return the changes that make ``goal`` of all equations, by preconditioned conjugate gradients."""
        solution, residual = torch.zeros_like(goal), goal
        scaled = here.blocks.solve(residual)
        direction, size = scaled, (residual * scaled).sum()
        enough = self.solved * size
        for _ in range(self.n_products):
            image = here.times(direction)
            length = size / (direction * image).sum()
            solution, residual = solution + length * direction, residual - length * image
            scaled = here.blocks.solve(residual)
            last, size = size, (residual * scaled).sum()
            if not size > enough:
                return solution, True
            direction = scaled + size / last * direction
        return solution, False


@dataclass(frozen=True)
class _Together:
    """What the equations of each input and those of the whole batch say near some inputs.

    Attributes
    ----------
    equations : View
        Those of each input, by their noise.
    alone : _System
        Their matrices.
    weight : float
        What they count for: by their noise those of an input weigh as much as one.
    batch : _Batch
        Those of all.
    blocks : _System
        What both say of each input.
    cost : torch.Tensor of shape ()
        How badly they are fulfilled.
    goal : torch.Tensor of shape (b, d)
        Minus half its gradient.
    """

    equations: View
    alone: _System
    weight: float
    batch: _Batch
    blocks: _System
    cost: torch.Tensor
    goal: torch.Tensor

    @classmethod
    def of(
        cls,
        forward: NaturalForward,
        equations: View,
        rest: RestView,
        left: torch.Tensor,
        inputs: torch.Tensor,
        ridge: float,
    ) -> _Together:
        """Run the batch, and form the matrices."""
        weight, batch = float(len(left) - len(inputs)), _Batch.of(forward, rest, left, inputs)
        equations = equations.settled(batch.preactivations).by_noise(batch.preactivations)
        alone, at = _System.of(forward, equations, batch.preactivations, ridge), equations.at(batch.preactivations)
        blocks = _System.of_matrices(weight * alone.matrices + batch.blocks(), ridge)
        goal = -weight * (at.gradient @ forward.basis) - batch.pull(batch.residual)
        return cls(equations, alone, weight, batch, blocks, weight * at.cost.sum() + batch.cost, goal)

    @property
    def n_spare(self) -> int:
        """Equations beyond the unknowns: the rest of the network has ``m`` for each input, ``b`` of them for all."""
        b, m = self.batch.preactivations.shape
        return b * (m - self.batch.forward.axes.shape[1])

    def cost_at(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return how badly other inputs fulfil them."""
        there = _Batch.of(self.batch.forward, self.batch.rest, self.batch.left, inputs)
        return self.weight * self.equations.at(there.preactivations).cost.sum() + there.cost

    def times(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return the product of all their matrices with changes of the inputs."""
        return self.weight * self.alone.times(coordinates) + self.batch.pull(self.batch.changed(coordinates))

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """Return what noise of all equations says of the coordinates: its covariance is the matrix of `times`."""
        shape, dtype = self.goal.shape, self.goal.dtype
        by_alone = self.alone.root_times(torch.randn(shape, generator=generator, dtype=dtype))
        of_batch = torch.randn(self.batch.columns.shape, generator=generator, dtype=dtype)
        return self.weight**0.5 * by_alone + self.batch.pull(of_batch)


@dataclass(frozen=True)
class _System:
    """What equations say of changes of each input: its matrix of shape (d, d), and a root of that.

    Attributes
    ----------
    matrices : torch.Tensor of shape (n, d, d)
        ``K^T J^T J K``.
    units : torch.Tensor of shape (n, d)
        What makes their diagonals one.
    roots : torch.Tensor of shape (n, d, d)
        Lower triangular, in these units.
    """

    matrices: torch.Tensor
    units: torch.Tensor
    roots: torch.Tensor

    @classmethod
    def of(cls, forward: NaturalForward, equations: View, preactivations: torch.Tensor, ridge: float) -> _System:
        """Form the matrices; where one is singular in double precision, its ridge grows until it is not."""
        d = forward.basis.shape[1]
        matrices = torch.empty((len(preactivations), d, d), dtype=preactivations.dtype)
        for index, z in enumerate(preactivations):
            same = torch.full((d,), index)
            matrices[index] = equations.of_some(same).at(z.expand(d, -1)).curve(forward.basis.T) @ forward.basis
        return cls.of_matrices(matrices, ridge)

    @classmethod
    def of_matrices(cls, matrices: torch.Tensor, ridge: float) -> _System:
        """Factorise matrices."""
        d = matrices.shape[1]
        diagonals = matrices.diagonal(dim1=1, dim2=2)
        # What nothing is said of stays as it is.
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


@dataclass(frozen=True)
class _Batch:
    """What the gradients that come back for a whole batch leave of ``U^T D = P^-1``, in units of the noise.

    Attributes
    ----------
    forward : NaturalForward
        The forward view.
    rest : RestView
        With a label for each input.
    left : torch.Tensor of shape (m, b)
        ``U``.
    preactivations : torch.Tensor of shape (b, m)
        ``z``.
    columns : torch.Tensor of shape (b, b)
        ``Q = P^-1``.
    share : torch.Tensor of shape ()
        What an input's loss counts for in the client's.
    noise : torch.Tensor of shape (b,)
        Of each entry of a column.
    at : RestAt
        The gradients that come back, ``D``, up to that share.
    """

    forward: NaturalForward
    rest: RestView
    left: torch.Tensor
    preactivations: torch.Tensor
    columns: torch.Tensor
    share: torch.Tensor
    noise: torch.Tensor
    at: RestAt

    @classmethod
    def of(cls, forward: NaturalForward, rest: RestView, left: torch.Tensor, inputs: torch.Tensor) -> _Batch:
        """Run the batch."""
        z = forward.preactivations(forward.coordinates(inputs))
        rest = rest.settled(z)
        at, columns = rest.at(z), torch.linalg.inv(inputs)
        returned = left.T @ at.gradients.detach().T
        share = (returned * columns).sum() / returned.square().sum()
        sizes = torch.linalg.vector_norm(at.gradients.detach(), dim=1)
        m, b = left.shape
        noise = at.expected * sizes * share / (m - b) ** 0.5
        return cls(forward, rest, left, z, columns, share, noise, at)

    @property
    def residual(self) -> torch.Tensor:
        """``U^T D - Q``, of shape (b, b)."""
        return (self.share * self.left.T @ self.at.gradients.detach().T - self.columns) / self.noise

    @property
    def cost(self) -> torch.Tensor:
        """Its square."""
        return self.residual.square().sum()

    def changed(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return how changes of the inputs change it."""
        gradients = self.at.along(coordinates @ self.forward.basis.T)
        of_columns = self.columns @ (coordinates @ self.forward.axes.T) @ self.columns
        return (self.share * self.left.T @ gradients.T + of_columns) / self.noise

    def blocks(self) -> torch.Tensor:
        """Return what it says of changes of each input by itself, of shape (b, d, d)."""
        Q, axes, n = self.columns, self.forward.axes, self.forward.axes.shape[1]
        of_all = axes.T @ (Q / self.noise**2) @ Q.T @ axes
        found = torch.empty((len(Q), n, n), dtype=Q.dtype)
        for index, z in enumerate(self.preactivations):
            same = torch.full((n,), index)
            along = self.rest.of_some(same).at(z.expand(n, -1)).along(self.forward.basis.T)
            own, column = Q[:, index] @ axes, Q[:, index]
            changed = self.share * along @ self.left + own[:, None] * column
            of_others = of_all - own[:, None] * own / self.noise[index] ** 2
            found[index] = column.square().sum() * of_others + changed @ changed.T / self.noise[index] ** 2
        return found

    def pull(self, residual: torch.Tensor) -> torch.Tensor:
        """Return what a residual says of the coordinates: the transpose of `changed`."""
        scaled = residual / self.noise
        by_gradients = self.share * self.at.along((self.left @ scaled).T) @ self.forward.basis
        return by_gradients + (self.columns.T @ scaled @ self.columns.T) @ self.forward.axes

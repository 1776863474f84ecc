"""The last few inputs of a batch, all at once: those of which hardly any unit is off have no column of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from sklearn.base import BaseEstimator

from sparsedl_fl.directions.activation.two_views import ScaledForward, TwoViews
from sparsedl_fl.views import RestView

__all__ = ["LeftOver"]


@dataclass(eq=False, repr=False, kw_only=True)
class LeftOver(BaseEstimator):
    """Damped steps of Gauss and Newton for the inputs whose columns are not known, from random starts.

    What comes back for each input, with its label, has to lie in the column space, and for all of them together ``P Q``
    has to be the unit matrix. Mixtures of inputs of one label with the same units off fulfil the first, but for the
    curvature of the loss: two are told apart by the second, three by the curvature alone. So the first leads the starts
    to the mixtures, through the network smoothed first, and the second grows from next to nothing.

    Measured on CIFAR-10 behind 200 Hardtanh units, by script, with all other columns known: 4 inputs of 50, two of one
    label, came back at the first start, and from none of twelve without smoothing or where both counted from the start
    on. Three of one label came back from 12 of 12 starts, and from 3 of 12 with two of others; with first weights below
    0.01 from 7 and from none.

    Parameters
    ----------
    few, most : int, default=4 and 13
        Inputs up to which nothing else is tried before, as many more for each idle round of that; and inputs at most.
        (Of 13 and 9 inputs of 50, of which five or fewer units were off, one start of twelve each ended at all; of 10
        and 14 others, with three of several labels, none.)
    n_starts : int, default=3
        Random starts at most, each time.
    n_steps, n_steps_smoothed : int, default=40 and 6
        Steps of each, and for each share.
    spread : float, default=1
        Standard deviation of the starts, over that of the prior.
    shares : tuple of float, default=(0.5, 0.2, 0.1, 0.05, 0.025, 0.0125)
        Over what share of what is typical kinks are smoothed, one after the other.
    factors, first_weights : (float, float), default=(0.7, 2) and (0.01, 0.3)
        Ranges of what each start multiplies them with, and of its first weight of ``P Q``, which grows to one: where
        one way ends in a hollow, another does not.
    damping, eased, raised : float, default=1e-2, 0.2 and 8
        First damping, over the diagonal, and its factors after a step that helps and one that does not.
    enough : float, default=1e-6
        Sum of squares from which on a start has ended at the inputs: their last digits are left to a `LastFit`.
        (Wrong ends kept 1e-4 and more.)
    """

    few: int = 4
    most: int = 13
    n_starts: int = 3
    n_steps: int = 40
    n_steps_smoothed: int = 6
    spread: float = 1.0
    shares: tuple[float, ...] = (0.5, 0.2, 0.1, 0.05, 0.025, 0.0125)
    factors: tuple[float, float] = (0.7, 2.0)
    first_weights: tuple[float, float] = (0.01, 0.3)
    damping: float = 1e-2
    eased: float = 0.2
    raised: float = 8.0
    enough: float = 1e-6

    def inputs(
        self, views: TwoViews, rest: RestView, left: torch.Tensor, labels: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor | None:
        """Return the inputs left, as ``p`` at their true scale, (k, b), or None where no start ended at them.

        Parameters
        ----------
        views : TwoViews
            The forward view, deflated by the columns that are known.
        rest : RestView
            What lies behind the layer.
        left : torch.Tensor of shape (m, b)
            ``U``.
        labels : torch.Tensor of shape (k,) of int
            Of the inputs left.
        generator : torch.Generator
            Source of randomness.
        """

        def draw(limits: tuple[float, float]) -> float:
            return limits[0] * (limits[1] / limits[0]) ** float(torch.rand((), generator=generator))

        whole = _Block(ScaledForward.of(views), views, replace(rest, labels=labels), left)
        for _ in range(self.n_starts if len(labels) > 1 else 1):
            shape = len(labels), len(labels) - 1
            at = self.spread * torch.randn(shape, generator=generator, dtype=left.dtype)
            factor, first = draw(self.factors), draw(self.first_weights)
            for number, share in enumerate(self.shares if at.numel() else ()):  # a single one is where it is
                weight = first ** (1 - number / len(self.shares))
                smoothed = replace(whole, rest=whole.rest.smoothed(factor * share), weight=weight)
                at = self._descended(smoothed, at, self.n_steps_smoothed)
            at = self._descended(whole, at, self.n_steps) if at.numel() else at
            if whole.residual(at).square().sum() < self.enough:
                return whole.inputs(at)
        return None

    def _descended(self, problem: _Block, at: torch.Tensor, n_steps: int) -> torch.Tensor:
        damping, cost = self.damping, problem.residual(at).square().sum()
        for _ in range(n_steps):
            residual, jacobian = problem.linearized(at)
            gram, pull = jacobian.T @ jacobian, jacobian.T @ residual
            is_better = False
            while not is_better and damping < 1 / self.damping**2:
                damped = gram + damping * torch.diag(gram.diagonal() + torch.finfo(gram.dtype).tiny)
                step, _ = torch.linalg.solve_ex(damped, pull)
                moved = at - step.reshape(at.shape)
                is_better = bool((there := problem.residual(moved).square().sum()) < cost)
                damping *= self.eased if is_better else self.raised
            if not is_better:
                break
            at, gained, cost = moved, cost - there, there
            if gained < 1e-6 * cost:
                break
        return at


@dataclass(frozen=True)
class _Block:
    """The equations of the inputs left, in coordinates ``v`` of shape (k, k - 1) whose prior is a standard normal one.

    Attributes
    ----------
    forward : ScaledForward
        Deflated by what is known.
    views : TwoViews
        The forward view.
    rest : RestView
        With their labels.
    left : torch.Tensor of shape (m, b)
        ``U``.
    weight : float, default=1
        What the entries of ``P Q`` are multiplied with.
    """

    forward: ScaledForward
    views: TwoViews
    rest: RestView
    left: torch.Tensor
    weight: float = 1.0

    def inputs(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return ``p`` of shape (k, b)."""
        return self.forward.origin + coordinates @ self.forward.axes.T

    def _preactivations(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.views.forward.T + self.views.kink

    def residual(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return what lies outside of the column space, relative, and ``P Q`` without ones on its diagonal."""
        inputs = self.inputs(coordinates)
        here = self.rest.at(self._preactivations(inputs))
        products = inputs @ (here.gradients.detach() @ self.left).T
        products = products / products.diagonal().mean() - torch.eye(len(inputs), dtype=products.dtype)
        return torch.cat([here.outside.flatten(), self.weight * products.flatten()])

    def linearized(self, coordinates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same and its Jacobian, of shape (k m + k^2, k (k - 1))."""
        inputs, axes = self.inputs(coordinates), self.forward.axes.T
        z, changes = self._preactivations(inputs), axes @ self.views.forward.T
        here = self.rest.at(z)
        columns = here.gradients.detach() @ self.left
        products = inputs @ columns.T
        share, (k, d), m, own = 1 / products.diagonal().mean(), coordinates.shape, z.shape[1], torch.arange(len(z))
        outside = torch.zeros((k, d, k, m), dtype=z.dtype)
        changed = torch.zeros((k, d, k, k), dtype=z.dtype)
        for axis, change in enumerate(changes):
            along = here.along(change.expand_as(z))
            outside[own, axis, own] = self.rest.space.outside(here.turned_by(along))
            changed[own, axis, own] = axes[axis] @ columns.T
            changed[own, axis, :, own] += along @ self.left @ inputs.T
        changed = share * changed
        of_share = changed.diagonal(dim1=2, dim2=3).mean(dim=2)
        changed = changed - of_share[..., None, None] * share * products
        jacobian = torch.cat([outside.reshape(k * d, -1), self.weight * changed.reshape(k * d, -1)], dim=1).T
        return self.residual(coordinates), jacobian

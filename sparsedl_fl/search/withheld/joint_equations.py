"""The joint equations of the last few samples of a batch, for many starts at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch.nn.functional import pad

from sparsedl_fl.constraints import TailGradient, TailGradientAt
from sparsedl_fl.search.columns_and_forward_pass import SampleCoordinates, ScaledForward

__all__ = ["LeftEquations", "LeftSquares"]


@dataclass(frozen=True)
class LeftEquations:
    """The tail's gradients of ``k`` samples with labels lie in the column space, and ``P Q`` is the unit matrix.

    Samples of ``n`` starts are coordinates ``v`` of shape (n, k, k - 1) with a standard normal prior.

    Attributes
    ----------
    forward : ScaledForward
        The unknowns at their true scale, deflated by known columns.
    sample_coordinates : SampleCoordinates
        The unknowns.
    rest : TailGradient
        The constraint of the network tail, with the labels of the samples.
    left : torch.Tensor of shape (m, b)
        ``U``.
    """

    forward: ScaledForward
    sample_coordinates: SampleCoordinates
    rest: TailGradient
    left: torch.Tensor

    @classmethod
    def of(
        cls, sample_coordinates: SampleCoordinates, tail: TailGradient, left: torch.Tensor, labels: torch.Tensor
    ) -> LeftEquations:
        """Return the equations for deflated unknowns, and the labels of the samples, (k,)."""
        return cls(ScaledForward.of(sample_coordinates), sample_coordinates, replace(tail, labels=labels), left)

    def smoothed(self, share: float) -> LeftEquations:
        """Return the same with the kinks of the network tail smoothed over a share of what is typical."""
        return replace(self, rest=self.rest.smoothed(share))

    @property
    def n_inputs(self) -> int:
        """``k``."""
        return len(self.rest.labels)

    def inputs(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Return ``p`` of shape (..., k, b)."""
        return self.forward.origin + coordinates @ self.forward.axes.T

    @cached_property
    def _columns(self) -> torch.Tensor:
        """Matrix from gradients at pre-activations to columns, for products with ``(1, v)``, of shape (m, k)."""
        return self.left @ torch.cat([self.forward.origin[:, None], self.forward.axes], dim=1)

    @cached_property
    def _changes(self) -> torch.Tensor:
        """How pre-activations change along each coordinate, (k - 1, m)."""
        return self.forward.axes.T @ self.sample_coordinates.forward.T

    def _at(self, coordinates: torch.Tensor) -> tuple[TailGradientAt, torch.Tensor, torch.Tensor]:
        """Return the tail's gradients for all samples of all starts, their ``(1, v)`` and columns, (n, k, k)."""
        n, k, _ = coordinates.shape
        z = self.inputs(coordinates) @ self.sample_coordinates.forward.T + self.sample_coordinates.kink
        here = replace(self.rest, labels=self.rest.labels.repeat(n)).at(z.flatten(0, 1))
        return here, pad(coordinates, (1, 0), value=1.0), (here.gradients.detach() @ self._columns).reshape(n, k, k)

    def squares(self, coordinates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return squares outside of the column space, by sample, (n, k), and of entries of ``P Q - 1``, (n, k, k)."""
        here, extended, columns = self._at(coordinates)
        products = extended @ columns.transpose(1, 2)
        return here.outside.square().sum(dim=1).reshape(products.shape[:2]), _off_one(products).square()

    def costs(self, coordinates: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the sum of all squares, (n,), with the entries of ``P Q`` multiplied with weights of shape (n,)."""
        outside, products = self.squares(coordinates)
        return outside.sum(dim=1) + weights.square() * products.sum(dim=(1, 2))

    def normal(self, coordinates: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``J^T J`` and ``J^T r``, (n, k (k - 1), k (k - 1)) and (n, k (k - 1), 1), with ``J`` the Jacobian.

        The part outside of the column space depends on its own sample alone, and each product on two.
        """
        (n, k, d), own = coordinates.shape, torch.arange(coordinates.shape[1])
        here, extended, columns = self._at(coordinates)
        products = extended @ columns.transpose(1, 2)
        outside = torch.empty((n * k, len(self.left), d), dtype=coordinates.dtype)
        changed = torch.zeros((n, k, k, k, d), dtype=coordinates.dtype)
        for axis, change in enumerate(self._changes):
            along = here.along(change.expand(n * k, -1))
            outside[..., axis] = self.rest.space.outside(here.turned_by(along))
            changed[:, own, :, own, axis] += columns[..., axis + 1]
            changed[:, :, own, own, axis] += extended @ (along @ self._columns).reshape(n, k, k).transpose(1, 2)
        changed = _off_one(products, changed.flatten(3)).flatten(1, 2) * weights[:, None, None]
        gram = changed.transpose(1, 2) @ changed
        blocks = gram.view(n, k, d, k, d)
        blocks[:, own, :, own] += (outside.transpose(1, 2) @ outside).reshape(n, k, d, d).transpose(0, 1)
        pull = changed.transpose(1, 2) @ (weights[:, None] * _off_one(products).flatten(1))[..., None]
        return gram, pull + (outside.transpose(1, 2) @ here.outside[..., None]).reshape(n, k * d, 1)


@dataclass(frozen=True)
class LeftSquares:
    """The squares of the equations at some coordinates, for `sparsedl_fl.solvers.gauss_newton`.

    Attributes
    ----------
    equations : LeftEquations
        The equations.
    coordinates : torch.Tensor of shape (n, k, k - 1)
        The coordinates ``v``.
    weights : torch.Tensor of shape (n,)
        Weight of the entries of ``P Q``.
    """

    equations: LeftEquations
    coordinates: torch.Tensor
    weights: torch.Tensor

    @cached_property
    def cost(self) -> torch.Tensor:
        """The squares, of shape (n,)."""
        return self.equations.costs(self.coordinates, self.weights)

    @cached_property
    def normal(self) -> tuple[torch.Tensor, torch.Tensor]:
        """``J^T J`` and ``J^T r``."""
        return self.equations.normal(self.coordinates, self.weights)

    @property
    def gradient(self) -> torch.Tensor:
        """The gradient of half of each, of shape (n, d)."""
        return self.normal[1][..., 0]


def _off_one(products: torch.Tensor, changed: torch.Tensor | None = None) -> torch.Tensor:
    """Return ``P Q - 1`` with ones in the mean of the diagonal, (n, k, k), or how it changes, (n, k, k, l)."""
    share = 1 / products.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    if changed is None:
        return share * products - torch.eye(products.shape[1], dtype=products.dtype)
    of_mean = changed.diagonal(dim1=1, dim2=2).mean(dim=2)[:, None, None]
    return share[..., None] * (changed - (share * products)[..., None] * of_mean)

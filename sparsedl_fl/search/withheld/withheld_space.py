"""The subspaces of the gradients at the activations and at the pre-activations of a sample.

With ``e = W'^T d'`` the gradient at the activations of a sample, ``d = e`` where a unit is active and zero elsewhere.
``d = U q`` lies in the column space of the layer's gradient, and ``e = B r`` in the image of the next layer's column
space under ``W'^T``, or of a later layer's, through units that are all active. So at each unit either ``U q`` or
``U q - B r`` vanishes: as many equations as units, for ``b + r - 1`` unknowns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from sparsedl.arrays import as_tensor
from sparsedl.determinacy import Determinacy
from sparsedl.linalg import normalized, smallest_eigenvectors, weighted_gram
from sparsedl_fl.constraints.activation_subspace import NO_GAP
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.layers.blocks import in_double
from sparsedl_fl.lowrank.spectrum import leading_left

__all__ = ["BackSpace", "Grams"]

NEAR = 1e-2
"""Largest entry that should vanish, over the root mean square of ``B r``, of a candidate that is estimated again."""

WEAKEST, SHARES_OF_OTHERS = 1e-3, (1e-6, 1e-4)
"""A column is determined where without any single row the others still exclude every other direction, with at least a
share of all: the square of the noise over the first number, within the limits of the second. (At 200 Hardtanh units the
single rows that decided left shares of 1e-12 to 4e-11 to the others, samples with 4 to 12 inactive units 3e-6 to 1e-4:
twelve of 27 that remained of one batch. Mixtures left 1e-8 and more: those above the limit are rejected by label and
noise, or not at all.)
"""

TIMES_NOISE = 6.5
"""Largest residual of all equations of a column, over its expected noise. (Five batches of 50 of CIFAR-10 at 200
Hardtanh units: of some 110 columns 5.0 at most, of a mixture that had a label 8.1.)
"""

OWN_ROUNDING, LARGEST_RESIDUAL = 1e-7, 1e-3
"""Relative residual that rounding of our own squares leaves; and the largest one that counts as noise."""


class Grams:
    """Weighted Gram matrices of the same rows, for many weights in one product.

    Parameters
    ----------
    observations : torch.Tensor of shape (n_rows, k)
        The rows ``L``.
    most : int, default=2 ** 24
        Number of products of entries that are stored; with more the matrices are formed one by one.
    """

    def __init__(self, observations: torch.Tensor, *, most: int = 2**24) -> None:
        n_rows, k = observations.shape
        self.observations, self.products = observations, None
        if n_rows * k * (k + 1) // 2 <= most:
            first, second = torch.triu_indices(k, k)
            self.products = observations[:, first] * observations[:, second]
            self.positions = torch.zeros((k, k), dtype=torch.long)
            self.positions[first, second] = self.positions[second, first] = torch.arange(len(first))

    def __call__(self, weights: torch.Tensor) -> torch.Tensor:
        """Return ``L^T diag(w) L`` for each row of weights, of shape (n, k, k)."""
        if self.products is None:
            return weighted_gram(self.observations, weights)
        return (weights @ self.products)[:, self.positions]


@dataclass(frozen=True)
class BackSpace:
    """The two subspaces, and their noise.

    Attributes
    ----------
    left : torch.Tensor of shape (m, b)
        ``U``.
    back : torch.Tensor of shape (m, r)
        ``B``, orthonormal.
    noise_of_left : torch.Tensor of shape (b,)
        Noise of ``U q`` along each axis of ``q``.
    noise_of_back : torch.Tensor of shape (r, r)
        Matrix from ``r`` to the noise of ``B r`` along each axis.
    """

    left: torch.Tensor
    back: torch.Tensor
    noise_of_left: torch.Tensor
    noise_of_back: torch.Tensor

    @classmethod
    def all_of(cls, problem: LayerProblem) -> list[BackSpace]:
        """Return the subspaces by each downstream layer and the head, the smallest first.

        Through units that are all active, gradients lie in the image of the head, which has at most as many dimensions
        as there are classes. The gradients of the layers before the head show that too, and what comes through units of
        which some are inactive.
        """
        given, factors = problem.layer_gradient, problem.factors
        left, b = as_tensor(factors.left), problem.batch_size
        noise = torch.linalg.vector_norm(as_tensor(factors.noise_level)) / as_tensor(factors.singular_values)
        found, through = [], torch.eye(len(left), dtype=torch.float64)
        for layer in given.layers[:-1]:
            gradient, through = layer.weight_grad, through @ as_tensor(layer.weight.astype(float, copy=False)).T
            if min(gradient.shape) <= b or not gradient.any():
                continue
            U, S, _ = leading_left(in_double(gradient), b, min(gradient.shape), n_iterations=(1, 3))
            rank = int((S[:b] > NO_GAP * S[b]).sum())
            back, mixing = torch.linalg.qr(through @ as_tensor(U[:, :rank].copy()))
            size = torch.linalg.matrix_norm(through) / len(U) ** 0.5
            inverse, is_singular = torch.linalg.inv_ex(mixing)
            noise_of_back = size * float(S[b]) / as_tensor(S[:rank].copy())[:, None] * inverse
            if rank > 0 and not is_singular and b + rank < len(left):
                found.append(cls(left, back, noise, noise_of_back))
        back = torch.linalg.qr(through @ as_tensor(given.tail.head.weight).T)[0]
        head = cls(left, back, noise, torch.zeros((back.shape[1],) * 2, dtype=back.dtype))
        kept: list[BackSpace] = []
        for space in reversed(found):  # each contains those of later layers
            if not kept or space.back.shape[1] > kept[-1].back.shape[1]:
                kept.append(space)
        is_held = bool(kept) and kept[0].back.shape[1] <= back.shape[1]
        return kept if is_held or b + back.shape[1] >= len(left) else [head, *kept]

    @cached_property
    def rows(self) -> torch.Tensor:
        """Matrix from ``(q, r)`` to ``U q`` followed by ``U q - B r``, of shape (2 m, b + r)."""
        nothing = torch.zeros_like(self.back)
        return torch.cat([torch.cat([self.left, nothing], dim=1), torch.cat([self.left, -self.back], dim=1)])

    @cached_property
    def grams(self) -> Grams:
        """Weighted Gram matrices of the rows."""
        return Grams(self.rows)

    def entries(self, candidates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``U q`` and ``U q - B r`` for rows ``(q, r)``, each of shape (n, m)."""
        entries = candidates @ self.rows.T
        return entries[:, : len(self.left)], entries[:, len(self.left) :]

    def fitted(self, is_active: torch.Tensor) -> torch.Tensor:
        """Return the unit ``(q, r)`` that fulfils the equations of each pattern of active units, (n, m), best."""
        weights = torch.cat([~is_active, is_active], dim=1).to(self.rows.dtype)
        return smallest_eigenvectors(self.grams(weights))[1]

    def columns(self, candidates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the unit columns ``q`` among candidates ``(q, r)``, estimated again, with their active units.

        The residual of all equations has to be noise, and the equations have to determine the column, even without any
        one of them: mixtures of samples fulfil all equations but those of units that are inactive for some of them
        alone, and of these as many as there are free shares. A sample without inactive units has no withheld gradient,
        and mixtures of several such are candidates as well: none counts.

        Returns
        -------
        columns : torch.Tensor of shape (k, b)
        is_active : torch.Tensor of shape (k, m) of bool
        """
        passed, withheld = self.entries(candidates)
        sizes = (passed - withheld).square().mean(dim=1, keepdim=True).sqrt()
        is_active = withheld.abs() < passed.abs()
        is_near = torch.minimum(passed.abs(), withheld.abs()).amax(dim=1) < NEAR * sizes[:, 0]
        is_active = is_active[is_near & ~is_active.all(dim=1) & is_active.any(dim=1)].unique(dim=0)
        fitted, b = self.fitted(is_active), self.left.shape[1]
        passed, withheld = self.entries(fitted)
        left = torch.where(is_active, withheld, passed)
        expected = torch.hypot(
            torch.linalg.vector_norm(fitted[:, :b] * self.noise_of_left, dim=1),
            torch.linalg.vector_norm(fitted[:, b:] @ self.noise_of_back.T, dim=1),
        )
        sizes = torch.linalg.vector_norm(passed - withheld, dim=1)
        largest = (TIMES_NOISE * expected).clamp(min=OWN_ROUNDING * sizes, max=LARGEST_RESIDUAL * sizes)
        is_right = torch.linalg.vector_norm(left, dim=1) <= largest
        rows = torch.cat([~is_active, is_active], dim=1)[is_right]
        least, most = SHARES_OF_OTHERS
        share = min(max((float(self.noise_of_left.median()) / WEAKEST) ** 2, least), most)
        is_right[is_right.clone()] = Determinacy(full_leverage=1 - share).of(self.rows, rows)
        columns = normalized(fitted[is_right, :b], dim=1)
        return columns, is_active[is_right]

"""What comes back to the activations of an input, and what of it the units pass on.

With ``e = W'^T d'`` the gradient at the activations of an input, ``d = e`` where a unit is on and zero where it is off.
``d = U q`` lies in the column space of the layer's gradient, and ``e = B r`` in what those of the layers behind leave:
the image of the next one's column space under ``W'^T``, or of a later one's, through units that are all on. So at each
unit either ``U q`` vanishes or ``U q - B r`` does: as many equations as units, for ``b + r - 1`` unknowns.
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
"""Largest entry that should vanish, over the mean square of ``B r``, of a candidate that is estimated again."""

WEAKEST, SHARES_OF_OTHERS = 1e-3, (1e-6, 1e-4)
"""A single row may say all but a share of what excludes a direction: as large as noise over what excludes the weakest
one, squared, within limits. (Behind 200 Hardtanh units the only rows to say something left shares of 1e-12 to 4e-11 to
others, inputs with 4 to 12 units off 3e-6 to 1e-4: of 27 that were left of one batch twelve. Mixtures left 1e-8 and
more: those above are told by their label and noise, or are not.)
"""

TIMES_NOISE = 6.5
"""What may be left of all equations of a column, over what its noise explains. (Five batches of 50 of
CIFAR-10 behind 200 Hardtanh units: of some 110 columns 5.0 at most, of a mixture that had a label 8.1.)
"""

OWN_ROUNDING, LARGEST_RESIDUAL = 1e-7, 1e-3
"""Share of ``e`` that our own squares leave, and above which what is left is no noise, whatever that is."""


class Grams:
    """Weighted Gram matrices of the same rows, many times over: one product for all of them.

    Parameters
    ----------
    observations : torch.Tensor of shape (n_rows, k)
        The rows ``L``.
    most : int, default=2 ** 24
        Products of entries that are kept; with more the matrices are formed one by one.
    """

    def __init__(self, observations: torch.Tensor, *, most: int = 2**24) -> None:
        n_rows, k = observations.shape
        self.observations, self.products = observations, None
        if n_rows * k * (k + 1) // 2 <= most:
            first, second = torch.triu_indices(k, k)
            self.products = observations[:, first] * observations[:, second]
            self.places = torch.zeros((k, k), dtype=torch.long)
            self.places[first, second] = self.places[second, first] = torch.arange(len(first))

    def __call__(self, weights: torch.Tensor) -> torch.Tensor:
        """Return ``L^T diag(w) L`` for each row of weights, of shape (n, k, k)."""
        if self.products is None:
            return weighted_gram(self.observations, weights)
        return (weights @ self.products)[:, self.places]


@dataclass(frozen=True)
class BackSpace:
    """The two spaces, and their noise.

    Attributes
    ----------
    left : torch.Tensor of shape (m, b)
        ``U``.
    back : torch.Tensor of shape (m, r)
        ``B``, orthonormal.
    noise_of_left : torch.Tensor of shape (b,)
        How far noise moves ``U q`` along each axis of ``q``.
    noise_of_back : torch.Tensor of shape (r, r)
        What takes ``r`` to how far it moves ``B r``, along as many axes.
    """

    left: torch.Tensor
    back: torch.Tensor
    noise_of_left: torch.Tensor
    noise_of_back: torch.Tensor

    @classmethod
    def all_of(cls, problem: LayerProblem) -> list[BackSpace]:
        """Return the spaces that the layers behind leave, the head among them, the smallest first.

        Through units that are all on whatever comes back is in the image of the head, of no more dimensions than there
        are classes, or of one less. The gradients of the layers before show that too, and what comes through units of
        which some are off.
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
        for space in reversed(found):  # each holds those behind it
            if not kept or space.back.shape[1] > kept[-1].back.shape[1]:
                kept.append(space)
        is_held = bool(kept) and kept[0].back.shape[1] <= back.shape[1]
        return kept if is_held or b + back.shape[1] >= len(left) else [head, *kept]

    @cached_property
    def rows(self) -> torch.Tensor:
        """What takes ``(q, r)`` to ``U q`` and then to ``U q - B r``, of shape (2 m, b + r)."""
        nothing = torch.zeros_like(self.back)
        return torch.cat([torch.cat([self.left, nothing], dim=1), torch.cat([self.left, -self.back], dim=1)])

    @cached_property
    def grams(self) -> Grams:
        """Their weighted Gram matrices."""
        return Grams(self.rows)

    def entries(self, candidates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``U q`` and ``U q - B r`` for rows ``(q, r)``, each of shape (n, m)."""
        entries = candidates @ self.rows.T
        return entries[:, : len(self.left)], entries[:, len(self.left) :]

    def fitted(self, is_active: torch.Tensor) -> torch.Tensor:
        """Return the unit ``(q, r)`` that fulfils the equations best where units of shape (n, m) are on and off."""
        weights = torch.cat([~is_active, is_active], dim=1).to(self.rows.dtype)
        return smallest_eigenvectors(self.grams(weights))[1]

    def columns(self, candidates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the unit columns ``q`` among candidates ``(q, r)``, estimated again, with where their units are on.

        What is left of all equations has to be noise, and they have to determine the column, without any one of them as
        well: mixtures of inputs fulfil all equations but those of units that are off for some and not for others, and
        of these as many as there are shares to choose. Of an input with no unit off nothing is withheld, and mixtures
        of several are candidates as well: none counts.

        Returns
        -------
        columns : torch.Tensor of shape (k, b)
        is_on : torch.Tensor of shape (k, m) of bool
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

"""The activation subspace: the row space of the next layer's gradient, in which all activations of the batch lie.

``dL/dW2 = D2 phi(Z)^T``, so ``p`` is a sample exactly when ``phi(F p)`` lies in the row space of that gradient:
``m - b`` equations for ``b`` unknowns, without any sparsity. Up to half the width only samples fulfil them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.spatial import cKDTree

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl_fl.activations import Activation
from sparsedl_fl.constraints.constraint import LEAST_SURPLUS, complement
from sparsedl_fl.layers.blocks import in_double
from sparsedl_fl.lowrank.spectrum import leading_left

__all__ = ["ROUNDING_SHARE", "ActivationSubspace", "lengths"]

ROUNDING_SHARE = 10.0
"""Distance, over the expected rounding, up to which activations count as inside."""

UNUSABLE = 3.0
"""The subspace is unusable where this times the noise, over the largest singular value, exceeds its largest tolerance:
samples with a large gradient are off by half the noise (int8, 16 samples at 400 units)."""

WIDTH, WIDTH_OF_FEW = 1e-3, 0.08
"""Largest tolerance for a batch of half the width, and for a single sample of many units.

The nearest spurious minimisers stay at ``0.2 (1 - 2 b / m)^2`` (LeakyReLU 0.2, the least of 400 starts each at
(16, 100), (30, 100) and (40, 100): 0.11, 0.04 and 0.007; GELU and tanh had none there)."""


ZERO_SUM = 1e-2
"""Part of the next layer's gradient along ``(1, ..., 1)``, over its largest singular value, up to which it is noise:
rows of a head under cross-entropy add up to zero. By chance it is hardly that small for all of ``b`` samples."""

NO_GAP, CLEAR_GAP = 30.0, 1e4
"""A singular value up to this many times the noise counts as noise, where the layer's own gradient has a gap beyond
the batch larger than the second number: no sample has a small gradient then, and columns of the next layer depend on
each other (LeNet ``fc1``, ten batches of 45: gaps of 1e5; 3 times the noise missed one of them; not varied else)."""


@dataclass(frozen=True)
class ActivationSubspace:
    """The row space of the next layer's weight gradient.

    Attributes
    ----------
    basis : torch.Tensor of shape (m, b)
        Orthogonal columns ``V``, of unit length; shorter where the singular value comes near the noise.
    tolerance : float
        Largest relative distance from the subspace that rounding may explain. The nearest spurious minimisers stay at a
        few thousandths.
    activation : Activation
        ``phi``.
    duals : torch.Tensor of shape (m, b) or None, default=None
        Matrix that maps activations to how far rounding moves them; None where that is the same for all.
    allowance : float, default=0
        Distance that always counts as inside: a candidate is not exact itself.
    stand_for : torch.Tensor of shape (m,) or None, default=None
        Number of equal units that each represents, itself included: 0 where another one represents it. Equations of
        copies are no evidence, as every candidate fulfils them. None where there are no copies.
    least_rounding : float, default=1e-5
        Distance that the client's own rounding explains.
    largest_tolerance : float, default=1e-3
        Upper limit of the tolerance: spurious minimisers come as near, the nearer the larger the batch.
    """

    basis: torch.Tensor
    tolerance: float
    activation: Activation
    duals: torch.Tensor | None = None
    allowance: float = 0.0
    stand_for: torch.Tensor | None = None
    least_rounding: float = 1e-5
    largest_tolerance: float = WIDTH

    @classmethod
    def of(
        cls,
        next_weight_grad: np.ndarray | None,
        batch_size: int,
        activation: Activation,
        layer: tuple[np.ndarray, np.ndarray] | None = None,
        gap: float = 1.0,
    ) -> ActivationSubspace | None:
        """Return the subspace, or None where there is no gradient, too narrow a layer, or too much noise to use it.

        Noise is too much where it moves every sample about as far out as the nearest spurious minimisers. Where columns
        of the next layer depend on each other, its gradient does not span all activations: with few units that switch
        and ten classes, in half of all batches of 45 at LeNet's ``fc1``. The tolerance is `ROUNDING_SHARE` times what
        rounding as large as the first singular value beyond the batch explains.

        Parameters
        ----------
        next_weight_grad : ndarray of shape (k, m) or None
            ``dL/dW2``.
        batch_size : int
            ``b``.
        activation : Activation
            ``phi``.
        layer : (ndarray of shape (m, n), ndarray of shape (m,)) or None, default=None
            Weights and biases of the layer, which show copies of units; None takes all for different.
        gap : float, default=1
            Gap beyond the batch in the singular values of the layer's own gradient.
        """
        if next_weight_grad is None or min(next_weight_grad.shape) <= batch_size or not next_weight_grad.any():
            return None
        G = in_double(next_weight_grad.T)
        left, sizes, _ = leading_left(G, batch_size, min(G.shape), n_iterations=(1, 3))
        V, S = as_tensor(left[:, :batch_size].astype(float)), as_tensor(sizes[:batch_size])
        noise = max(float(sizes[batch_size]), _in_zero_sum(G, sizes[0]))
        largest_tolerance = _largest_tolerance(len(V), batch_size, activation)
        if UNUSABLE * noise > largest_tolerance * S[0]:
            return None
        # Smooth activations are nearly affine: their weak directions are real, within the noise or not.
        is_there = (NO_GAP * noise <= S) | (gap <= CLEAR_GAP) | (not activation.has_flat_part)
        # The direction of a singular value within the noise is arbitrary. With squares in place of fourth powers weak
        # directions shifted samples: two tokens of a picture were off by 14 expected errors.
        kept = torch.where(is_there, S**4 / (S**4 + noise**4), 0.0)
        tolerance = min(max(cls.least_rounding, float(ROUNDING_SHARE * noise / S[is_there][-1])), largest_tolerance)
        # A candidate is not exact itself: below a tenth of the largest tolerance, all are allowed that of the worst.
        allowance, duals = min(tolerance, largest_tolerance / 10), ROUNDING_SHARE * noise * V * (kept / S)
        return cls(
            V * kept.sqrt(),
            tolerance,
            activation,
            duals=duals,
            allowance=allowance,
            stand_for=None if layer is None else _stand_for(*map(as_tensor, layer)),
            largest_tolerance=largest_tolerance,
        )

    def to(self, dtype: torch.dtype) -> ActivationSubspace:
        """Return the same in another precision."""
        duals, stand_for = (None if part is None else part.to(dtype) for part in (self.duals, self.stand_for))
        return replace(self, basis=self.basis.to(dtype), duals=duals, stand_for=stand_for)

    @property
    def n_equations(self) -> int:
        """Number of units that are no copies of others, less ``b``."""
        m, b = self.basis.shape
        return (m if self.stand_for is None else int((self.stand_for > 0).sum())) - b

    @property
    def identifies(self) -> bool:
        """Whether the batch is in range: only its samples have activations in the subspace."""
        return self.n_equations - self.basis.shape[1] >= LEAST_SURPLUS

    def orthogonal_to(self, duals: torch.Tensor) -> ActivationSubspace:
        """Return the part of the subspace that is orthogonal to rows of shape (n, m) in it."""
        return replace(self, basis=self.basis @ complement(normalized(duals @ self.basis, dim=1)))

    def outside(self, activations: torch.Tensor) -> torch.Tensor:
        """Return the part of activations of shape (n, m) that lies outside of the subspace."""
        return activations - (activations @ self.basis) @ self.basis.T

    def distances(self, preactivations: torch.Tensor) -> torch.Tensor:
        """Return how far the activations of pre-activations of shape (n, m) lie from the subspace, relative."""
        return self.distances_of(self.activation.value(preactivations))

    def distances_of(self, activations: torch.Tensor) -> torch.Tensor:
        """Return how far activations of shape (n, m) lie from the subspace, relative."""
        return torch.linalg.vector_norm(self.outside(activations), dim=1) / lengths(activations)

    def tolerances_of(self, activations: torch.Tensor) -> torch.Tensor:
        """Return how far activations of shape (n, m) may lie from the subspace, relative, to count as inside."""
        return self.rounding_of(activations).clamp(min=self.allowance)

    def rounding_of(self, activations: torch.Tensor) -> torch.Tensor:
        """Return how far rounding may move activations of shape (n, m) out of the subspace, relative.

        With ``y = G2^T a``, the rounding of ``G2`` moves ``y`` by ``|a|`` times its own: far for a sample with a small
        gradient, hardly for the others, whatever the smallest singular value is.
        """
        return self._explained(activations).clamp(min=self.least_rounding, max=self.tolerance)

    def noise_of(self, activations: torch.Tensor) -> torch.Tensor:
        """Return how far the noise moves activations of shape (n, m), or changes, out of the subspace, relative."""
        return self._explained(activations) / ROUNDING_SHARE

    def _explained(self, activations: torch.Tensor) -> torch.Tensor:
        if self.duals is None:
            return torch.full_like(activations[:, 0], self.tolerance)
        return torch.linalg.vector_norm(activations @ self.duals, dim=1) / lengths(activations)

    def strengths_of(self, activations: torch.Tensor) -> torch.Tensor:
        """Return how strongly each equation constrains activations with the same inactive units, of shape (n, m).

        These are the singular values of the projection out of the subspace, restricted to the active units; as many
        are zero as the subspace holds vectors of these units alone.
        """
        b, n_equations = self.basis.shape[1], self.n_equations
        basis, stands = normalized(self.basis, dim=0), torch.ones(len(self.basis), dtype=torch.bool)
        if self.stand_for is not None:
            basis, stands = basis * self.stand_for[:, None].sqrt(), self.stand_for > 0
        found = torch.zeros_like(activations)
        for index, is_active in enumerate((activations != 0) & stands):
            n_active = int(is_active.sum())
            if n_active == n_equations + b:
                found[index, : max(0, n_equations)] = 1.0
                continue
            held = torch.linalg.eigvalsh(basis[is_active].T @ basis[is_active])[max(0, b - n_active) :]
            found[index, : n_active - len(held)] = 1.0
            found[index, n_active - len(held) : n_active] = (1 - held).clamp(min=0).sqrt()
        return found

    def up_to_scale(self) -> ActivationSubspace | None:
        """Return the subspace for pre-activations without a scale yet, or None where the activation needs one."""
        shape = self.activation.shape_at_kink()
        return None if shape is None else replace(self, activation=shape)


def _in_zero_sum(G: np.ndarray, largest: float) -> float:
    """Return the noise that the sum of a head's rows shows, ``G`` of shape (m, k); zero where it is no such head.

    With about as many samples as classes the singular values beyond the batch show little of it: of four flat pictures
    in five classes the last one was a tenth of the noise, and mixtures of two were certified.
    """
    along = float(np.linalg.norm(G.sum(axis=1, dtype=float)) / np.sqrt(G.shape[1]))
    return along if along <= ZERO_SUM * largest else 0.0


def _largest_tolerance(width: int, batch_size: int, activation: Activation) -> float:
    """Return the largest tolerance; with a zero-slope region, candidates with few active units come near to it."""
    surplus = 0.0 if activation.has_flat_part else max(0.0, 1 - 2 * batch_size / width)
    return max(WIDTH, WIDTH_OF_FEW * surplus**2)


def _stand_for(
    weight: torch.Tensor, bias: torch.Tensor, *, alike: float = 1 - 1e-4, n_probes: int = 32, n_first: int = 8
) -> torch.Tensor | None:
    """Return how many equal units each represents, of shape (m,); None where all differ.

    Units are copies where their weights and biases are proportional; one of zeros is constant, and counts for none. A
    tree over the first few random projections finds the pairs, as all products are too many.
    """
    probes = torch.randn((weight.shape[1], n_probes), generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    probed = normalized(torch.cat([weight.float() @ probes, n_probes**0.5 * bias.float()[:, None]], dim=1), dim=1)
    rows, index, copies = np.unique(probed.numpy(), axis=0, return_index=True, return_inverse=True)
    near = cKDTree(rows[:, :n_first]).query_pairs(1.01 * np.sqrt(2 * (1 - alike)), output_type="ndarray")
    near = near[np.einsum("ij,ij->i", rows[near[:, 0]], rows[near[:, 1]]) > alike]
    first = index.copy()
    for one, other in (near.T, near.T[::-1]):
        np.minimum.at(first, one, index[other])
    first = np.where(rows.any(axis=1), first, -1)[copies.reshape(-1)]
    counts = np.bincount(first[first >= 0], minlength=len(weight))
    return None if (counts == 1).all() else torch.from_numpy(counts).double()


def lengths(activations: torch.Tensor) -> torch.Tensor:
    """Return the lengths of activations of shape (n, m), none of them zero."""
    return torch.linalg.vector_norm(activations, dim=1).clamp(min=torch.finfo(activations.dtype).tiny)

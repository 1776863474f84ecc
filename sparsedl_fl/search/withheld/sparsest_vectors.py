"""Candidates by withheld gradients alone: sparsest vectors of a subspace, then one of two equations at each unit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator

from sparsedl.linalg import normalized, weighted_gram
from sparsedl_fl.search.withheld.withheld_space import BackSpace, Grams

__all__ = ["SparseStarts"]

ROUNDING = 1e-13
"""Ridge that keeps a matrix regular, over its mean diagonal."""


@dataclass(eq=False, repr=False, kw_only=True)
class SparseStarts(BaseEstimator):
    """Sparse vectors ``U q - B r`` by their absolute values, and from there ``(q, r)`` by both kinds of equations.

    Most samples have more inactive units than the sparsest vectors have entries: where patterns are nested, as those of
    images of different brightness are, differences of columns are sparser. The second step leads from these to columns.
    (One batch each of CIFAR-10 at 200 Hardtanh units: of 20 samples 14 and 19 were recovered by both steps, 9 and 16 by
    the first alone.)

    Parameters
    ----------
    n_starts : int, default=64
        Starts of a round.
    n_sparse, n_polished, n_near : int, default=25, 40 and 20
        Iterations of the first step, of the second, and of that where patterns are nearly known.
    first_widths, last_widths : tuple of float, default=(1.0, 0.3, 0.15) and (1e-3, 1e-6, 1e-6)
        Widths of zero, over the size of the entries, from which and to which each of them shrinks.
    clearly_off : float, default=0.01
        Share of the largest entry from which on a unit of a sparse vector is inactive.
    """

    n_starts: int = 64
    n_sparse: int = 25
    n_polished: int = 40
    n_near: int = 20
    first_widths: tuple[float, float, float] = (1.0, 0.3, 0.15)
    last_widths: tuple[float, float, float] = (1e-3, 1e-6, 1e-6)
    clearly_off: float = 0.01

    def candidates(self, space: BackSpace, known: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return candidates of the first step and of both, as rows ``(q, r)`` of shape (2 n_starts, b + r).

        Parameters
        ----------
        space : BackSpace
            Both subspaces.
        known : torch.Tensor of shape (k, m)
            Withheld gradients of known columns: starts are orthogonal to them.
        generator : torch.Generator
            Source of randomness.
        """
        m = len(space.left)
        outer, sizes, inner = torch.linalg.svd(space.rows[m:], full_matrices=False)
        kept = sizes > self.last_widths[0] * sizes[0]
        nothing, outer, inner = inner[~kept], outer[:, kept], inner[kept] / sizes[kept, None]
        functionals = torch.randn((self.n_starts, m), generator=generator, dtype=outer.dtype)
        # Half of the starts require one unit to be inactive, the others any number.
        picked = torch.randperm(m, generator=generator)[: self.n_starts // 2]
        functionals[: len(picked)] = torch.eye(m, dtype=outer.dtype)[picked]
        functionals = functionals @ outer
        if len(known):
            blind = torch.linalg.qr((known @ outer).T)[0]
            functionals = functionals - (functionals @ blind) @ blind.T
        sparsest = self._sparsest(outer, functionals) @ inner
        withheld = space.entries(sparsest)[1].abs()
        is_active = withheld < self.clearly_off * withheld.amax(dim=1, keepdim=True)
        widths = _widths(self.first_widths[1], self.last_widths[1], self.n_polished)
        polished = _polished(space, _least_passed(space, sparsest, nothing), widths)
        return torch.cat([space.fitted(is_active), polished])

    def near(self, space: BackSpace, is_active: torch.Tensor) -> torch.Tensor:
        """Return candidates ``(q, r)`` for patterns of shape (n, m) that are nearly those of samples."""
        is_active = is_active[~is_active.all(dim=1)].unique(dim=0)
        return _polished(
            space, space.fitted(is_active), _widths(self.first_widths[2], self.last_widths[2], self.n_near)
        )

    def _sparsest(self, observations: torch.Tensor, functionals: torch.Tensor) -> torch.Tensor:
        """Return for each functional the ``v`` with the least sum of ``|L v|`` at which it is one, by reweighting."""
        found = functionals / functionals.square().sum(dim=1, keepdim=True)
        sizes, grams = (found @ observations.T).abs().mean(dim=1, keepdim=True), Grams(observations)
        for width in _widths(self.first_widths[0], self.last_widths[0], self.n_sparse):
            weights = ((found @ observations.T).square() + (width * sizes).square()).rsqrt()
            found = _solved(grams(weights), functionals)
        return found


def _polished(space: BackSpace, candidates: torch.Tensor, widths: list[float]) -> torch.Tensor:
    """Return candidates ``(q, r)`` at which one of both entries of each unit vanishes, by reweighting.

    The squares of each are weighted by how much the other one is the larger, on a shrinking scale. The component of the
    withheld gradient along its first value is fixed.
    """
    m, b = space.left.shape
    withheld = space.entries(candidates)[1]
    functionals = withheld @ space.rows[m:] / withheld.square().sum(dim=1, keepdim=True)
    for width in widths:
        passed, withheld = (entries.square() for entries in space.entries(candidates))
        least = width**2 / m * candidates[:, b:].square().sum(dim=1, keepdim=True)
        share = (withheld + least) / (passed + withheld + 2 * least)
        weights = torch.cat([share / (passed + least), (1 - share) / (withheld + least)], dim=1)
        candidates = _solved(space.grams(weights), functionals)
    return candidates


def _least_passed(space: BackSpace, candidates: torch.Tensor, nothing: torch.Tensor) -> torch.Tensor:
    """Return candidates plus rows without withheld gradient, with ``U q`` least where ``U q - B r`` is not zero.

    Columns of samples without inactive units, rows ``nothing`` of shape (k, b + r), can be added to any candidate.
    """
    if len(nothing) == 0:
        return candidates
    passed, withheld = space.entries(candidates)
    weights, free = normalized(withheld.square(), dim=1), space.entries(nothing)[0].T
    gram = weighted_gram(free, weights)
    gram = gram + ROUNDING * torch.eye(len(nothing), dtype=gram.dtype)
    shares, _ = torch.linalg.solve_ex(gram, -(weights * passed) @ free)
    return candidates + shares @ nothing


def _widths(first: float, last: float, n: int) -> list[float]:
    """Return widths that shrink from first to last in half of the steps, and stay there."""
    shrinkage = (last / first) ** (2 / n)
    return [max(first * shrinkage**step, last) for step in range(n)]


def _solved(gram: torch.Tensor, functionals: torch.Tensor) -> torch.Tensor:
    """Return the ``v`` with the least ``v^T A v`` at which a functional is one, for each ``A`` and functional."""
    scale = gram.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    ridge = ROUNDING * torch.eye(gram.shape[1], dtype=gram.dtype)
    found, _ = torch.linalg.solve_ex(gram / scale + ridge, functionals)
    return found / (found * functionals).sum(dim=1, keepdim=True)

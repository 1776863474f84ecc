"""Mixtures of columns that have more zeros than chance: told by what piles up in them."""

from __future__ import annotations

import torch

from sparsedl.arrays import chunks
from sparsedl.candidates import CandidatePool
from sparsedl.linalg import normalized
from sparsedl.zeros import ZeroTest

__all__ = ["without_mixtures"]


def without_mixtures(
    pool: CandidatePool, test: ZeroTest, *, clearly_more: int = 4, most_splits: int = 100
) -> CandidatePool:
    """Replace candidates that are a mixture of another one with something sparser by that.

    Where rows repeat, or codes take few values, ``q = a + t c`` can have more zeros than chance although ``c`` is a
    column and ``a`` another: the rows where both cancel. The ratios of ``L q`` to ``L c`` then pile up at the mixture's
    ``t``, and without that share of ``c`` more entries vanish.

    Parameters
    ----------
    pool : CandidatePool
        The candidates.
    test : ZeroTest
        What a zero is.
    clearly_more : int, default=4
        Zeros more than those of a candidate that make it a mixture.
    most_splits : int, default=100
        How often the pool is looked through.
    """
    k = pool.directions.shape[1]
    if len(pool.directions) < 2 or k < 2:
        return pool
    result = CandidatePool.empty(k)
    result.add(pool.directions, pool.n_zeros)
    rows = test.distinct_rows
    for _ in range(most_splits):
        directions = result.directions
        entries, tolerances = directions @ test.observations[rows].T, test.tolerances(directions)[:, rows]
        split = _sparser_mixture(entries, tolerances, directions, clearly_more)
        if split is None:
            break
        index, better = split
        better = test.refit(better[None])
        is_column, n_zeros = test.accept(better)
        keep = torch.arange(len(directions)) != index
        result = CandidatePool(directions[keep], result.n_zeros[keep])
        if is_column[0]:
            result.add(better, n_zeros)
    return result


def _sparser_mixture(
    entries: torch.Tensor, tolerances: torch.Tensor, directions: torch.Tensor, clearly_more: int
) -> tuple[int, torch.Tensor] | None:
    """Return a candidate and what it becomes with less of another one, where that has clearly more zeros."""
    zeros = entries.abs() <= tolerances
    counts = zeros.sum(dim=1)
    possible = _possible_mixtures(entries, tolerances, zeros, clearly_more)
    sparsest_first = torch.argsort(counts, descending=True, stable=True)
    for index in torch.argsort(counts).tolist():
        for other in sparsest_first[possible[index][sparsest_first]].tolist():
            usable = ~zeros[other] & ~zeros[index]
            own, partner = entries[index][usable], entries[other][usable]
            ratios, order = (own / partner).sort()
            widths = 2 * (tolerances[index][usable] / partner.abs())[order]
            ends = torch.searchsorted(ratios, ratios + widths)
            most, at = (ends - torch.arange(len(ratios))).max(dim=0)
            if int(most) + int((zeros[index] & zeros[other]).sum()) > int(counts[index]) + clearly_more:
                share = ratios[at : int(ends[at])].median()
                return index, normalized(directions[index] - share * directions[other], dim=0)
    return None


def _possible_mixtures(
    entries: torch.Tensor, tolerances: torch.Tensor, zeros: torch.Tensor, clearly_more: int, *, n_probes: int = 32
) -> torch.Tensor:
    """Return which pairs may be a mixture and a column in it, shape (n_directions, n_directions); few are.

    More ratios have to pile up than the candidate has zeros that the other one lacks. So there have to be as many rows
    where neither vanishes; and among some of these, drawn at random, half the share that is to be expected has to.
    """
    n, n_rows = entries.shape
    some = zeros.to(torch.float32)
    both = some @ some.T
    counts = both.diagonal()
    lacking = counts[:, None] - both
    usable = n_rows - counts[:, None] - counts + both
    possible = (usable > lacking + clearly_more) & (usable > counts[:, None] // 2)
    possible.fill_diagonal_(False)
    if not possible.any():
        return possible
    share = (lacking + clearly_more) / usable.clamp(min=1)
    order = torch.rand(n_rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64).argsort()
    shuffled, is_zero, width_of = entries[:, order], zeros[:, order], tolerances[:, order]
    suspects = torch.nonzero(possible.any(dim=1))[:, 0]
    for part in (suspects[part] for part in chunks(len(suspects), 4 * n * n_probes)):
        probes = is_zero[part].to(torch.uint8).argsort(dim=1, stable=True)[:, :n_probes]
        own, width = shuffled[part].gather(1, probes)[:, None, :], width_of[part].gather(1, probes)[:, None, :]
        partner = shuffled[:, probes].transpose(0, 1)
        is_used = ~is_zero[:, probes].transpose(0, 1) & (own.abs() > width)
        ratios, by_size = torch.where(is_used, own / partner, torch.inf).sort(dim=2)
        widths = (2 * width / partner.abs()).gather(2, by_size)
        piled = ((ratios[:, :, 1:] - ratios[:, :, :-1]) <= widths[:, :, :-1]).sum(dim=2)
        possible[part] &= piled >= 0.5 * share[part] * is_used.sum(dim=2) - 1
    return possible

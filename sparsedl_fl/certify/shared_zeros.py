"""Columns that zeros tell from all others, but not from one another: those of records with the same active units.

All mixtures of such columns have the zeros that they share. So no single one is certified; but the rows where all of
them vanish determine the space that they span, as those of one column determine it. The inputs of all other records
are orthogonal to that space, whichever columns of it are the true ones, and follow as if each were certified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparsedl.arrays import as_tensor, rows_of
from sparsedl.selection import complete_basis
from sparsedl_fl.certify.hypothesis import Hypothesis
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["SharedZeros", "in_groups", "leave_another", "radii_of", "with_shared_zeros"]


@dataclass(frozen=True)
class SharedZeros:
    """A group of columns whose shared zeros determine what they span.

    Attributes
    ----------
    members : ndarray of shape (k,) of int
        Their numbers, ``k >= 2``.
    rows : ndarray of shape (m,) of bool
        Where all of them vanish.
    space : ndarray of shape (b, k)
        Orthonormal basis of what they span.
    radius : float, default=np.inf
        How far the inputs of the group are at most from that of its first member, its centre, as a root mean square
        over the features (see `sparsedl_fl.certify.shared_region`).
    """

    members: np.ndarray
    rows: np.ndarray
    space: np.ndarray
    radius: float = np.inf

    def may_hold_difference(self, factors: LowRankGradient, zeros: np.ndarray) -> np.ndarray:
        """Return which columns may be the mean of a pair whose difference the group holds, of shape (b,).

        Such a difference vanishes where the pair does, but for rounding. Of the zeros of another column all directions
        of the group lack more than those that came by choice.

        Parameters
        ----------
        factors : LowRankGradient
            The factorised gradient.
        zeros : ndarray of shape (m, b) of bool
            Zero rows of each column.
        """
        whitener, scaled = (each.numpy() for each in factors.zero_test.in_units_of_noise)
        space = np.linalg.qr(np.linalg.solve(whitener, self.space))[0]
        left = scaled @ space
        weakest = [whitener @ space @ np.linalg.svd(left[rows], full_matrices=True)[2][-1] for rows in zeros.T]
        directions = np.stack(weakest, axis=1)
        vanishes = factors.zeros(directions / np.linalg.norm(directions, axis=0))
        return (zeros & ~vanishes).sum(axis=0) <= len(self.members)


def with_shared_zeros(
    hypothesis: Hypothesis, certified: np.ndarray, narrow: float
) -> tuple[Hypothesis, tuple[SharedZeros, ...]]:
    """Group the columns that are not certified by the zeros that they share, and take a basis of what each group spans.

    Columns that are like no others take the places that are missing in a group, those with the fewest zeros first.

    Parameters
    ----------
    hypothesis : Hypothesis
        The columns.
    certified : ndarray of shape (b,) of bool
        Which ones are certified by their zeros.
    narrow : float
        Width of zero, relative to the entries of a column, up to which zeros prove it, whatever the pattern.

    Returns
    -------
    hypothesis : Hypothesis
        Columns of a group do not count as proposed: they span the right space, and are arbitrary in it.
    groups : tuple of SharedZeros
    """
    open_ones = np.flatnonzero(~certified)
    if not (1 < len(open_ones) <= len(certified) / 2 and hypothesis.problem.activation.has_flat_part):
        return hypothesis, ()
    factors, zeros = hypothesis.problem.factors, hypothesis.zeros[:, open_ones]
    found, spare = [], []
    for together in _alike(zeros):
        group = _determined_by(factors, np.all(zeros[:, together], axis=1), len(open_ones))
        if group is not None and group.space.shape[1] >= len(together):
            found.append(replace(group, members=open_ones[together]))
        else:
            spare.extend(open_ones[together])
        if len(spare) > len(open_ones) / 2:  # one that stands alone needs another one in its space
            return hypothesis, ()
    basis, groups = hypothesis.basis.copy(), []
    for group in found:
        n_missing = group.space.shape[1] - len(group.members)
        if n_missing <= len(spare):
            taken, spare = spare[len(spare) - n_missing :], spare[: len(spare) - n_missing]
            groups.append(replace(group, members=np.append(group.members, taken).astype(int)))
            basis[:, groups[-1].members] = group.space
    is_basis = np.linalg.matrix_rank(basis) == len(basis)
    if not is_basis or not all(_is_narrow_and_apart(factors, basis, group, narrow) for group in groups):
        return hypothesis, ()
    proposed = hypothesis.proposed & ~in_groups(groups, len(basis))
    return replace(hypothesis, basis=basis, proposed=proposed), tuple(groups)


def leave_another(factors: LowRankGradient, rows: np.ndarray, columns: np.ndarray, *, most: int = 3) -> bool:
    """Return whether rows where one column vanishes leave another that is none of those that are certified.

    What vanishes there is spanned by columns of the batch. Where it has more directions than the column and those
    of the others that vanish there as well, one of the others is no column. (Before three classes a pair with the same
    active units spans, with a third sample, what vanishes wherever the units of the third are theirs: 86 of 100 zeros.)

    Parameters
    ----------
    factors : LowRankGradient
        The factorised gradient.
    rows : ndarray of shape (m,) of bool
        Where the column vanishes.
    columns : ndarray of shape (b, k)
        Unit columns that are certified.
    most : int, default=3
        Directions that are looked for.
    """
    found = _determined_by(factors, rows, min(most, factors.batch_size))
    if found is None:
        return False
    n_vanishing = int(factors.zeros(columns)[found.rows].all(axis=0).sum())
    return found.space.shape[1] > 1 + n_vanishing


def in_groups(groups: Sequence[SharedZeros], b: int) -> np.ndarray:
    """Return which of ``b`` columns belong to a group, of shape (b,)."""
    return np.isin(np.arange(b), [member for group in groups for member in group.members])


def radii_of(groups: Sequence[SharedZeros], b: int) -> np.ndarray:
    """Return the radius of each group's region at its centre, and zero elsewhere, of shape (b,)."""
    radii = np.zeros(b)
    for group in groups:
        radii[group.members[0]] = group.radius if np.isfinite(group.radius) else 0.0
    return radii


def _alike(zeros: np.ndarray) -> list[np.ndarray]:
    """Return groups of columns of shape (m, k) of bool that share their zeros, those with most first.

    A column in a space of ``k`` dimensions has ``k - 1`` zeros of its own by choice.
    """
    lacking = zeros.T.astype(float) @ ~zeros
    alike, left, groups = np.maximum(lacking, lacking.T) < len(lacking), np.ones(len(lacking), dtype=bool), []
    for first in np.argsort(-zeros.sum(axis=0), kind="stable"):
        if left[first]:
            groups.append(np.flatnonzero(alike[first] & left))
            left[groups[-1]] = False
    return groups


def _determined_by(factors: LowRankGradient, rows: np.ndarray, most: int) -> SharedZeros | None:
    """Return the group whose space rows determine, with no members yet, where they prove one of 2 to ``most``.

    In the space orthogonal to all but one of its directions, that one has to be proven by the rows: then all columns
    that vanish there, and no others, span it.
    """
    test, b, rows = factors.zero_test, factors.batch_size, rows.copy()
    whitener, scaled = (each.numpy() for each in test.in_units_of_noise)
    k, is_alone = 0, rows
    while is_alone.any() and k < most and rows.sum() > b - most:
        left, _, axes = np.linalg.svd(scaled[rows])
        directions = whitener @ axes[::-1][:most].T
        directions /= np.linalg.norm(directions, axis=0)
        vanishes = factors.zeros(directions)[rows].all(axis=0)
        k = most if vanishes.all() else int(np.argmin(vanishes))
        # A zero that came by choice, of one column or of all, is the only one that says what it says.
        is_alone = np.sum(left[:, : b - k] ** 2, axis=1) > test.determinacy.full_leverage
        rows[np.flatnonzero(rows)[is_alone]] = False
    if k < 2 or is_alone.any():
        return None
    seen = as_tensor(complete_basis(np.linalg.qr(directions[:, :k])[0]))
    one = seen[:, k - 1 :]
    reduced = replace(
        test, observations=test.observations @ one, unmixing=test.unmixing @ one, evidence=test.distinct_rows
    )
    is_proven = reduced.prove(as_tensor(np.eye(1, one.shape[1])), rows_of(rows[:, None]))
    return SharedZeros(np.zeros(0, dtype=int), rows, seen[:, :k].numpy()) if is_proven.all() else None


def _is_narrow_and_apart(factors: LowRankGradient, basis: np.ndarray, group: SharedZeros, narrow: float) -> bool:
    """Return whether zero is narrow for a group, and no other column has nearly all of its zeros."""
    widths = np.sqrt(len(factors.left)) * factors.tolerances(group.space).mean(axis=0)
    first, others = group.members[:1], np.setdiff1d(np.arange(len(basis)), group.members)
    directions = np.hstack([basis[:, first], basis[:, others]])
    zeros = factors.zeros(directions)
    zeros[:, 0] = group.rows
    return bool((widths < narrow).all() and factors.apart(directions, zeros, np.ones_like(zeros))[0])

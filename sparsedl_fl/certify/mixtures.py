"""Mixtures of samples that lie in an activation subspace, for piecewise linear activations.

Let ``x = sum_j t_j x_j`` with ``sum_j t_j = 1`` over some samples ``J``. A unit with one slope at ``x`` and at all of
them has the activation ``sum_j t_j phi(z_j)``, which lies in the subspace: its equation holds for any mixture. Only
units at which slopes differ restrict ``t``, and where these are no more than the free shares, some mixture fulfils them
all: a spurious minimiser, isolated and as exact as samples are. So every set ``J`` has to leave equations over. Hall's
theorem decides on all sets at once, by a matching of samples to units at which their slopes differ.

LeakyReLU had such minimisers where 13 samples differed at 1 to 8 of 30 units: two of seven certified inputs were off by
their size, with expected errors of 2e-5.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

__all__ = ["are_no_mixtures"]


def are_no_mixtures(
    slopes: np.ndarray, is_clear: np.ndarray, *, has_two_kinks: bool = False, n_missing: int = 0
) -> np.ndarray:
    """Return which inputs differ from the others at more units than the free shares of a mixture of these.

    Any ``n`` others have to differ from an input at ``n + 1`` units together: two equations are left over, as the scale
    settles one share. One alone may differ at a single unit, or at none: a mixture of two fulfils the equation of a
    kink only if it is one of the two, and two that differ at no unit are near-duplicates, which expected errors cover.

    Parameters
    ----------
    slopes : ndarray of shape (b, m)
        ``phi'(z)``.
    is_clear : ndarray of shape (b, m) of bool
        Where ``z`` is clearly off the kink, so that a mixture would break the equation by more than noise.
    has_two_kinks : bool, default=False
        Whether units have a zero-slope region on both sides. Then a mixture of two that lies beyond one of them may
        fulfil the equation of a unit on its other side, so that one alone has to differ at two.
    n_missing : int, default=0
        Number of samples that are not among these: each may differ where the others do, and nowhere else. (Of a search
        that was cut short, three of four certified inputs were off by 100 expected errors and more.)

    Examples
    --------
    Four inputs that differ in two units may be mixtures: one of three has two free shares.

    >>> slopes = np.array([[1.0, 1, 1], [1, 1, 0.1], [1, 0.1, 1], [1, 0.1, 0.1]])
    >>> are_no_mixtures(slopes, slopes > 0).tolist()
    [False, False, False, False]
    >>> slopes = np.where(np.eye(4, 12) + np.eye(4, 12, 4) + np.eye(4, 12, 8) > 0, 0.1, 1.0)
    >>> are_no_mixtures(slopes, slopes > 0).tolist()
    [True, True, True, True]
    """
    others = ~np.eye(len(slopes), dtype=bool)
    differs = (((slopes != own) & is_clear)[others[i]] for i, own in enumerate(slopes))
    return np.array([_is_no_mixture(units, has_two_kinks, n_missing) for units in differs])


def _is_no_mixture(differs: np.ndarray, has_two_kinks: bool, n_missing: int) -> bool:
    """Return whether any ``n`` of the others, of shape (b - 1, m), differ at more than ``n`` units together.

    Where there is one kink, ``n`` units are enough for those that differ at a single one.
    """
    differs = differs[differs.any(axis=1)]
    differs = np.vstack([differs, np.repeat(differs.any(axis=0, keepdims=True), n_missing, axis=0)])
    n_units = np.sort(differs.sum(axis=1))
    if (n_units > np.arange(len(n_units)) + 1).all():  # the most of any n alone
        return True
    more = (differs.sum(axis=1) > 1) | has_two_kinks
    return _has_matching(differs) and all(_has_matching(np.vstack([differs, again])) for again in differs[more])


def _has_matching(differs: np.ndarray) -> bool:
    """Return whether each row can be matched with a column of its own."""
    return bool((maximum_bipartite_matching(csr_array(differs), perm_type="column") >= 0).all())

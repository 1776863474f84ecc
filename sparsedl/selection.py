"""Selection: the sparsest linearly independent candidates, and completion to a basis."""

from __future__ import annotations

import numpy as np

__all__ = ["select_independent", "complete_basis"]


def select_independent(
    directions: np.ndarray, n_zeros: np.ndarray, tolerance: float = 1e-2, taken: np.ndarray | None = None
) -> np.ndarray:
    """Take candidates by decreasing sparsity while the rank grows.

    Parameters
    ----------
    directions : ndarray of shape (n_components, n_candidates)
        Unit columns.
    n_zeros : ndarray of shape (n_candidates,)
        Number of zeros of each candidate, or any other score that is large for a sparse one.
    tolerance : float, default=1e-2
        A candidate is independent when its part outside the span of those already taken is longer than this.
    taken : ndarray of shape (n_components, n_taken) or None, default=None
        Independent columns taken before.

    Returns
    -------
    ndarray of shape (n_selected,)
        Indices of the selected candidates, sparsest first; at most ``n_components`` of them.

    References
    ----------
    Spielman, Wang and Wright, "Exact recovery of sparsely-used dictionaries", COLT 2012, Algorithm Greedy.

    Examples
    --------
    >>> select_independent(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), np.array([3, 9, 5])).tolist()
    [1, 2]
    """
    n_components, taken = len(directions), directions[:, :0] if taken is None else taken
    n_taken = taken.shape[1]
    columns = np.empty((n_components, n_components), order="F")
    columns[:, :n_taken] = np.linalg.qr(taken)[0]
    selected: list[int] = []
    for index in np.argsort(-np.asarray(n_zeros), kind="stable"):
        if n_taken == n_components:
            break
        basis = columns[:, :n_taken]
        outside = directions[:, index] - basis @ (basis.T @ directions[:, index])
        outside -= basis @ (basis.T @ outside)
        length = np.sqrt(outside @ outside)
        if length > tolerance:
            columns[:, n_taken] = outside / length
            n_taken += 1
            selected.append(int(index))
    return np.array(selected, dtype=int)


def complete_basis(directions: np.ndarray) -> np.ndarray:
    """Append an orthonormal basis of the complement to independent columns.

    Parameters
    ----------
    directions : ndarray of shape (n_components, n_selected)
        Independent columns.

    Returns
    -------
    ndarray of shape (n_components, n_components)
        The given columns first, then the completion (SPEAR++, Sec. 4.5).
    """
    n_components, n_selected = directions.shape
    if n_selected == n_components:
        return directions
    complement = np.linalg.qr(directions, mode="complete")[0][:, n_selected:]
    return np.column_stack([directions, complement])

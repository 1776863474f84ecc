"""The normal equations of what zeros leave of a column or an input."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cholesky
from scipy.linalg.lapack import dpstrf

__all__ = ["factor_of"]

ROUNDING = 10.0
"""Times the rounding of a pivot, ``b eps``, up to which one is zero: that of the products comes on top."""


def factor_of(rows: np.ndarray, own: np.ndarray) -> np.ndarray | None:
    """Return the lower Cholesky factor of ``rows^T rows + own own^T``, or None where rows determine nothing beside own.

    Of a singular matrix rounding leaves the last pivot above zero as often as below, and then Cholesky raises no error:
    inputs that their zeros leave open were given an error of 1e-7. Complete pivoting tells.

    Parameters
    ----------
    rows : ndarray of shape (k, b)
        Equations.
    own : ndarray of shape (b,)
        Unit vector that they leave open.
    """
    gram = rows.T @ rows + np.outer(own, own)
    least = ROUNDING * len(gram) * np.finfo(float).eps * np.diag(gram).max()
    _, _, rank, _ = dpstrf(gram, tol=least, lower=1)
    return cholesky(gram, lower=True) if rank == len(gram) else None

"""How much of the initial weights is left after a client's weight decay, found by the rank of what is not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from sparsedl_fl.wording import argument

__all__ = ["decay_by_rank"]

FEWEST, SHARE = 8, 1 / 32
"""Eigenvalues that have to agree: so many, or this share of a larger layer (but more than half of one below that)."""

N_REFINEMENTS = 3
"""Least-squares steps; each squares the error, down to that of rounding."""


def decay_by_rank(pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]], *, agreement: float = 1e-4) -> float:
    """Return the share ``a`` of the initial weights for which ``a W0 - W_T`` has the smallest rank.

    With momentum or without, SGD with weight decay leaves ``W_T = a W0 + L`` with ``L`` of the rank of the batch, so
    that all eigenvalues of the pencil ``(W_T, W0)`` but as many are ``a``. The others are scattered. On the directions
    that ``L`` lacks, ``a`` then solves a least-squares problem.

    Parameters
    ----------
    pairs : mapping of name to (torch.Tensor, torch.Tensor)
        Each parameter before and after.
    agreement : float, default=1e-4
        Spread of the eigenvalues that are one.

    Raises
    ------
    ValueError
        If no eigenvalues agree.
    """
    matrices = [
        pair for pair in pairs.values() if pair[0].ndim == 2 and min(pair[0].shape) > 3 and pair[1].isfinite().all()
    ]
    if not matrices:
        raise ValueError(f"{argument('weight_decay')} cannot be found: the model has no matrix of weights")
    initial, final = (part.numpy() for part in max(matrices, key=lambda pair: min(pair[0].shape)))
    initial, final = (initial, final) if len(initial) <= initial.shape[1] else (initial.T, final.T)
    m = len(initial)
    n_agreeing = max(int(SHARE * m), min(FEWEST, m // 2 + 1))
    values = np.sort(np.linalg.eigvals(final @ np.linalg.pinv(initial)).real)
    spreads = values[n_agreeing - 1 :] - values[: m - n_agreeing + 1]
    first = int(np.argmin(spreads))
    if spreads[first] > agreement:
        raise ValueError(
            f"{argument('weight_decay')} cannot be found by the rank: the batch is about as large as the largest "
            "layer, or the optimiser is no SGD"
        )
    kept = float(np.median(values[first : first + n_agreeing]))
    for _ in range(N_REFINEMENTS):
        change = final - kept * initial
        beyond = np.linalg.eigh(change @ change.T)[1][:, :n_agreeing]
        of_final, of_initial = beyond.T @ final, beyond.T @ initial
        kept = float(np.sum(of_final * of_initial) / np.sum(of_initial**2))
    return kept

"""Token ids of a batch, by the rows of an embedding's gradient that are not zero.

A row of a table takes part in the loss only if its token is in the batch. Where the table is the head's matrix as well,
every row has a gradient; those of tokens that are not in the batch lie in the subspace of the head's inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import chi2

from sparsedl_fl.audit.findings import LayerAudit
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.layers.formats import rounding_noise
from sparsedl_fl.models import LayerRow
from sparsedl_fl.tracing.naming import plain_parameters

__all__ = ["TokenIds", "embedded_tokens", "token_ids"]

MOST = 0.9
"""Share of rows with a gradient above which something else than tokens may have changed them."""

SAME = 1e-4
"""Share of a subtracted multiple of the weights that rounding leaves in a row."""

BY_CHANCE = 1e-6
"""Chance that any row of noise counts as a token's."""


class TokenIds(NamedTuple):
    """Token ids that the gradient of a table shows.

    Attributes
    ----------
    ids : tuple of int
        Rows that tokens of the batch touched, sorted.
    reason : str
        How they are known, or why there are none.
    """

    ids: tuple[int, ...]
    reason: str


def embedded_tokens(subject: Subject, rows: Mapping[str, LayerRow]) -> dict[str, LayerAudit]:
    """Return what the embeddings of a model's input ids leak, by the names of their modules."""
    parameters = plain_parameters(subject.model)
    linear = {use.weight for use in subject.trace.layers}
    found = {}
    for row in rows.values():
        for name in row.parameters:
            gradient = subject.gradients.get(name)
            if name not in subject.tables or gradient is None:
                continue
            shown = token_ids(parameters[name], gradient, is_tied=name in linear)
            if shown.ids:
                text = f"{len(shown.ids)} token ids of the batch: {shown.reason}"
                found[row.name] = LayerAudit(row.name, None, text, row, source=shown.reason, tokens=shown.ids)
            elif name not in linear:
                found[row.name] = LayerAudit.closed(row, shown.reason)
    return found


def token_ids(weight: torch.Tensor, gradient: torch.Tensor, is_tied: bool = False) -> TokenIds:
    """Return the tokens of a batch.

    Parameters
    ----------
    weight, gradient : torch.Tensor of shape (n_tokens, n_features)
        The table and its gradient.
    is_tied : bool, default=False
        Whether it is the matrix of a linear layer as well.
    """
    G = gradient.detach().cpu().double().numpy()
    if not np.isfinite(G).all():
        return TokenIds((), "its gradient has NaN or infinity")
    touched = G.any(axis=1)
    if not touched.any():
        return TokenIds((), "its gradient is all zeros")
    how = "rows of its gradient that are not zero"
    if is_tied and (rounding_noise(G) is not None or np.mean(G[touched] == 0) > 1 - MOST):
        touched = None  # small entries became zero, which moves rows out of the subspace
    elif is_tied:
        touched, how = _outside_of_head(G), "rows outside the subspace of the inputs of the head that shares this table"
    elif touched.mean() > MOST:
        touched = _without_decay(G, weight.detach().cpu().double().numpy())
        how = "rows that changed by more than weight decay or a penalty"
        if touched is None:
            touched, how = _above_noise(G), "rows of its gradient above the noise of all rows"
    if touched is None or not touched.any():
        return TokenIds((), "no row of its gradient is zero, so that tokens of the batch do not show")
    return TokenIds(tuple(np.flatnonzero(touched).tolist()), how)


def _outside_of_head(G: np.ndarray, *, most: float = 0.5, gap: float = 10.0, clear: float = 100.0) -> np.ndarray | None:
    """Return which rows lie outside the subspace of the head's inputs: most rows of a large table are of no token.

    Parameters
    ----------
    G : ndarray of shape (n_tokens, n_features)
        The gradient.
    most : float, default=0.5
        Largest share of rows that are tokens, and largest dimension of the subspace over the number of features.
    gap : float, default=10
        How many times further out the nearest token lies than the furthest other row.
    clear : float, default=100
        Gap of the singular values after the subspace.
    """
    n_rows, n_features = G.shape
    sizes = np.linalg.norm(G, axis=1)
    order = np.argsort(sizes)
    quiet = order[sizes[order] > 0][: min(n_rows // 2, 4 * n_features)]
    if len(quiet) < n_features:
        return None
    _, values, right = np.linalg.svd(G[quiet] / sizes[quiet, None], full_matrices=False)
    gaps = values[:-1] / np.maximum(values[1:], np.finfo(float).tiny)
    rank = int(np.argmax(gaps)) + 1
    if gaps[rank - 1] < clear or rank > most * n_features:
        return None  # the head has more inputs than features: their subspace is everything
    outside = np.linalg.norm(G - (G @ right[:rank].T) @ right[:rank], axis=1) / np.maximum(sizes, np.finfo(float).tiny)
    is_token = outside > np.sqrt(np.finfo(np.float32).eps)
    if not is_token.any() or is_token.mean() > most or outside[is_token].min() < gap * outside[~is_token].max():
        return None
    return is_token


def _without_decay(G: np.ndarray, W: np.ndarray) -> np.ndarray | None:
    """Return which rows are not the common multiple of their weights; None where most are not."""
    squares = np.sum(W**2, axis=1)
    factors = np.sum(G * W, axis=1)[squares > 0] / squares[squares > 0]
    factor = np.median(factors)
    left = np.linalg.norm(G - factor * W, axis=1)
    is_token = left > SAME * abs(factor) * np.sqrt(squares)
    return is_token if factor != 0 and is_token.mean() < 0.5 else None


def _above_noise(G: np.ndarray) -> np.ndarray | None:
    """Return which rows are longer than white noise; None where the others do not have its lengths."""
    n_rows, n_features = G.shape
    squares = np.sum(G**2, axis=1)
    variance = np.median(squares) / chi2.median(n_features)
    middle = np.quantile(squares / variance, [0.1, 0.4])
    if n_rows < 50 or np.any(np.abs(middle / chi2.ppf([0.1, 0.4], n_features) - 1) > 0.1):
        return None
    return squares > variance * chi2.isf(BY_CHANCE / n_rows, n_features)

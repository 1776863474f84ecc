"""Updates of which a filter zeroed or clipped entries: gradients completed on what it left exact.

What cannot be completed is not used: units whose rows have too few entries left are taken out of their layer. Features
with too few are estimated, and their errors count; a layer of which they are most has no conclusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import nn

from sparsedl_fl.audit.completed_update import CompletedUpdate
from sparsedl_fl.layers.formats import rounding_noise
from sparsedl_fl.lowrank.completion import Completion, complete
from sparsedl_fl.lowrank.filter_traces import exact_entries
from sparsedl_fl.lowrank.open_columns import estimated_columns
from sparsedl_fl.tracing.naming import plain_parameters

__all__ = ["completed"]

FITS, ROUNDING = 1e-4, 1e-5
"""Distance of a bias gradient's exact entries from the column space, relative to them, up to which they lie in it; and
singular value over the largest that is rounding."""

MOST_ENTRIES = 2**24
"""Largest matrix that is completed: its fit holds some ten copies in double precision."""


def completed(
    model: nn.Module, gradients: Mapping[str, torch.Tensor | None], tables: Iterable[str] = ()
) -> CompletedUpdate:
    """Complete the gradients of linear layers, where a filter zeroed or clipped entries of one.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    gradients : mapping of str to torch.Tensor or None
        What the client sent, by plain name.
    tables : iterable of str, default=()
        Names of embeddings, whose rows of zeros say which tokens there are: they stay as they are.
    """
    parameters, tables = plain_parameters(model), set(tables)
    sent = {
        name: tensor
        for name, tensor in gradients.items()
        if tensor is not None and tensor.ndim == 2 and name in parameters and name not in tables and tensor.any()
    }
    exact = {name: _exact(tensor) for name, tensor in sent.items()}
    found = CompletedUpdate({name: tensor if name in tables else None for name, tensor in gradients.items()})
    shares, rank = [], None
    for name, entries in exact.items():
        if entries is None:
            continue
        matrix = _array(sent[name])
        shares.append(entries.mean())
        fit = complete(matrix, entries, rank)
        if fit is None:
            found.reasons[name] = (
                f"the update was filtered: {entries.mean():.0%} of the entries of {name!r} are as they were, too few "
                "to complete its gradient, or they fit no low rank"
            )
            continue
        rank = fit.rank
        _put(found, gradients, name, matrix, entries, fit)
    if not found.open_rows:
        return CompletedUpdate(dict(gradients))  # nothing proves that a filter made zeros and equal entries
    for name, tensor in sent.items():
        if exact[name] is None and tensor.numel() > MOST_ENTRIES:
            found.reasons[name] = f"the update was filtered, and the gradient of {name!r} is too large to complete it"
        elif exact[name] is None:
            matrix = _array(tensor)
            found.gradients[name] = tensor
            _put_bias(found.gradients, gradients, name, _column_space(matrix), np.asarray(matrix.any(axis=1)))
    what = f"{min(shares):.0%} to {max(shares):.0%}" if len(shares) > 1 else f"{shares[0]:.0%}"
    note = (
        f"the update was filtered: entries were zeroed or clipped, and {what} of a matrix are as they were; "
        f"{len(found.open_rows)} of {len(shares)} such matrices were completed from these, by their low rank"
    )
    return CompletedUpdate(**{**vars(found), "notes": (note,)})


def _exact(sent: torch.Tensor) -> np.ndarray | None:
    """Return the entries that a filter left exact, or None where no filter shows, or numbers are coarse."""
    if sent.numel() > MOST_ENTRIES:
        return None
    matrix = _array(sent)
    return None if rounding_noise(matrix) is not None else exact_entries(matrix)


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def _column_space(matrix: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the columns of a matrix above rounding."""
    U, S, _ = np.linalg.svd(matrix, full_matrices=False)
    return U[:, ROUNDING * S[0] < S]


def _put(
    found: CompletedUpdate,
    gradients: Mapping[str, torch.Tensor | None],
    name: str,
    matrix: np.ndarray,
    entries: np.ndarray,
    fit: Completion,
) -> None:
    """Put a completed matrix, and the bias gradient of its layer, where they belong."""
    filled = np.where(entries, matrix, fit.left @ fit.right)
    if fit.open_columns.any():
        found.estimates[name] = estimated_columns(fit, matrix, entries)
        filled[:, fit.open_columns] = fit.left @ found.estimates[name].means
    filled[fit.open_rows] = 0.0
    is_whole = not (fit.open_rows.any() or fit.open_columns.any())
    place = found.gradients if is_whole else found.partly
    place[name] = torch.from_numpy(filled)
    found.open_rows[name], found.open_columns[name] = fit.open_rows, fit.open_columns
    _put_bias(place, gradients, name, fit.left, ~fit.open_rows)


def _put_bias(
    place: dict[str, torch.Tensor | None],
    gradients: Mapping[str, torch.Tensor | None],
    name: str,
    left: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Put the bias gradient of a layer, as it was sent or completed, by ``g = D 1`` in the column space of ``left``."""
    bias = name.removesuffix("weight") + "bias"
    sent = gradients.get(bias)
    if sent is None or bias == name or sent.shape != rows.shape:
        return
    vector = _array(sent)
    moduli = np.abs(vector)
    for known in (rows, rows & (moduli > 0) & (moduli < (1 - 1e-6) * moduli.max())):
        if known.sum() <= left.shape[1]:
            return
        coefficients = np.linalg.lstsq(left[known], vector[known], rcond=None)[0]
        outside = np.linalg.norm(left[known] @ coefficients - vector[known])
        if outside <= FITS * np.linalg.norm(vector[known]):
            place[bias] = torch.from_numpy(np.where(known, vector, left @ coefficients))
            return

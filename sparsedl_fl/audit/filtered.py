"""Updates of which a filter zeroed or clipped entries: gradients completed on what it left exact.

What cannot be completed is not used: units whose rows have too few entries left are taken out of their layer. Features
with too few are estimated, and their errors count; a layer of which they are most has no conclusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from sparsedl_fl.layers.formats import rounding_noise
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.completion import Completion, complete
from sparsedl_fl.lowrank.filter_traces import exact_entries
from sparsedl_fl.lowrank.open_columns import Estimates, estimated_columns
from sparsedl_fl.tracing.naming import plain_parameters
from sparsedl_fl.tracing.uses import LinearUse

__all__ = ["FilteredUpdate", "completed"]

FITS, ROUNDING = 1e-4, 1e-5
"""Distance of a bias gradient's exact entries from the column space, relative to them, up to which they lie in it; and
singular value over the largest that is rounding."""

MOST_ESTIMATED = 0.5
"""Share of a layer's features that may be estimates: more of them would make up most of its inputs."""

MOST_ENTRIES = 2**24
"""Largest matrix that is completed: its fit holds some ten copies in double precision."""


@dataclass(frozen=True, eq=False)
class FilteredUpdate:
    """What a filter left of an update.

    Attributes
    ----------
    gradients : dict of str to torch.Tensor or None
        By plain name: completed, and None where that was not possible or not to the whole.
    partly : dict of str to torch.Tensor
        Those that are completed but for some rows or columns.
    open_rows, open_columns : dict of str to ndarray of bool
        These, by the weight's name.
    estimates : dict of str to Estimates
        Of the open columns, by the weight's name.
    reasons : dict of str to str
        Why a matrix was not completed, by its name.
    notes : tuple of str
        What was done, in sentences.
    doubt : str
        Why a layer that gives nothing has not resisted; empty where it may have.
    """

    gradients: dict[str, torch.Tensor | None]
    partly: dict[str, torch.Tensor] = field(default_factory=dict)
    open_rows: dict[str, np.ndarray] = field(default_factory=dict)
    open_columns: dict[str, np.ndarray] = field(default_factory=dict)
    estimates: dict[str, Estimates] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    doubt: str = ""

    @property
    def sent(self) -> dict[str, torch.Tensor | None]:
        """All gradients, completed to the whole or in part."""
        return self.gradients | self.partly

    @property
    def is_filtered(self) -> bool:
        """Whether a filter was found at work."""
        return bool(self.notes)

    def tensors_of(self, use: LinearUse) -> dict[str, torch.Tensor | None]:
        """Return the gradients that a layer's attack may use; raises ``ValueError`` where its own is not completed."""
        if use.weight in self.reasons:
            raise ValueError(self.reasons[use.weight])
        _, columns = self._open(use.weight, use.is_transposed)
        is_estimated = use.weight in self.estimates and not use.is_transposed
        if columns is not None and np.mean(columns) > (MOST_ESTIMATED if is_estimated else 0):
            raise ValueError(
                f"the update was filtered, and {int(columns.sum())} of {len(columns)} features of the layer have too "
                "few entries left in its gradient to complete it"
            )
        own = {name: self.partly[name] for name in (use.weight, use.bias, use.next_weight) if name in self.partly}
        return self.gradients | own

    def without_open_units(self, given: LayerGradient, use: LinearUse) -> LayerGradient:
        """Return a layer without the units of which its own gradient or the next layer's has too few entries.

        Then the next layer's gradient is all that is used of the downstream network: it would need all units.
        """
        own, _ = self._open(use.weight, use.is_transposed)
        next_rows, next_columns = self._open(use.next_weight, use.next_is_transposed)
        is_open = np.zeros(given.shape[0], dtype=bool)
        for part in (own, next_columns):
            is_open |= False if part is None else part
        if not is_open.any() and (next_rows is None or not next_rows.any()):
            return given
        kept, following = ~is_open, given.next_layer
        has_weight = following.weight is not None and (next_rows is None or not next_rows.any())
        return LayerGradient(
            weight=given.weight[kept],
            bias=given.bias[kept],
            weight_grad=given.weight_grad[kept],
            bias_grad=given.bias_grad[kept],
            next_weight_grad=None if following.weight_grad is None else following.weight_grad[:, kept],
            next_weight=following.weight[:, kept] if has_weight and following.weight_grad is not None else None,
            learning_rate=given.learning_rate,
            activation=given.activation,
            rows_per_sample=given.rows_per_sample,
        )

    def estimates_of(self, use: LinearUse) -> Estimates | None:
        """Return the estimates of a layer's features that have too few entries left; None where all have enough."""
        return self.estimates.get(use.weight)

    def _open(self, name: str, is_transposed: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
        parts = self.open_rows.get(name), self.open_columns.get(name)
        return parts[::-1] if is_transposed else parts


def completed(
    model: nn.Module, gradients: Mapping[str, torch.Tensor | None], tables: Iterable[str] = ()
) -> FilteredUpdate:
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
    found = FilteredUpdate({name: tensor if name in tables else None for name, tensor in gradients.items()})
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
        return FilteredUpdate(dict(gradients))  # nothing proves that a filter made zeros and equal entries
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
    return FilteredUpdate(**{**vars(found), "notes": (note,)})


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
    found: FilteredUpdate,
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

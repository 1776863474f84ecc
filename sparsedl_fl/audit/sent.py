"""What a client sent, as an audit uses it: by name, finite, in range, without penalties, and completed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sparsedl_fl.audit.adapted import with_full_gradients
from sparsedl_fl.audit.completed_update import CompletedUpdate
from sparsedl_fl.audit.filtered import completed
from sparsedl_fl.audit.suspicions import check_is_update, rounding_noted, without_penalties
from sparsedl_fl.tracing.adapters import merge_adapters
from sparsedl_fl.tracing.embeddings import token_tables
from sparsedl_fl.tracing.finite import in_range, without_non_finite
from sparsedl_fl.tracing.naming import named_gradients, plain_parameters
from sparsedl_fl.tracing.tracing import Trace, trace_model

__all__ = ["SentUpdate", "read_update"]


@dataclass(frozen=True, eq=False)
class SentUpdate:
    """A model and an update of it, ready to be attacked.

    Attributes
    ----------
    tensors : dict of str to torch.Tensor or None
        What the client sent, by plain name.
    model : torch.nn.Module
        The model, with its adapters merged into their layers.
    trace : Trace
        What a run of it showed.
    tables : tuple of str
        Parameters whose rows the model's input ids pick.
    update : CompletedUpdate
        The gradients, times ``factor``.
    factor : float
        A power of two.
    notes : tuple of str
        What was subtracted or worked out, and which noise there is, in sentences.
    is_plain : bool
        Whether the gradients are those that were sent.
    """

    tensors: Mapping[str, torch.Tensor | None]
    model: nn.Module
    trace: Trace
    tables: tuple[str, ...]
    update: CompletedUpdate
    factor: float
    notes: tuple[str, ...]
    is_plain: bool

    @property
    def names(self) -> list[str]:
        """Names of the parameters whose gradients are known, or were sent in a way that leaves them open."""
        known = {name for name, tensor in self.update.sent.items() if tensor is not None}
        return [name for name in plain_parameters(self.model) if name in known or name in self.update.reasons]


def read_update(
    model: nn.Module,
    gradients: Any,
    example: torch.Tensor | None = None,
    batch_size: int | None = None,
    *,
    is_one_step: bool = True,
) -> SentUpdate:
    """Read an update; raises ``ValueError`` or ``TypeError`` where it does not belong to the model.

    Parameters
    ----------
    model, gradients, example
        As of `sparsedl_fl.audit.audit_model`.
    batch_size : int or None, default=None
        Records of the batch, where it is known.
    is_one_step : bool, default=True
        Whether the gradients are those of one step.
    """
    seen = gradients if isinstance(gradients, CompletedUpdate) else None
    named = without_non_finite(named_gradients(model, seen.sent if seen else gradients), stacklevel=6)
    check_is_update(model, named)
    scaled, factor = in_range(named)
    cleaned, penalties = (scaled, ()) if seen else without_penalties(model, scaled)
    sent = [name for name, tensor in named.items() if tensor is not None and tensor.any()]
    merged, adapters = (model, ()) if seen else merge_adapters(model, sent)
    trace = trace_model(merged, example)
    tables = token_tables(merged, trace.example if example is None else example)
    if seen:
        update = seen
    elif adapters:
        given = plain_parameters(model), cleaned, trace, batch_size
        update = with_full_gradients(adapters, *given, is_one_step=is_one_step)
    else:
        update = completed(model, cleaned, tables)
    _without_frozen_biases(update.gradients, trace)
    notes = penalties + update.notes + rounding_noted(model, named)
    return SentUpdate(named, merged, trace, tables, update, factor, notes, not (penalties or update.notes))


def _without_frozen_biases(gradients: dict[str, torch.Tensor | None], trace: Trace) -> None:
    """Count a bias gradient of zeros beside a weight gradient as not sent: frozen, or zeroed by a filter."""
    for use in trace.layers:
        weight, bias = gradients.get(use.weight), gradients.get(use.bias)
        if weight is not None and bias is not None and weight.any() and not bias.any():
            gradients[use.bias] = None

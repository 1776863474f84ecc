"""Updates that no attack of ours applies to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sparsedl_fl.audit.context import describe_run
from sparsedl_fl.audit.result import AuditResult, LayerAudit
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.audit.token_ids import embedded_tokens
from sparsedl_fl.models import inspect_model
from sparsedl_fl.tracing.embeddings import token_tables
from sparsedl_fl.tracing.tracing import trace_model

__all__ = ["out_of_range"]


def out_of_range(
    model: nn.Module,
    reason: str,
    example: torch.Tensor | None = None,
    *,
    gradients: Mapping[str, torch.Tensor] | None = None,
    **told: Any,
) -> AuditResult:
    """Return the result for an update that no search of ours applies to, with the reason; token ids it may still show.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    reason : str
        Why not.
    example : torch.Tensor or None, default=None
        As of `audit_model`.
    gradients : mapping of str to torch.Tensor or None, default=None
        What the client sent, by plain name: any optimiser leaves the rows of an embedding alone that no token touches.
    **told
        What else the report says of the run.
    """
    trace = trace_model(model, example)
    rows = {row.name: row for row in inspect_model(model, trace=trace)}
    tables = token_tables(model, trace.example if example is None else example)
    found = embedded_tokens(Subject(model, gradients or {}, trace, tables=tables), rows)
    layers = tuple(
        found.get(row.name) or LayerAudit(row.name, None, row.obstacle or reason, row, why_open=row.obstacle or reason)
        for row in rows.values()
    )
    return AuditResult(layers, None, reason, context=describe_run(model, gradients or {}, 0.0, attack="none", **told))

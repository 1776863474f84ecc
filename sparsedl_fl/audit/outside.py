"""Updates that no attack of ours applies to."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sparsedl_fl.audit.context import describe_run
from sparsedl_fl.audit.result import AuditResult, LayerAudit
from sparsedl_fl.models import inspect_model

__all__ = ["out_of_range"]


def out_of_range(model: nn.Module, reason: str, example: torch.Tensor | None = None, **told: Any) -> AuditResult:
    """Return the result for an update that no attack of ours applies to, with the reason.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    reason : str
        Why not.
    example : torch.Tensor or None, default=None
        As of `audit_model`.
    **told
        What else the report says of the run.
    """
    layers = tuple(LayerAudit(row.name, None, row.obstacle or reason, row) for row in inspect_model(model, example))
    return AuditResult(layers, None, reason, context=describe_run(model, {}, 0.0, attack="none", **told))

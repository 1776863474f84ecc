"""Targets that are numbers, or several labels at a time: what the last layer's gradient says once its inputs are known.

With ``G = D X^T`` and ``X`` known, ``D`` follows by least squares, and behind squared errors ``D = s (z - y)``, behind
binary cross-entropy ``D = s (sigmoid(z) - y)``. The client is run again with what comes out, which nothing else fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sparsedl_fl.audit.findings import LayerAudit
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.tracing.naming import plain_parameters

__all__ = ["targets_of"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

BY_NAME: dict[str, Loss] = {
    "mse": functional.mse_loss,
    "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
}

SAME = 1e-6
"""Distance of a loss's gradient from either family, relative to it, up to which it is of that family."""

REPLAYED = 1e-3
"""Deviation of each tensor of the gradient, relative to it, up to which the client run again returns it."""


def targets_of(subject: Subject, best: LayerAudit | None, loss: Any) -> np.ndarray | None:
    """Return the target of each input of a layer whose whole batch is known, of shape (b, n_outputs).

    Parameters
    ----------
    subject : Subject
        What is audited.
    best : LayerAudit or None
        The layer that gives most away.
    loss : str, callable or None
        As the caller gave it; ``loss(outputs, targets)`` of two tensors of one shape.

    Returns
    -------
    ndarray or None
        None where the loss is of another kind, not all is known, or the client run again does not return the gradient.
    """
    loss = BY_NAME.get(loss) if isinstance(loss, str) else loss
    last = subject.trace.last
    if not callable(loss) or subject.learning_rate is not None or last is None or last.rows != 1:
        return None
    if best is None or not best.n_certified or not best.batch.is_whole or subject.gradients.get(last.weight) is None:
        return None
    try:
        return _targets(subject, best, loss, last)
    except Exception:  # a model and a loss may raise anything on what they were not made for
        return None


def _targets(subject: Subject, best: LayerAudit, loss: Loss, last: Any) -> np.ndarray | None:
    run = subject.run_from(best.name)
    fed = run.fed(best.batch.inputs).get(last.name)
    if fed is None or np.linalg.matrix_rank(fed) < len(fed):
        return None
    gradient = subject.gradients[last.weight].detach().cpu().double()
    columns = torch.from_numpy(np.linalg.pinv(fed)).T @ (gradient if last.is_transposed else gradient.T)
    with torch.no_grad():
        outputs = run(best.batch.inputs)
    for value in (lambda z: z, torch.sigmoid):
        scale = _scale(loss, outputs, value)
        if scale is not None:
            targets = value(outputs) - columns / scale
            return targets.numpy() if _is_replayed(subject, run, best, loss, targets) else None
    return None


def _scale(loss: Loss, outputs: torch.Tensor, value: Callable[[torch.Tensor], torch.Tensor]) -> float | None:
    """Return ``s`` with ``dL/dz = s (value(z) - y)`` for any targets, or None."""
    targets = torch.rand(outputs.shape, generator=torch.Generator().manual_seed(0), dtype=outputs.dtype)
    z = outputs.clone().requires_grad_()
    with torch.enable_grad():
        (found,) = torch.autograd.grad(loss(z, targets), z)
    expected = value(outputs) - targets
    scale = float((found * expected).sum() / expected.square().sum())
    return scale if scale and (found - scale * expected).norm() <= SAME * found.norm() else None


def _is_replayed(subject: Subject, run: Any, best: LayerAudit, loss: Loss, targets: torch.Tensor) -> bool:
    """Return whether the client, run again, returns every tensor that it sent."""
    parameters = plain_parameters(run.model)
    with torch.enable_grad():
        total = loss(run(best.batch.inputs), targets)
        returned = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    pairs = [
        (tensor, subject.gradients[name].detach().cpu().double())
        for name, tensor in zip(parameters, returned, strict=True)
        if tensor is not None and subject.gradients.get(name) is not None
    ]
    return bool(pairs) and all((mine - sent).norm() <= REPLAYED * sent.norm() for mine, sent in pairs)

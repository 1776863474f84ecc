"""What the last layer's gradient says: labels by the signs of its bias gradient, and targets that are numbers.

With softmax and cross-entropy the gradient of the bias is ``g_k = mean_i (p_ik - y_ik)``: only a label of the batch
makes an entry negative. Every ``p`` is positive, so that label ``k`` occurs at least ``-b g_k`` times.

Targets that are numbers, or several labels at a time, follow once the inputs ``X`` of the last layer are known. ``D``
follows from ``G = D X^T`` by least squares, and is ``s (z - y)`` for squared errors and ``s (sigmoid(z) - y)`` for
binary cross-entropy. A replay of the client with these targets checks them.

References
----------
Zhao, Mopuri and Bilen, "iDLG: Improved deep leakage from gradients", 2020; Yin et al., "See through gradients", CVPR
2021, for batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sparsedl_fl.audit.findings import LayerAudit
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.propagate.replay import Replay
from sparsedl_fl.tracing.naming import plain_parameters

__all__ = ["LabelSigns", "signs_of", "targets_of"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

BY_NAME: dict[str, Loss] = {
    "mse": functional.mse_loss,
    "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
}

SAME = 1e-6
"""Distance of a loss's gradient from either family, relative to it, up to which it is of that family."""

REPLAYED = 1e-3
"""Deviation of each tensor of the replayed gradient, relative to it, up to which it is the one sent."""

ROUNDING = 1e-6
"""Share of the largest entry that may be rounding of single precision."""

EXACT = 1e-5
"""Share of all entries that their sum may be: without noise they add up to zero."""

DEVIATIONS = 20.0
"""Standard deviations of the noise that an entry has to be below zero. The noise is estimated by the sum of the
entries, which is too small by a factor of four in one of twenty cases; so nothing is certain under noise."""


@dataclass(frozen=True)
class LabelSigns:
    """What the signs say.

    Attributes
    ----------
    present : mapping of int to (int or None)
        Labels that the batch holds, with their counts where these follow for certain.
    estimated : mapping of int to int
        Likely counts, where the batch size is known; they assume that the probabilities ``p`` of all labels are alike.
    is_certain : bool
        Whether the loss is known to be cross-entropy on hard labels, and the update one step without noise.
    condition : str
        The assumptions, in words; empty where no label shows.
    """

    present: Mapping[int, int | None] = field(default_factory=dict)
    estimated: Mapping[int, int] = field(default_factory=dict)
    is_certain: bool = False
    condition: str = ""

    @classmethod
    def of(cls, bias_grad: np.ndarray, batch_size: int | None, doubts: list[str]) -> LabelSigns:
        """Read labels from the signs of a bias gradient.

        Parameters
        ----------
        bias_grad : ndarray of shape (n_labels,)
            Gradient of the bias of the model's last layer; a single entry is one logit of labels 0 and 1.
        batch_size : int or None
            Samples of the batch, where they are known; then the loss counts as their mean.
        doubts : list of str
            What is not known of the client, each as "if ..."; without any, the labels are certain.
        """
        gradient = np.asarray(bias_grad, dtype=np.float64)
        size = np.abs(gradient).max(initial=0.0)
        if size == 0:
            return cls()
        condition = ", ".join(doubts) if doubts else "certain: one step of cross-entropy on hard labels"
        if len(gradient) == 1:
            return cls({int(gradient[0] < 0): None}, {}, not doubts, condition)
        if abs(gradient.sum()) > EXACT * np.abs(gradient).sum():
            doubts = [*doubts, "if noise is small against it"]
            condition = ", ".join(doubts)
        noise = abs(gradient.sum()) / np.sqrt(len(gradient))
        below = gradient < -max(ROUNDING * size, DEVIATIONS * noise)
        found: dict[int, int | None] = dict.fromkeys(np.flatnonzero(below).tolist())
        if not found or batch_size is None:
            return cls(found, {}, bool(found) and not doubts, condition if found else "")
        least = np.ceil(-batch_size * gradient[below] - 1e-3)
        if least.sum() == batch_size:
            found = dict(zip(found, least.astype(int).tolist(), strict=True))
        return cls(found, _estimated(gradient, batch_size), not doubts, condition)


def signs_of(subject: Subject, batch_size: int | None, replayed: Replay | None, is_exact: bool) -> LabelSigns:
    """Read labels from the gradient of a model's last layer.

    Parameters
    ----------
    subject : Subject
        What is audited.
    batch_size : int or None
        Samples of the batch, where they are known.
    replayed : Replay or None
        A replay that matches confirms the loss.
    is_exact : bool
        Whether the update is the gradient of a loss as far as known: no noise, no penalty.
    """
    last = subject.trace.last
    gradient = None if last is None else subject.gradients.get(last.bias)
    if gradient is None or last.rows != 1 or subject.loss not in (None, "cross_entropy", "binary_cross_entropy"):
        return LabelSigns()
    if subject.loss == "binary_cross_entropy" and len(gradient) > 1:
        return LabelSigns()  # of several labels at a time
    if subject.loss is None and subject.given_loss is not None:
        return LabelSigns()  # one that takes no labels
    fits = replayed is not None and replayed.is_match
    doubts = []
    if subject.loss is None and not fits:
        doubts.append("if the loss is cross-entropy on hard labels")
    if subject.learning_rate is not None:
        doubts.append("if the local steps are plain gradient descent")
    if not is_exact and not fits:
        doubts.append("if noise and penalties are small")
    return LabelSigns.of(gradient.detach().cpu().double().numpy(), batch_size, doubts)


def _estimated(gradient: np.ndarray, batch_size: int) -> dict[int, int]:
    """Return likely counts: probabilities add up to the batch size, and are at least what makes no count negative."""
    probabilities = np.maximum(0.0, batch_size * gradient)
    probabilities += max(0.0, batch_size - probabilities.sum()) / len(gradient)
    counts = np.maximum(0.0, probabilities - batch_size * gradient)
    whole = np.floor(counts).astype(int)
    missing = max(0, batch_size - int(whole.sum()))
    whole[np.argsort(whole - counts)[:missing]] += 1
    return {int(label): int(count) for label, count in enumerate(whole) if count}


def targets_of(subject: Subject, best: LayerAudit | None) -> np.ndarray | None:
    """Return the target of each input of a layer whose whole batch is known, of shape (b, n_outputs).

    Parameters
    ----------
    subject : Subject
        What is audited.
    best : LayerAudit or None
        The layer that leaks most.

    Returns
    -------
    ndarray or None
        None where the loss is of another kind, the batch is not whole, or the replay does not return the gradient.
    """
    loss = BY_NAME.get(subject.given_loss) if isinstance(subject.given_loss, str) else subject.given_loss
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
    """Return whether the replayed client returns every tensor that it sent."""
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

"""Run the client again with the sentences that were found, and compare every tensor of its gradient.

The last layer's gradient and its features say by how much the loss, whatever it is, changes with the outputs of each
sentence; run back from there, the model has to return every other tensor of the client's gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedl_fl.audit.text.finding import Sentence
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.layers.losses import total_loss
from sparsedl_fl.propagate.replay import Replay
from sparsedl_fl.tracing.fed_inputs import fed_layers
from sparsedl_fl.tracing.naming import plain_parameters, unwrapped
from sparsedl_fl.tracing.uses import LinearUse

__all__ = ["replay_sentences"]

SINGLE, HALF, TIMES = 1e-5, 0.1, 10.0
"""Deviation of a tensor up to which it counts as the same, in single (at least) and in half precision: as of other
replays; and over the largest deviation that the client's precision makes here."""


class _NotReplayed(Exception):  # noqa: N818
    """The client cannot be run again; the message says why."""


def replay_sentences(
    model: nn.Module,
    exact: nn.Module,
    gradients: Mapping[str, torch.Tensor],
    sentences: Sequence[Sentence],
    tables: Collection[str],
    loss: Any,
    is_coarse: bool,
) -> tuple[Replay | None, str, list[Sentence]]:
    """Return the replay, why there is none, and the sentences with labels that the last layer's gradient shows.

    Parameters
    ----------
    model, exact : torch.nn.Module
        The model, and a copy in double precision.
    gradients : mapping of str to torch.Tensor
        What the client sent, by plain name.
    sentences : sequence of Sentence
        All sentences of the batch.
    tables : collection of str
        Names of embeddings, which the last layer must not share.
    loss : str, callable or None
        Of the client; labels follow where it is cross-entropy, which None stands for.
    is_coarse : bool
        Whether the gradients are in half precision or coarser.
    """
    try:
        ids = [torch.tensor([one.tokens]) for one in sentences]
        head = _last_layer(exact, ids[0])
        if head.weight in tables:
            raise _NotReplayed("the last layer shares its weight with the embedding")
        G = _head_gradient(head, gradients)
        features = torch.cat([fed_layers(exact, one, [head.weight])[0].rows for one in ids])
        if features.shape[0] != len(ids) or len(ids) >= features.shape[1]:
            raise _NotReplayed("the last layer has no row for each sentence, or too few features for them")
        with torch.no_grad():
            outputs = torch.cat([exact(one) for one in ids])
        columns = torch.linalg.lstsq(features.T, G.T).solution  # (n_sentences, n_outputs)
        totals = _run_back(exact, ids, columns, head.weight)
        own = _run_back(deepcopy(unwrapped(model)).cpu().eval().requires_grad_(True), ids, columns, head.weight)
    except _NotReplayed as why:
        return None, str(why), list(sentences)
    except Exception as error:  # a model may raise anything
        return None, f"the model could not be run on a sentence: {error}", list(sentences)
    known, weights = _labels(outputs, columns, loss, HALF if is_coarse else np.sqrt(SINGLE))
    deviations, rounding = _deviations(totals, gradients), max(_deviations(totals, own).values(), default=0.0)
    tolerance = HALF if is_coarse else min(max(SINGLE, TIMES * rounding), HALF)
    found = Replay(deviations, tolerance, weights, np.full(len(weights), np.inf))
    if not found.is_match:
        return found, "", list(sentences)
    return found, "", [replace(one, label=label) for one, label in zip(sentences, known, strict=True)]


def _labels(outputs: torch.Tensor, columns: torch.Tensor, loss: Any, most: float) -> tuple[list[int], np.ndarray]:
    """Return the label for which cross-entropy has each column, and each sentence's share of the loss.

    `NO_LABEL`, and NaN, where none has: the loss is another, or equal texts have several labels.
    """
    labels, weights = [], []
    for z, column in zip(outputs, columns, strict=True):
        label = (column[:1] < 0).long() if len(column) == 1 else column.argmin(dim=0, keepdim=True)
        alone = _by_outputs(z[None], label)[0]
        weight = (column @ alone) / alone.square().sum().clamp(min=np.finfo(float).tiny)
        is_so = loss in (None, "cross_entropy", "binary_cross_entropy") and bool(
            (column - weight * alone).norm() <= most * column.norm()
        )
        labels.append(int(label) if is_so else NO_LABEL)
        weights.append(float(weight) if is_so else np.nan)
    return labels, np.array(weights)


def _last_layer(exact: nn.Module, ids: torch.Tensor) -> LinearUse:
    """Return the linear layer whose outputs are the model's, a row for each sentence."""
    with torch.no_grad():
        outputs = exact(ids)
    if isinstance(outputs, torch.Tensor) and outputs.ndim == 2 and len(outputs) == len(ids):
        parameters = plain_parameters(exact)
        for group in reversed(fed_layers(exact, ids)):
            for use in group.uses:
                W, bias = parameters[use.weight].detach(), parameters.get(use.bias, torch.zeros(())).detach()
                found = group.rows @ (W if use.is_transposed else W.T) + bias
                if found.shape == outputs.shape and torch.allclose(found, outputs):
                    return use
    raise _NotReplayed("the model's outputs are no row of numbers for each text, from a linear layer")


def _head_gradient(head: LinearUse, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if gradients.get(head.weight) is None:
        raise _NotReplayed(f"the gradient of the last layer {head.name!r} was not sent")
    G = gradients[head.weight].detach().cpu().double()
    return G.T if head.is_transposed else G


def _by_outputs(outputs: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        z = outputs.detach().clone().requires_grad_()
        return torch.autograd.grad(total_loss(None, z, label), z)[0]


def _run_back(
    model: nn.Module, ids: Sequence[torch.Tensor], columns: torch.Tensor, without: str
) -> dict[str, torch.Tensor]:
    """Return the gradient of a model, by plain name.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    ids : sequence of torch.Tensor of shape (1, length)
        The sentences.
    columns : torch.Tensor of shape (n_sentences, n_outputs)
        Gradient of the client's loss, whatever it is, at the outputs of each.
    without : str
        Name of the tensor that the columns come from.
    """
    parameters = plain_parameters(model)
    totals: dict[str, torch.Tensor] = {}
    with torch.enable_grad():
        for one, column in zip(ids, columns, strict=True):
            outputs = model(one)[0]
            found = torch.autograd.grad(
                (outputs * column.to(outputs)).sum(), list(parameters.values()), allow_unused=True
            )
            for name, tensor in zip(parameters, found, strict=True):
                if tensor is not None and name != without:
                    totals[name] = totals.get(name, 0) + tensor.double()
    return totals


def _deviations(totals: dict[str, torch.Tensor], gradients: Mapping[str, torch.Tensor | None]) -> dict[str, float]:
    """Return by how much each tensor of a gradient differs from one sent, relative to it."""
    largest = max((float(tensor.norm()) for tensor in totals.values()), default=0.0)
    deviations = {}
    for name, tensor in totals.items():
        sent = gradients.get(name)
        if sent is not None:
            sent = sent.detach().cpu().double()
            # The gradient of the keys' bias is zero but for rounding: it has no size of its own.
            size = max(float(sent.norm()), float(np.finfo(np.float32).eps) ** 0.5 * largest) or 1.0
            deviations[name] = float((tensor - sent).norm()) / size
    return deviations

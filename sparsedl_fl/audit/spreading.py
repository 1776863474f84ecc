"""From a layer whose whole batch is known to the others: backward to the input, and forward to the loss.

The client is replayed with what was recovered, and certificates that the replay contradicts are withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch

from sparsedl_fl.audit.findings import FED_THE_INPUT, LayerAudit
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.certify.labels import NO_LABEL, labels_of_columns
from sparsedl_fl.propagate.backward import KnownBatch, propagate_back, sums_before
from sparsedl_fl.propagate.checks import sizes_of
from sparsedl_fl.propagate.draws import drawn_inputs
from sparsedl_fl.propagate.forward import columns_of_inputs, is_contradicted, propagate_forward, sums_at
from sparsedl_fl.propagate.replay import Replay, replay
from sparsedl_fl.tracing.tracing import LinearUse

__all__ = ["replay_found", "spread"]

Fed = dict[str, np.ndarray]
"""Inputs of each layer, by its name."""


def spread(subject: Subject, name: str, known: KnownBatch) -> Iterator[tuple[str, KnownBatch, str]]:
    """Yield the name, the batch and how it was found, of every layer that is reached and whose gradient confirms it.

    The layer itself comes first, with the labels that the last layer's gradient shows, and no text.
    """
    use = subject.trace.use_of(name)
    try:
        run = subject.run_from(name)
        fed, drawn = run.fed(known.inputs), [run.fed(inputs) for inputs in drawn_inputs(known)]
    except Exception:  # a model may raise anything; then nothing follows
        fed, drawn = {}, []
    known = _labelled(subject, known, fed, drawn)
    yield name, known, ""
    if subject.trace.n_uses(name) > 1:  # it is not known in which run of the layer an input occurs
        return
    is_scale_searched = name in subject.sums
    yield from _forward(subject, name, known, fed, drawn)
    while use is not None:
        before = _fed_from(subject, use)
        if before is None:
            return
        try:
            weight, sums = subject.layer_gradient(use.name).weight, None
            if subject.lacks_bias_gradient(before) and before.activation is not None:
                sums = torch.from_numpy(sums_before(known, weight, before.activation))
            found = propagate_back(known, weight, subject.layer_gradient(before.name, sums))
            known = _with_errors_of_scales(found, known) if is_scale_searched else found
        except ValueError:
            return
        if not known.is_whole:
            return
        if sums is not None:
            subject.sums[before.name] = sums
        yield before.name, known, f"backward from layer '{use.name}'"
        use = before


def _with_errors_of_scales(found: KnownBatch, known: KnownBatch) -> KnownBatch:
    """Return a batch that follows from a known one with what the latter's scales may be off by, which it shares."""
    inherited = known.errors / sizes_of(known.inputs) * sizes_of(found.inputs)
    return replace(found, errors=np.hypot(found.errors, inherited))


def _labelled(subject: Subject, known: KnownBatch, fed: Fed, drawn: list[Fed]) -> KnownBatch:
    """Return the batch of a layer with the labels that the last layer's gradient shows.

    The last layer's inputs are known, so that the gradient at its outputs follows by least squares, without a search,
    for fewer inputs than the layer has features.
    """
    last = subject.trace.last
    if last is None or last.name not in fed or (known.labels != NO_LABEL).all():
        return known
    try:
        layer, rows = subject.layer_gradient(last.name), fed[last.name]
        if layer.tail.rest is None or len(rows) >= rows.shape[1]:
            return known
        columns = columns_of_inputs(layer, rows, [one[last.name] for one in drawn])
        labels = labels_of_columns(layer.tail.rest, layer.preactivations(rows), *columns)
    except Exception:  # a model may raise anything; then no labels follow
        return known
    return replace(known, labels=np.where(known.labels == NO_LABEL, labels, known.labels))


def _fed_from(subject: Subject, use: LinearUse) -> LinearUse | None:
    """Return the layer whose activations are the inputs of a layer, where the trace shows it."""
    found = (other for other in subject.trace.layers if other.next_weight and other.next_weight == use.weight)
    before = next(found, None)
    is_alone = before is not None and subject.trace.n_uses(before.name) == 1 and before.rows == use.rows == 1
    return before if is_alone else None


def _forward(
    subject: Subject, start: str, known: KnownBatch, fed: Fed, drawn: list[Fed]
) -> Iterator[tuple[str, KnownBatch, str]]:
    """Yield the downstream layers, with batches from running the model on the inputs and on draws of their errors."""
    for name, rows in fed.items():
        found = subject.trace.use_of(name)
        if name == start or found is None or found.rows != 1 or subject.trace.n_uses(name) != 1:
            continue
        of_draws = np.stack([one[name] for one in drawn])
        try:
            sums = None
            if subject.lacks_bias_gradient(found):
                errors = np.sqrt(np.mean((of_draws - rows) ** 2, axis=(0, 2))) / sizes_of(rows)
                sums = torch.from_numpy(sums_at(rows, subject.weight_gradient(found).numpy(), errors))
            layer = subject.layer_gradient(name, sums)
        except ValueError:
            continue
        batch = propagate_forward(known, rows, of_draws, layer)
        if batch.is_whole:
            if sums is not None:
                subject.sums[name] = sums
            yield name, batch, f"forward from layer '{start}'"


def replay_found(subject: Subject, found: Iterable[LayerAudit]) -> tuple[Replay | None, str, list[LayerAudit]]:
    """Replay the client from a layer whose whole batch is known, the nearest to the input whose replay matches.

    A unit may be active by less than the error of its pre-activation: then a later layer, which is more exact, matches.

    Parameters
    ----------
    subject : Subject
        What is audited.
    found : iterable of LayerAudit
        What was recovered so far.

    Returns
    -------
    done : Replay or None
        The replay that fits best.
    why_not : str
        Why there is none.
    contradicted : list of LayerAudit
        Layers before the replayed one whose certified inputs the model turns into other inputs than its; none of them
        is certified any more.
    """
    order = list(dict.fromkeys(use.name for use in subject.trace.layers))
    found = [layer for layer in found if layer.n_certified and layer.name in order]
    whole = sorted(
        (layer for layer in found if layer.batch.is_whole),
        key=lambda layer: (layer.row.feeds != FED_THE_INPUT, order.index(layer.name)),
    )
    noise = max((layer.inverter.relative_residual_ for layer in whole if layer.inverter is not None), default=0.0)
    done, why_not = None, ""
    for layer in whole:
        try:
            here = replay(subject.run_from(layer.name), layer.batch, subject.gradients, loss=subject.loss, noise=noise)
        except Exception as error:  # a model may raise anything on inputs that it was not given before
            why_not = why_not or str(error)
            continue
        if done is None or here.n_matching > done.n_matching:
            done = replace(here, start=layer.name)
        if done.is_match:
            before = [name for name in order[: order.index(layer.name)] if subject.trace.n_uses(name) == 1]
            in_front = [other for name in reversed(before) for other in found if other.name == name]
            return done, "", _contradicted(subject, layer, in_front)
    return done, "" if done else why_not or "no layer's whole batch was recovered", []


def _contradicted(subject: Subject, replayed: LayerAudit, before: list[LayerAudit]) -> list[LayerAudit]:
    """Return the layers before a replayed one whose certified inputs do not lead to its inputs.

    Each, from the last to the first, is compared with the next layer that is whole and not contradicted: dropout
    between two layers shows there, and not further downstream.
    """
    found, later = [], replayed
    for layer in before:
        try:
            fed = subject.run_from(layer.name).fed(layer.batch.inputs[layer.batch.certified])
        except Exception:  # a layer that is fed tokens, or whatever a model raises: it is not contradicted
            continue
        if later.name in fed and is_contradicted(fed[later.name], later.batch.inputs):
            reason = (
                f"contradicted by layer '{later.name}': the model turns these inputs into others than those "
                f"with which the replay returns the client's gradient; {layer.reason}"
            )
            nothing = {"certified": np.zeros(layer.n_inputs, dtype=bool), "labels": np.full(layer.n_inputs, NO_LABEL)}
            found.append(replace(layer, batch=replace(layer.batch, **nothing), reason=reason, why_open=reason))
        elif layer.batch.is_whole:
            later = layer
    return found

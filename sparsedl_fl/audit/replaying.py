"""Run the client again from what an audit has found, and take back what that contradicts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from sparsedl_fl.audit.findings import FED_THE_INPUT, LayerAudit
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.propagate.forward import is_contradicted
from sparsedl_fl.propagate.replay import Replay, replay

__all__ = ["replay_found"]

NOTHING_WHOLE = "no layer's whole batch came back"


def replay_found(subject: Subject, found: Iterable[LayerAudit]) -> tuple[Replay | None, str, list[LayerAudit]]:
    """Run the client again from a layer whose whole batch is known: nearest to the input, or as far as it fits.

    A unit may be on by less than the error of its pre-activation: then a layer behind tells, which is more exact.

    Parameters
    ----------
    subject : Subject
        What is audited.
    found : iterable of LayerAudit
        What came back so far.

    Returns
    -------
    done : Replay or None
        The replay that fits best.
    why_not : str
        Why there is none.
    contradicted : list of LayerAudit
        Layers in front of the one that replays the client, whose certified inputs the model turns into something else;
        nothing of them is certified any more.
    """
    order = list(dict.fromkeys(use.name for use in subject.trace.layers))
    found = [layer for layer in found if layer.n_certified and layer.name in order]
    whole = sorted(
        (layer for layer in found if layer.batch.is_whole),
        key=lambda layer: (layer.row.feeds != FED_THE_INPUT, order.index(layer.name)),
    )
    noise = max((layer.inverter.relative_residual_ for layer in whole if layer.inverter is not None), default=0.0)
    done, why_not = None, NOTHING_WHOLE
    for layer in whole:
        try:
            here = replay(subject.run_from(layer.name), layer.batch, subject.gradients, loss=subject.loss, noise=noise)
        except Exception as error:  # a model may raise anything on inputs that it was not given before
            why_not = str(error) if why_not == NOTHING_WHOLE else why_not
            continue
        if done is None or here.n_matching > done.n_matching:
            done = replace(here, start=layer.name)
        if done.is_match:
            before = [name for name in order[: order.index(layer.name)] if subject.trace.n_uses(name) == 1]
            in_front = [other for name in reversed(before) for other in found if other.name == name]
            return done, "", _contradicted(subject, layer, in_front)
    return done, "" if done else why_not, []


def _contradicted(subject: Subject, replayed: LayerAudit, before: list[LayerAudit]) -> list[LayerAudit]:
    """Return the layers in front of one that replays the client which the model turns into other inputs than its.

    Each, from the last to the first, is held against the next layer that is whole and not contradicted: what a client
    drops out between two layers shows there, and not further on.
    """
    found, behind = [], replayed
    for layer in before:
        try:
            fed = subject.run_from(layer.name).fed(layer.batch.inputs[layer.batch.certified])
        except Exception:  # a layer that is fed tokens, or whatever a model raises: nothing is held against it
            continue
        if behind.name in fed and is_contradicted(fed[behind.name], behind.batch.inputs):
            reason = (
                f"contradicted by layer '{behind.name}': the model turns these into other inputs than those that "
                f"replay the client; {layer.reason}"
            )
            nothing = {"certified": np.zeros(layer.n_inputs, dtype=bool), "labels": np.full(layer.n_inputs, NO_LABEL)}
            batch = replace(layer.batch, **nothing)
            found.append(replace(layer, batch=batch, reason=reason, why_open=reason))
        elif layer.batch.is_whole:
            behind = layer
    return found

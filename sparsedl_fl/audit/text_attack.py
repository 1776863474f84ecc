"""Texts of the batch, with their tokens in order, as part of an audit (`sparsedl_fl.audit.text`)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from sparsedl_fl.audit.findings import LayerAudit
from sparsedl_fl.audit.layer_attack import LayerAttack
from sparsedl_fl.audit.subject import Subject
from sparsedl_fl.audit.text import text_of
from sparsedl_fl.models import LayerRow
from sparsedl_fl.propagate.replay import Replay

__all__ = ["replay_of_texts", "texts"]


def texts(
    subject: Subject, rows: Mapping[str, LayerRow], found: Mapping[str, LayerAudit], one: LayerAttack
) -> dict[str, LayerAudit]:
    """Return the first layer that is fed tokens, with the texts that its gradient and later ones show.

    Parameters
    ----------
    subject : Subject
        What is audited.
    rows : mapping of str to LayerRow
        Layers to attack.
    found : mapping of str to LayerAudit
        What was found, token ids among it.
    one : LayerAttack
        Attacks single layers; no text is looked for once its budget is spent. It is told what came of the search.

    Returns
    -------
    dict of str to LayerAudit
        Empty where no layer shows tokens, or its attack was not asked for: then other attacks have their turn.
    """
    if not subject.tables:
        return {}
    if one.is_spent:
        one.of_texts = one.is_spent
        return {}
    one.report("reading tokens in their order")
    start = time.perf_counter()
    shown = sorted({token for layer in found.values() for token in layer.tokens})
    given = subject.gradients, subject.trace.example, subject.tables, shown, subject.loss
    text = text_of(subject.model, subject.in_double, *given)
    one.of_texts = f"looked for: {text.count or text.reason or 'none found'}"
    if not text.n_certified or text.layer not in rows:
        return {}
    seconds = time.perf_counter() - start
    source = "each token at its position run through the model, and held against the gradient"
    row = rows[text.layer]
    return {text.layer: LayerAudit(text.layer, None, str(text), row, source=source, seconds=seconds, text=text)}


def replay_of_texts(found: Iterable[LayerAudit]) -> Replay | None:
    """Return the client run again with the texts that were found, or None."""
    return next((layer.text.replay for layer in found if layer.text is not None), None)

"""Sentences of a report for readers who are no experts: what was recovered, what else there is to say, what to do next.

A new kind of leak is a function here that returns its sentence, or an empty text, and a place in `plain_sentences`.
"""

from __future__ import annotations

from sparsedl_fl.audit.facts import AuditFacts
from sparsedl_fl.audit.findings import Fed, Verdict
from sparsedl_fl.audit.text import Text

__all__ = ["next_steps", "plain_sentences", "what_features_are"]

SWEEP = "Measure what stops it before the training goes on: sparsedl-fl sweep tries larger batches, noise and more."
BLOCK = "Until then let no such update leave a client: LeakPolicy(mode='block') holds them."


def plain_sentences(result: AuditFacts) -> list[str]:
    """Return what was recovered of how many records, how sure that is, and what was not looked at."""
    parts = (_of_nothing, _of_text, _of_samples, _of_weights, _of_targets, _of_likely, _of_tokens, _of_labels,
             _of_membership, _not_looked_at)  # fmt: skip
    return [text for text in (part(result) for part in parts) if text]


def _batch(result: AuditFacts) -> str:
    if not result.batch_size:
        return "an unknown number of records"
    known = "" if result.is_batch_size_known else "at least "
    return f"{known}{result.batch_size} record{'s' if result.batch_size != 1 else ''}"


def _of_samples(result: AuditFacts) -> str:
    best = result.best
    if best is None or not best.n_certified:
        return ""
    what = {
        Fed.INPUTS: "whole, as the model was fed them",
        Fed.TOKENS: "as tokens inside the model",
        Fed.FEATURES: "as features, the numbers that the model computes from them",
    }[best.what]
    number = f"{best.n_certified} of {_batch(result)}" if best.n_samples else f"{best.n_certified} tokens"
    return (
        f"Whoever sees this one update can rebuild {number}, {what}. This is certified; the worst of them is "
        f"expected to be off by {best.worst_error:.1g}, in the units of its numbers."
    )


def _of_weights(result: AuditFacts) -> str:
    groups = result.weight_groups
    if len(groups) < 2:
        return ""
    sizes = ", ".join(str(len(group.records)) for group in groups)
    return (
        f"The records have {len(groups)} different weights in this update ({sizes} records of each). If it is a sum of "
        "several clients, records of different weights belong to different clients: the sum does not hide which belong "
        "together. (A record that is there twice, or a loss that weights its classes, has the same effect.)"
    )


def _of_targets(result: AuditFacts) -> str:
    if result.targets is None or not len(result.targets):
        return ""
    return "What each of these records was trained for (its numbers, or its several labels) follows from them."


def _of_likely(result: AuditFacts) -> str:
    if not result.likely:
        return ""
    least = min(one.correlation for one in result.likely)
    number = f"{len(result.likely)} {'more ' if result.samples else ''}"
    what = {Fed.FEATURES: f"The features of {number}records", Fed.TOKENS: f"{number}tokens"}
    return (
        f"{what.get(result.likely[0].kind, f'{number}records')} can probably be rebuilt, roughly: chance does not "
        "explain these, and nothing certifies them. Each is expected to resemble a true one (correlation of "
        f"{least:.2f} or more; 1 is a perfect copy)."
    )


def _of_text(result: AuditFacts) -> str:
    text = result.text
    if text is None or not text.n_certified:
        return ""
    n = len(text.sentences)
    if not n:
        order = "which token stands at which position" if text.has_order else "which tokens there are, without order"
        return f"Of {text.n_certified} tokens it can be read for certain {order}."
    what = f"{n} text{'s' if n > 1 else ''}"
    number = f"all {what}" if text.is_complete and n > 1 else what
    replayed = " Run again with these, the client sends the same update." if _is_replayed(text) else ""
    return f"Whoever sees this one update can read {number} of the batch, word for word. This is certified.{replayed}"


def _is_replayed(text: Text) -> bool:
    return text.replay is not None and text.replay.is_match


def _of_tokens(result: AuditFacts) -> str:
    if not result.tokens or result.sentences:
        return ""
    order = ", without their order" if result.text is None or not result.text.n_certified else ""
    what = "rows of its embeddings (words or parts of words of a text, categories of a table)"
    return f"Which {len(result.tokens)} different {what} the batch uses can be read{order}."


def _of_labels(result: AuditFacts) -> str:
    present = result.labels_present
    if not present:
        return ""
    many = len(present) != 1
    text = f"{len(present)} label{'s' if many else ''} can be read from the update"
    is_known = result.label_signs.is_certain or len(result.labels)
    return f"{text}." if is_known else f"{text}, {result.label_signs.condition}."


def _of_membership(result: AuditFacts) -> str:
    return "" if result.membership is None else f"Of records that were given, {result.membership}."


def _of_nothing(result: AuditFacts) -> str:
    if result.verdict.is_leak:
        return ""
    if result.verdict is Verdict.NOT_RECOVERED:
        return (
            f"These attacks ran to their end on {_batch(result)} and rebuilt none. Other attacks, or more time, may "
            "still rebuild some."
        )
    if result.is_interrupted:
        return "The audit was interrupted, so that nothing can be said of this update. That is no reassurance."
    return "This audit cannot say what the update leaks. That is no reassurance: a leak was not ruled out."


def _not_looked_at(result: AuditFacts) -> str:
    skipped = sorted(
        {
            layer.row.kind
            for layer in result.layers
            if layer.batch is None and not layer.tokens and layer.text is None and layer.row
        }
    )
    layers = f"layers that none of these attacks reads or reached ({', '.join(skipped)}); " if skipped else ""
    given = "" if result.membership is not None else ", and whether a given person's record was in the batch"
    return f"Not looked at: {layers}attacks that know similar data, use several rounds or change the model{given}."


def what_features_are(result: AuditFacts) -> str:
    """Return what features say of a record, where features were recovered; else nothing."""
    best = result.best
    if best is None or best.what is Fed.INPUTS:
        return ""
    if best.what is Fed.TOKENS:
        return (
            "A token inside the model is a row of numbers for a word of a text or a patch of a picture, and can be "
            "matched with the words or patches that the model turns into such numbers."
        )
    if len(result.input_shape) != 3:
        return (
            "Features are the numbers into which the model's first layers turn a record. What reaches that layer "
            "unchanged, as numbers beside embedded categories do, is part of them as it is; the rest says much of what "
            "the record holds: comparing it with that of known records can show whom it belongs to."
        )
    return (
        "Features of a picture are the numbers into which the model's first layers turn it. They are not the picture, "
        "but say what it shows: comparing them with those of known pictures can show whom they belong to."
    )


def next_steps(result: AuditFacts) -> list[str]:
    """Return what to do next, for the verdict."""
    is_read = result.text is not None and result.text.n_certified > 0
    if result.samples or result.likely or is_read:
        start = (
            "Treat this as a leak of personal data, if the records are about people."
            if result.samples or is_read
            else "Treat this as a leak: that nothing certifies it protects nobody."
        )
        return [start, SWEEP, BLOCK]
    if result.tokens:
        return [
            "Do not send the gradient of the embedding: freeze it, or let secure aggregation sum over many clients.",
            SWEEP,
            BLOCK,
        ]
    if result.verdict is Verdict.NOT_RECOVERED:
        return [
            "Keep this page with the model, the batch size and the client's settings: it holds for these alone.",
            "Audit again when any of them changes, and smaller batches too: they leak more.",
        ]
    steps = [
        "Do not read this as a pass. The chapter on what was not tested says of each layer why, and what would help.",
        "Until there is a conclusion, treat the update as one that may leak: LeakPolicy(mode='block') holds it.",
    ]
    if result.is_interrupted or not result.is_complete:
        steps.append(
            "Let the audit run to its end: without an interrupt, and with larger caps (--seconds, --effort) or none."
        )
    return [*steps, "Audit a smaller batch of the same client: what it leaks a larger one may leak as well."]

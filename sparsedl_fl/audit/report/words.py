"""What an audit says to somebody who signs a document: a plain sentence first, and what to do next."""

from __future__ import annotations

from sparsedl_fl.audit.facts import AuditFacts
from sparsedl_fl.audit.verdicts import Verdict

__all__ = ["next_steps", "plain_sentences", "what_features_are"]

SWEEP = "Measure what stops it before the training goes on: sparsedl-fl sweep tries larger batches, noise and more."
BLOCK = "Until then let no such update leave a client: LeakPolicy(mode='block') holds them."


def plain_sentences(result: AuditFacts) -> list[str]:
    """Return what was recovered of how many records, how sure that is, and what was not looked at."""
    found = [text for text in (_of_samples(result), _of_targets(result), _of_likely(result),
             _of_tokens(result), _of_labels(result)) if text]  # fmt: skip
    if not result.verdict.is_leak:
        found.insert(0, _of_nothing(result))
    return [*found, _not_looked_at(result)]


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
        "inputs of the model": "whole, as the model was fed them",
        "tokens": "as tokens inside the model",
        "features": "as the numbers that the model makes of them inside",
    }[best.what]
    number = f"{best.n_certified} of {_batch(result)}" if best.n_samples else f"{best.n_certified} tokens"
    return (
        f"Whoever sees this one update can rebuild {number}, {what}. This is proven; the worst of them is expected to "
        f"be off by {best.worst_error:.1g}, in the units of its numbers."
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
    what = {"features": f"The features of {number}records", "tokens": f"{number}tokens"}
    return (
        f"{what.get(result.likely[0].kind, f'{number}records')} can probably be rebuilt, roughly: chance does not "
        "explain these, and nothing proves them. Each is expected to resemble a true one (correlation of "
        f"{least:.2f} or more; 1 is a perfect copy)."
    )


def _of_tokens(result: AuditFacts) -> str:
    if not result.tokens:
        return ""
    return (
        f"Which {len(result.tokens)} different tokens (words or parts of words) the texts hold can be read off, "
        "without their order."
    )


def _of_labels(result: AuditFacts) -> str:
    present = result.labels_present
    if not present:
        return ""
    many = len(present) != 1
    text = f"{len(present)} label{'s' if many else ''} can be seen to be in the batch"
    is_known = result.label_signs.is_certain or len(result.labels)
    return f"{text}." if is_known else f"{text}, {result.label_signs.condition}."


def _of_nothing(result: AuditFacts) -> str:
    if result.verdict is Verdict.NOT_RECOVERED:
        return (
            f"These attacks ran to their end on {_batch(result)} and rebuilt none. Other attacks, or more time, may "
            "still rebuild some."
        )
    if result.is_interrupted:
        return "The audit was interrupted, so that nothing can be said of this update. That is no reassurance."
    return "This audit cannot say what the update gives away. That is no reassurance: a leak was not ruled out."


def _not_looked_at(result: AuditFacts) -> str:
    skipped = sorted(
        {layer.row.kind for layer in result.layers if layer.batch is None and not layer.tokens and layer.row}
    )
    layers = f"layers that none of these attacks reads or reached ({', '.join(skipped)}); " if skipped else ""
    return (
        f"Not looked at: {layers}attacks that know similar data, use several rounds or change the model, and whether "
        "a given person's record was in the batch."
    )


def what_features_are(result: AuditFacts) -> str:
    """Return what features say of a record, where features came back; else nothing."""
    best = result.best
    if best is None or best.what == "inputs of the model":
        return ""
    if best.what == "tokens":
        return (
            "A token inside the model is a row of numbers: it stands for a word of a text or a patch of a picture, and "
            "can be matched with the words or patches that the model makes such numbers of."
        )
    if len(result.input_shape) != 3:
        return (
            "Features are the numbers that the layers in front make of a record. They are not the record, and they say "
            "much of what it holds: whom they belong to can be found by comparing them with those of other records."
        )
    return (
        "Features of a picture are the numbers that the layers in front make of it. They are not the picture, and they "
        "say what it shows: whom they belong to can be found by comparing them with those of other pictures."
    )


def next_steps(result: AuditFacts) -> list[str]:
    """Return what to do next, for the verdict."""
    if result.samples or result.likely:
        start = (
            "Treat this as a leak of personal data, if the records are about people."
            if result.samples
            else "Treat this as a leak: that it is not proven protects nobody."
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
            "Let the audit run to its end: no interrupt, and no cap (--seconds, --effort) that is spent before."
        )
    return [*steps, "Audit a smaller batch of the same client: what leaks of it may leak of a larger one."]

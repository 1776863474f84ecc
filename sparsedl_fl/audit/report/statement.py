"""The risk statement of an audit: what was measured, what was declared, and what was not looked at.

Every entry follows from what ran. What no audit of this package does (a malicious server, other rounds) is said of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparsedl_fl.audit.facts import AuditFacts
from sparsedl_fl.audit.findings import ATTACKED, LayerAudit, Verdict
from sparsedl_fl.certify.candidates import SearchEnd
from sparsedl_fl.directions import ActivationDirections, PriorDirections
from sparsedl_fl.models.reach import LEAKS_BY
from sparsedl_fl.theory import Attack

__all__ = ["statement"]

ENDS = {
    SearchEnd.COMPLETE: "the search found all it looked for",
    SearchEnd.EXHAUSTED: "the search ended by its own count of starts without anything new",
    SearchEnd.CUT: "a budget or cap ended the search early",
    SearchEnd.INTERRUPTED: "an interrupt ended the search early",
}

COMPUTED = ("forward", "backward", "a batch of one record")
"""How sources begin that need no search."""

ROWS = "rows of an embedding's gradient"

OF_ALL = (
    "other rounds: this is one update, and several together may show more",
    "updates of other clients, and of this client with other records or settings",
    "a server that departs from the protocol, such as one that sends weights made to single out a record",
    "what the trained model tells when it is asked: its answers were not looked at",
)
"""What no audit looks at."""

NO_PRIOR = "attacks with similar data or a model of what records look like (a prior, generative models)"


def statement(result: AuditFacts) -> dict[str, Any]:
    """Return three lists: what was measured, what was declared, and what was not looked at."""
    return {
        "measured": list(_measured(result)),
        "declared": [dict(entry) for entry in result.context.get("declared", ())],
        "not_looked_at": list(_not_looked_at(result)),
    }


def _measured(result: AuditFacts) -> Iterator[dict[str, str]]:
    limits = _limits(result)
    for layer in result.layers:
        if layer.tokens:
            yield _entry(layer.name, ROWS, "none: no search", layer.count)
        elif layer.text is not None:
            yield _entry(layer.name, layer.source, limits, f"{layer.verdict}: {layer.text.count}")
        elif layer.source == ATTACKED:
            yield _entry(layer.name, _attack(layer), f"{limits}; {ENDS[layer.end]}" if layer.end else limits,
                         _outcome(layer))  # fmt: skip
        elif layer.source:
            is_computed = layer.source.startswith(COMPUTED)
            yield _entry(layer.name, layer.source, "none: no search" if is_computed else limits, _outcome(layer))
    texts = str(result.context.get("texts", ""))
    if texts.startswith("looked for") and result.text is None:
        yield _entry("", "tokens in their order, by the first layers that are fed tokens", limits, f"no text; {texts}")
    if result.replay is not None:
        yield _entry("", "the client run again with what was recovered", "one run", str(result.replay))
    if result.labels_present:
        n, condition = len(result.labels_present), result.label_signs.condition
        found = f"{n} label{'s' if n > 1 else ''} of the batch"
        yield _entry("", "labels, by the last layer's bias gradient or with the records", "none: no search",
                     f"{found}; {condition}" if condition else found)  # fmt: skip
    if result.membership is not None:
        yield _entry(result.membership.layer, "membership of given records, by the row space of a layer's change",
                     "one test for each record", str(result.membership))  # fmt: skip
    for note in result.notes:
        yield _entry("", "the update itself", "none: no search", note)


def _entry(layer: str, by: str, budget: str, outcome: str) -> dict[str, str]:
    return {"layer": layer, "by": by, "budget": budget, "outcome": outcome}


def _limits(result: AuditFacts) -> str:
    """Return the budget of the searches, in words."""
    given = {entry["name"]: entry["value"] for entry in result.context.get("declared", ())}
    found = [
        f"{name} {given[key]}" for key, name in (("max_effort", "effort"), ("max_seconds", "seconds")) if given.get(key)
    ]
    return f"at most {' and '.join(found)} for all layers together" if found else "none given"


def _attack(layer: LayerAudit) -> str:
    """Return what a layer was attacked by; an attack of the caller's own has its class's name."""
    inverter = layer.inverter
    if inverter is not None and not isinstance(inverter.directions_, ActivationDirections):
        return f"{type(inverter.directions_).__name__}, which the caller chose"
    attack = Attack.NONE if layer.row is None else layer.row.attack
    if attack is Attack.SPAN and inverter is not None and not inverter.uses_next_layer_:
        return "its own gradient"
    return LEAKS_BY.get(attack, "its own gradient")


def _outcome(layer: LayerAudit) -> str:
    """Return the verdict of a layer that was attacked, with the count, or why there is no conclusion."""
    if layer.verdict is Verdict.OUT_OF_RANGE:
        return f"OUT OF RANGE, no conclusion: {layer.why_open or layer.reason}"
    return f"{layer.verdict}: {layer.count or layer.reason}"


def _not_looked_at(result: AuditFacts) -> Iterator[str]:
    yield from _layers(result)
    context = result.context
    missing = [name for name in context.get("missing", ()) if name not in context.get("not_fitted", ())]
    if missing:
        yield f"gradients that were not sent, or had NaN or infinity: {', '.join(missing)}"
    if context.get("n_buffers"):
        n = context["n_buffers"]
        yield f"buffers of the model ({n}), such as statistics of batch normalisation, if they are sent"
    if any(layer.row is not None and layer.row.attack == Attack.ROWS for layer in result.layers):
        texts = str(context.get("texts", ""))
        if not texts.startswith("looked for") and result.text is None:
            yield f"texts with their tokens in order: {texts or 'not tried for such an update'}"
    if result.replay is None:
        yield f"whether the client, run again, sends the same: {result.replay_reason or 'not tried'}"
    yield from _membership(result)
    if not any(_uses_prior(layer) for layer in result.layers):
        yield NO_PRIOR
    yield from OF_ALL


def _layers(result: AuditFacts) -> Iterator[str]:
    """Yield layers without any attack, those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for layer in result.layers:
        if not (layer.source or layer.tokens or layer.text is not None):
            reasons.setdefault(layer.why_open or layer.reason, []).append(repr(layer.name or "(model)"))
    for why, names in reasons.items():
        yield f"layer{'s' if len(names) > 1 else ''} {', '.join(names)}: {why}"
    named: Mapping[str, Any] = next((x for x in result.context.get("declared", ()) if x["name"] == "layers"), {})
    if named.get("value"):
        yield f"layers other than those that were asked for ({named['value']})"


def _membership(result: AuditFacts) -> Iterator[str]:
    if result.membership is None:
        yield "whether a given record was in the batch (membership): no records were given"
        return
    n_open = int((~result.membership.in_range & ~result.membership.is_member).sum())
    if n_open:
        yield f"{n_open} of {len(result.membership.is_member)} given records: out of range of the test of membership"


def _uses_prior(layer: LayerAudit) -> bool:
    return layer.inverter is not None and isinstance(layer.inverter.directions, PriorDirections)

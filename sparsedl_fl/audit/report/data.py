"""An audit as plain data, which follows the published schema."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import numpy as np

from sparsedl_fl.audit.facts import AuditFacts
from sparsedl_fl.audit.findings import ATTACKED, LayerAudit, LikelySample, Sample
from sparsedl_fl.audit.report.clauses import clauses_of
from sparsedl_fl.audit.report.sentences import next_steps, plain_sentences, what_features_are
from sparsedl_fl.audit.report.statement import statement
from sparsedl_fl.certify import EvidenceKind
from sparsedl_fl.models import LayerRow
from sparsedl_fl.propagate.replay import Replay
from sparsedl_fl.wording import plain_json

__all__ = ["SCHEMA_VERSION", "as_dict", "as_json", "schema"]

SCHEMA_VERSION = "2.4"


def schema() -> dict[str, Any]:
    """Return the JSON schema that reports follow."""
    return json.loads(files("sparsedl_fl.audit.report").joinpath("schema.json").read_text(encoding="utf-8"))


def as_json(result: AuditFacts, show_samples: bool = False) -> str:
    """Return a report as JSON."""
    return plain_json(as_dict(result, show_samples)) + "\n"


def as_dict(result: AuditFacts, show_samples: bool = False) -> dict[str, Any]:
    """Return a report as plain data; recovered numbers are left out unless asked for."""
    shown = {}
    if show_samples:
        shown = {"tokens": result.tokens, "samples": [_plain(sample) for sample in result.samples]}
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": str(result.verdict),
        "meaning": result.verdict.meaning,
        "reason": result.reason,
        "plain": plain_sentences(result),
        "next_steps": next_steps(result),
        "features": what_features_are(result),
        **_picked(result, "is_complete", "is_interrupted"),
        "notes": list(result.notes),
        **_picked(result, "batch_size", "is_batch_size_known"),
        **_labels(result, show_samples),
        "n_tokens": len(result.tokens),
        "tokens": [],
        "text": None if result.text is None else result.text.to_dict(show_samples),
        "layers": [_layer(layer) for layer in result.layers],
        "replay": None if result.replay is None else _replay(result.replay),
        "replay_reason": result.replay_reason,
        "weights": _weights(result, show_samples),
        "samples_shown": show_samples,
        "samples": [],
        "likely": [_plain(sample) if show_samples else {**vars(sample), "values": []} for sample in result.likely],
        "membership": None if result.membership is None else result.membership.to_dict(),
        "statement": statement(result),
        "clauses": clauses_of(result),
        "run": {name: value for name, value in result.context.items() if name != "declared"},
        **shown,
    }


def _picked(of: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


def _plain(sample: Sample | LikelySample) -> dict[str, Any]:
    return {**vars(sample), "values": sample.values.tolist()}


def _replay(replay: Replay) -> dict[str, Any]:
    return {
        "n_tensors": len(replay.deviations),
        **_picked(replay, "n_matching", "tolerance"),
        "worst": max(replay.deviations.values(), default=None),
        "start": replay.start,
        "summary": str(replay),
    }


def _weights(result: AuditFacts, show_samples: bool) -> list[dict[str, Any]]:
    """Return the records' weights; which records have them only where these are shown."""
    groups, best = result.weight_groups, result.best
    is_shown = show_samples and bool(groups) and best is not None and result.replay.start == best.name
    return [
        {
            **_picked(group, "weight", "error"),
            "n_records": len(group.records),
            "records": list(group.records) if is_shown else [],
        }
        for group in groups
    ]


def _labels(result: AuditFacts, show_samples: bool) -> dict[str, Any]:
    present, estimated = result.labels_present, result.label_signs.estimated
    if not set(present) <= set(estimated) or estimated == present:  # of another batch size, or nothing new
        estimated = {}
    counts = {"labels_present": present, "labels_estimated": estimated}
    return {
        "n_labels": len(result.labels),
        "n_labels_present": len(present),
        **{name: {str(k): n for k, n in found.items()} if show_samples else {} for name, found in counts.items()},
        "labels_condition": result.label_signs.condition,
    }


def _layer(layer: LayerAudit) -> dict[str, Any]:
    row = LayerRow("", "", (), (), "", "") if layer.row is None else layer.row
    kinds = layer.inverter.evidence_.tolist() if layer.source == ATTACKED else []
    certified = np.zeros(0) if layer.batch is None else layer.batch.errors[layer.batch.certified]
    return {
        "name": layer.name,
        "kind": row.kind,
        "shape": list(row.shape),
        **_picked(row, "feeds", "behind", "attack", "largest_batch"),
        "verdict": str(layer.verdict),
        **_picked(layer, "reason", "source", "why_open", "n_inputs", "n_certified"),
        "n_likely": len(layer.likely_candidates),
        "n_tokens": len(layer.tokens),
        **_picked(layer, "at_least", "count", "n_labels"),
        "error_median": float(np.median(certified)) if len(certified) else None,
        "error_worst": float(certified.max()) if len(certified) else None,
        "evidence": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds) if kind != EvidenceKind.NONE},
        "seconds": round(layer.seconds, 3),
    }

"""An audit as plain data, which follows the published schema."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import numpy as np

from sparsedl_fl.audit.facts import AuditFacts
from sparsedl_fl.audit.findings import LayerAudit
from sparsedl_fl.audit.report.words import next_steps, plain_sentences, what_features_are
from sparsedl_fl.certify import EvidenceKind
from sparsedl_fl.wording import plain_json

__all__ = ["SCHEMA_VERSION", "as_dict", "as_json", "schema"]

SCHEMA_VERSION = "2.0"


def schema() -> dict[str, Any]:
    """Return the JSON schema that reports follow."""
    return json.loads(files("sparsedl_fl.audit.report").joinpath("schema.json").read_text(encoding="utf-8"))


def as_json(result: AuditFacts, show_samples: bool = False) -> str:
    """Return a report as JSON."""
    return plain_json(as_dict(result, show_samples)) + "\n"


def as_dict(result: AuditFacts, show_samples: bool = False) -> dict[str, Any]:
    """Return a report as plain data; what was recovered is left out unless asked for."""
    replayed = result.replay
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": str(result.verdict),
        "meaning": result.verdict.meaning,
        "reason": result.reason,
        "plain": plain_sentences(result),
        "next_steps": next_steps(result),
        "features": what_features_are(result),
        "is_complete": result.is_complete,
        "is_interrupted": result.is_interrupted,
        "notes": list(result.notes),
        "batch_size": result.batch_size,
        "is_batch_size_known": result.is_batch_size_known,
        **_labels(result, show_samples),
        "n_tokens": len(result.tokens),
        "tokens": result.tokens if show_samples else [],
        "layers": [_layer(layer) for layer in result.layers],
        "replay": None
        if replayed is None
        else {
            "n_tensors": len(replayed.deviations),
            "n_matching": replayed.n_matching,
            "tolerance": replayed.tolerance,
            "worst": max(replayed.deviations.values(), default=None),
            "start": replayed.start,
            "summary": str(replayed),
        },
        "replay_reason": result.replay_reason,
        "samples_shown": show_samples,
        "samples": [
            {
                "index": sample.index,
                "kind": sample.kind,
                "layer": sample.layer,
                "label": sample.label,
                "error": sample.error,
                "values": sample.values.tolist(),
            }
            for sample in result.samples
        ]
        if show_samples
        else [],
        "likely": [
            {
                "index": sample.index,
                "kind": sample.kind,
                "layer": sample.layer,
                "correlation": sample.correlation,
                "values": sample.values.tolist() if show_samples else [],
            }
            for sample in result.likely
        ],
        "run": dict(result.context),
    }


def _labels(result: AuditFacts, show_samples: bool) -> dict[str, Any]:
    present = result.labels_present
    estimated = result.label_signs.estimated
    if not set(present) <= set(estimated) or estimated == present:  # of another batch size than the labels', or no news
        estimated = {}
    return {
        "n_labels": len(result.labels),
        "n_labels_present": len(present),
        "labels_present": {str(label): count for label, count in present.items()} if show_samples else {},
        "labels_estimated": {str(k): n for k, n in estimated.items()} if show_samples else {},
        "labels_condition": result.label_signs.condition,
    }


def _layer(layer: LayerAudit) -> dict[str, Any]:
    row, batch = layer.row, layer.batch
    kinds = [] if layer.inverter is None or layer.source != "attacked" else layer.inverter.evidence_.tolist()
    certified = np.zeros(0) if batch is None else batch.errors[batch.certified]
    return {
        "name": layer.name,
        "kind": "" if row is None else row.kind,
        "shape": [] if row is None else list(row.shape),
        "feeds": "" if row is None else row.feeds,
        "behind": "" if row is None else row.behind,
        "attack": "" if row is None else row.attack,
        "largest_batch": 0 if row is None else row.largest_batch,
        "verdict": str(layer.verdict),
        "reason": layer.reason,
        "source": layer.source,
        "why_open": layer.why_open,
        "n_inputs": layer.n_inputs,
        "n_certified": layer.n_certified,
        "n_likely": len(layer.likely_candidates),
        "n_tokens": len(layer.tokens),
        "at_least": layer.at_least,
        "count": layer.count,
        "n_labels": layer.n_labels,
        "error_median": float(np.median(certified)) if len(certified) else None,
        "error_worst": float(certified.max()) if len(certified) else None,
        "evidence": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds) if kind != EvidenceKind.NONE},
        "seconds": round(layer.seconds, 3),
    }

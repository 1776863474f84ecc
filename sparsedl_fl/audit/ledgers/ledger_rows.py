"""A row of the ledger: what one report says of one update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsedl_fl.audit.findings import Fed, Verdict
from sparsedl_fl.audit.ledgers.distinct_records import Found

__all__ = ["Comparable", "LedgerRow"]

SCHEMA = "2."
"""How the version of a report begins that is read here."""


@dataclass(frozen=True)
class Comparable:
    """Recovered records, the key of those they can be compared with, and their weights as of `possible_clients`."""

    key: tuple[Any, ...]
    found: Found
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class LedgerRow:
    """One audit of one update.

    Attributes
    ----------
    name : str
        Its round: the name of the report, or its place.
    verdict : Verdict
        Of the whole update.
    reason : str
        What leaked, or why there is no conclusion.
    n_certified : int
        Records of which inputs or features were certified, at the layer that leaks most.
    kind : str
        What they are: inputs of the model or features; empty for none.
    n_records : int
        Records that the update shows; zero for unknown.
    is_size_known : bool
        Whether there are no more.
    n_likely, n_texts, n_tokens, n_labels, n_members : int
        Candidates that nothing certifies; texts recovered whole; token ids; labels; given records that were trained on.
    is_complete : bool
        Whether every search ran to its end.
    may_repeat : bool
        Whether they may be one record's features at several local steps, and so more than there are records.
    date, model_sha256, update_sha256 : str
        Of the audit; empty where the report does not say.
    records : Comparable or None
        The certified records; None where the report leaves them out.
    texts, tokens : frozenset or None
        Texts and token ids; None where the report leaves them out.
    """

    name: str
    verdict: Verdict
    reason: str
    n_certified: int
    kind: str
    n_records: int
    is_size_known: bool
    n_likely: int
    n_texts: int
    n_tokens: int
    n_labels: int
    n_members: int
    is_complete: bool
    may_repeat: bool = False
    date: str = ""
    model_sha256: str = ""
    update_sha256: str = ""
    records: Comparable | None = field(default=None, repr=False, compare=False)
    texts: frozenset[tuple[int, ...]] | None = field(default=None, repr=False, compare=False)
    tokens: frozenset[int] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, report: Mapping[str, Any], name: str) -> LedgerRow:
        """Return the row of a report.

        Parameters
        ----------
        report : mapping
            As `sparsedl_fl.audit.AuditResult.to_dict` returns it, or read from ``report.json``.
        name : str
            Of its round.

        Raises
        ------
        ValueError
            If it is no report of an audit, or has no such form.
        """
        if not isinstance(report, Mapping) or not {"schema_version", "verdict", "layers", "run"} <= set(report):
            raise ValueError(f"{name} is no report of an audit: it needs the report.json of sparsedl-fl audit --out")
        if not str(report["schema_version"]).startswith(SCHEMA):
            raise ValueError(
                f"{name} has schema version {report['schema_version']}, and versions {SCHEMA}x are read: audit again"
            )
        try:
            return cls._of(report, name)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{name} is no whole report of an audit ({what}): audit again") from error

    @classmethod
    def _of(cls, report: Mapping[str, Any], name: str) -> LedgerRow:
        run, text, members = report["run"], report.get("text") or {}, report.get("membership") or {}
        best = _best(report)
        is_sum = run.get("learning_rate") is not None
        is_text = best is None or best["feeds"] == "tokens"
        kind = "" if best is None else str(Fed.INPUTS if best["feeds"] == "the model's input" else Fed.FEATURES)
        return cls(
            name=name,
            verdict=Verdict(report["verdict"]),
            reason=str(report["reason"]),
            n_certified=0 if is_text else _whole(best["n_certified"]),
            kind="" if is_text else kind,
            n_records=_whole(report["batch_size"]),
            is_size_known=bool(report["is_batch_size_known"]),
            n_likely=len(report["likely"]),
            n_texts=_whole(text.get("n_sentences", 0)),
            n_tokens=_whole(report["n_tokens"]),
            n_labels=_whole(report["n_labels_present"]),
            n_members=_whole(members.get("n_members", 0)),
            is_complete=bool(report["is_complete"]),
            may_repeat=is_sum and kind == Fed.FEATURES,
            **{key: str(run.get(key, "")) for key in ("date", "model_sha256", "update_sha256")},
            records=None if is_text or (is_sum and kind == Fed.FEATURES) else _records(report),
            texts=_texts(text) if report["samples_shown"] else None,
            tokens=frozenset(map(_whole, report["tokens"])) if report["samples_shown"] else None,
        )

    @property
    def of_records(self) -> str:
        """How many of how many records, in words; a dash for none."""
        if not self.n_certified:
            return "-"
        total = f"{'' if self.is_size_known else 'at least '}{self.n_records}" if self.n_records else "unknown"
        return f"{self.n_certified} of {total} ({self.kind})"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data, without what was recovered."""
        return {
            name: str(value) if isinstance(value, Verdict) else value
            for name, value in vars(self).items()
            if name not in ("records", "texts", "tokens")
        } | {"is_leak": self.verdict.is_leak}


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _best(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the layer whose records count: one that recovered all, then the model's input, then most."""
    found = [layer for layer in report["layers"] if _whole(layer["n_certified"])]
    shown = report["samples"][0]["layer"] if report["samples"] else None
    return min(
        found,
        key=lambda layer: (
            layer["name"] != shown if shown is not None else False,
            layer["verdict"] != Verdict.RECOVERED,
            layer["feeds"] != "the model's input",
            -layer["n_certified"],
        ),
        default=None,
    )


def _records(report: Mapping[str, Any]) -> Comparable | None:
    """Return the certified records of a report that shows them."""
    samples = report["samples"]
    if not samples:
        return None
    values = np.array([sample["values"] for sample in samples], dtype=np.float64)
    errors = np.array([sample["error"] for sample in samples], dtype=np.float64)
    if values.ndim != 2 or not np.isfinite(values).all() or not (errors >= 0).all():
        raise ValueError("its samples are no numbers with errors")
    is_input = samples[0]["kind"] == Fed.INPUTS
    of_model = () if is_input else (samples[0]["layer"], report["run"].get("model_sha256", ""))
    key = str(samples[0]["kind"]), values.shape[1], *of_model
    return Comparable(key, Found(values, errors), _weights(report, [_whole(sample["index"]) for sample in samples]))


def _weights(report: Mapping[str, Any], indices: list[int]) -> np.ndarray | None:
    """Return the share of each sample in the update, with its relative error; None where the report has none of one."""
    groups = report.get("weights", ())
    total = sum(group["weight"] * _whole(group["n_records"]) for group in groups)
    of_records = {i: (group["weight"] / total, group["error"]) for group in groups for i in group["records"]}
    if not set(indices) <= set(of_records):
        return None
    return np.array([of_records[i] for i in indices], dtype=np.float64)


def _texts(text: Mapping[str, Any]) -> frozenset[tuple[int, ...]]:
    return frozenset(tuple(map(_whole, one["tokens"])) for one in text.get("sentences", ()))

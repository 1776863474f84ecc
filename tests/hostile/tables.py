"""The results of the bank as a table in Markdown, with a summary by network, by client and by wire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["is_wrong", "written"]

Record = Mapping[str, Any]

COLUMNS = ("network", "client", "wire", "verdict", "certified", "wrong", "likely", "unlike", "in hand", "token ids",
           "wrong labels", "false green", "seconds")  # fmt: skip


def is_wrong(record: Record) -> bool:
    """Return whether an audit lied, reassured falsely, or raised."""
    wrong = ("n_wrong", "n_wrong_labels", "n_wrong_tokens", "is_false_green", "traceback", "refusal")
    return any(record[name] for name in wrong)


def written(records: Sequence[Record]) -> tuple[str, bool]:
    """Return the tables, and whether nothing in them is wrong."""
    total = _sums(records)
    lines = [f"# The bank of updates: {len(records)} cases", "", _sentence(total), ""]
    for kind in ("network", "client", "wire"):
        lines += _summary(kind, records)
    lines += ["## All cases", "", *_rows([COLUMNS, *(_cells(record) for record in records)])]
    bad = [record for record in records if is_wrong(record)]
    if bad:
        lines += ["", "## What is wrong", ""] + [f"- {_name(record)}: {_fault(record)}" for record in bad]
    return "\n".join(lines) + "\n", not bad


def _name(record: Record) -> str:
    return f"{record['network']} / {record['client']} / {record['wire']}"


def _fault(record: Record) -> str:
    if record["traceback"] or record["refusal"]:
        return (record["refusal"] or record["traceback"].strip().splitlines()[-1])[:200]
    faults = {
        "certified inputs wrong": record["n_wrong"],
        "labels wrong": record["n_wrong_labels"],
        "token ids wrong": record["n_wrong_tokens"],
    }
    parts = [f"{count} {text}" for text, count in faults.items() if count]
    if record["is_false_green"]:
        tried = "" if record["is_tried"] else ", nothing in range tried"
        parts.append(f"false green ({record['in_hand']:.0%} and {record['n_tokens']} token ids in hand{tried})")
    return "; ".join(parts)


def _weakness(record: Record) -> str:
    """Return what a green verdict that is not false by the rule rests on, where that is little."""
    if not record["is_green"]:
        return ""
    fewer = [] if record["is_whole"] else ["attacked for fewer inputs than there are"]
    return "; ".join([*fewer, *(["token ids stand out"] if record["n_standing_out"] else [])])


def _sums(records: Iterable[Record]) -> dict[str, float]:
    records = list(records)
    verdicts = ("RECOVERED", "PARTLY", "LIKELY", "OUT OF RANGE", "NOT RECOVERED")
    return {
        "cases": len(records),
        **{verdict: sum(record["verdict"] == verdict for record in records) for verdict in verdicts},
        "certified": sum(record["n_certified"] for record in records),
        "wrong": sum(record["n_wrong"] for record in records),
        "likely": sum(record["n_likely"] for record in records),
        "unlike": sum(record["n_unlike"] for record in records),
        "wrong labels or ids": sum(record["n_wrong_labels"] + record["n_wrong_tokens"] for record in records),
        "false greens": sum(record["is_false_green"] for record in records),
        "weak greens": sum(not record["is_false_green"] and bool(_weakness(record)) for record in records),
        "raised": sum(bool(record["traceback"] or record["refusal"]) for record in records),
        "seconds": round(sum(record["seconds"] for record in records)),
    }


def _sentence(total: Mapping[str, float]) -> str:
    return (
        f"{total['certified']} inputs certified, {total['wrong']} of them wrong; {total['likely']} likely, "
        f"{total['unlike']} of them unlike any; {total['wrong labels or ids']} labels or token ids wrong; "
        f"{total['false greens']} false greens; {total['weak greens']} weak ones; "
        f"{total['raised']} raised; {total['seconds']} s of processor time."
    )


def _summary(kind: str, records: Sequence[Record]) -> list[str]:
    """Return a line for each network, client or wire."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record[kind], []).append(record)
    sums = {name: _sums(group) for name, group in groups.items()}
    header = (kind, *next(iter(sums.values()), {}))
    return [f"## By {kind}", "", *_rows([header, *((name, *found.values()) for name, found in sums.items())]), ""]


def _cells(record: Record) -> tuple[Any, ...]:
    tokens = f"{record['n_tokens_said']} of {record['n_tokens']}" if record["n_tokens"] else ""
    return (
        record["network"],
        record["client"],
        record["wire"],
        record["verdict"],
        record["n_certified"],
        record["n_wrong"] or "",
        record["n_likely"] or "",
        record["n_unlike"] or "",
        f"{record['in_hand']:.0%}",
        tokens,
        record["n_wrong_labels"] or "",
        "YES" if record["is_false_green"] else _weakness(record),
        f"{record['seconds']:.1f}",
    )


def _rows(rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]] if lines else []

"""From records to a table: one line a row and method, with an interval and the paper's number."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.stats import binomtest

from paper.methods import METHODS, OURS
from paper.published import PUBLISHED
from paper.runner import records_of
from paper.tables import TABLES, Table

__all__ = ["summarize", "write_summary"]


def summarize(
    table_name: str, records: Iterable[dict[str, Any]], methods: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return one mapping of column to value for each row, method and limit that has records.

    Methods are those of the table, and the given ones.

    The accuracy is the share of exact batches, with its 95 % interval (Clopper and Pearson); a metric is the mean over
    the batches of their means; seconds and starts are medians; "successful" is the share of all starts that ended in a
    true column.
    """
    table, published = TABLES[table_name], PUBLISHED.get(table_name, {})
    groups = defaultdict(list)
    for record in records_of(table, records):
        groups[record["row"], record["directions"], record["limit"]].append(record)
    order = [(row, method) for row in table.rows for method in dict.fromkeys([*table.methods, *(methods or ())])]
    kept = sorted((key for key in groups if key[:2] in order), key=lambda key: (order.index(key[:2]), key[2]))
    return [_line_of(table, published, key, groups[key]) for key in kept]


def _line_of(table: Table, published: dict, key: tuple[str, str, str], group: list[dict[str, Any]]) -> dict[str, Any]:
    row, method, limit = key
    metrics = table.rows[row].metrics
    n_exact = sum(record["exact"] for record in group)
    interval = binomtest(n_exact, len(group)).proportion_ci(method="exact")
    return {
        "row": row,
        "search": METHODS[method].label if method in METHODS else method,
        "limit": limit,
        "batches": len(group),
        "exact": n_exact,
        "accuracy": 100 * n_exact / len(group),
        "interval": f"{100 * interval.low:.0f} to {100 * interval.high:.0f}",
        **{metric: _mean(group, metric) for metric in metrics},
        "certified": sum(record.get("certified") == record["batch_size"] for record in group),
        "starts": round(median(record["starts"] for record in group)),
        "successful": _successful(group),
        "seconds": median(record["seconds"] for record in group),
        "paper": _paper(published, row, method, metrics),
    }


def write_summary(
    table_name: str, records: Iterable[dict[str, Any]], out: str | Path, methods: Sequence[str] | None = None
) -> Path:
    """Write ``<table>.md`` and ``<table>.csv``, and return the path of the first."""
    lines, out = summarize(table_name, records, methods), Path(out)
    columns = list(dict.fromkeys(column for line in lines for column in line))
    with (out / f"{table_name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(lines)
    shown = [column for column in columns if column != "exact"]
    text = [f"# {TABLES[table_name].title}", "", _line(shown), _line(["---"] * len(shown))]
    text += [_line(_format(column, line.get(column, "")) for column in shown) for line in lines]
    path = out / f"{table_name}.md"
    path.write_text("\n".join(text) + "\n")
    return path


def _mean(group: list[dict[str, Any]], metric: str) -> float:
    values = [np.mean(record[metric]) for record in group if np.size(record.get(metric, ()))]  # some batches have none
    return float(np.mean(values)) if values else np.nan


def _successful(group: list[dict[str, Any]]) -> str:
    n_starts = sum(record["starts"] for record in group)
    return f"{sum(record.get('successes', 0) for record in group) / n_starts:.2%}" if n_starts else "-"


def _paper(published: dict, row: str, method: str, metrics: tuple[str, ...]) -> str:
    """Return the paper's metrics and accuracy for a row and method; for ours, those of its best method in the row."""
    quoted = published.get((row, method))
    if quoted is not None:
        return _quote(quoted, metrics)
    others = [quoted for (of_row, _), quoted in published.items() if of_row == row]
    if method in (*OURS, "dictionary") and others:
        return "best: " + _quote(max(others, key=lambda quoted: quoted.get("accuracy", 0)), metrics)
    return "-"


def _quote(quoted: dict[str, float], metrics: tuple[str, ...]) -> str:
    values = [f"{quoted[metric]:.4g}" for metric in metrics if metric in quoted]
    return " / ".join([*values, *([f"{quoted['accuracy']:.0f} %"] if "accuracy" in quoted else [])])


def _format(column: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if np.isnan(value):  # records of before that was measured, or refusals
        return ""
    if column == "accuracy":
        return f"{value:.0f} %"
    return f"{value:.1f}" if column in ("psnr", "seconds") else f"{value:.4g}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

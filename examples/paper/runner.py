"""Runs the rows of a table: one JSON line a batch, written as soon as it is there, and never twice."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed
from threadpoolctl import threadpool_info, threadpool_limits

from paper.experiments import Experiment
from paper.methods import METHODS, Budget
from paper.tables import TABLES, Table
from sparsedl.progress import progress_bar

__all__ = ["FIRST_SEED", "read_records", "reproduce"]

FIRST_SEED = 1000
_PACKAGES = ("sparsedl", "numpy", "scipy", "scikit-learn", "torch", "geoopt")


def reproduce(
    table_name: str,
    *,
    out: str | Path,
    data: str | None = None,
    rows: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    n_batches: int | None = None,
    first_seed: int = FIRST_SEED,
    n_jobs: int = 1,
    budget: Budget | None = None,
    verbose: bool = False,
) -> list[dict[str, Any]]:
    """Run what is missing of a table, and return all its records.

    Every finished batch is appended to ``out/<table>.jsonl``. A batch that any file there has already is not run
    again, so that an interrupted run goes on where it was, and tables that share a row share its batches.

    Parameters
    ----------
    table_name : str
        Name in `TABLES`.
    out : str or Path
        Folder of the records; created if it does not exist.
    data : str or None, default=None
        Source of the data (see `paper.data`); None fetches from OpenML.
    rows : sequence of str or None, default=None
        Patterns of row names (``"*x200"``); None takes all.
    methods : sequence of str or None, default=None
        Names in `METHODS`; None takes those of the table.
    n_batches : int or None, default=None
        Batches of each row and method; None takes those of the table.
    first_seed : int, default=1000
        Batch ``i`` draws its data, network and search from the seed ``first_seed + i``.
    n_jobs : int, default=1
        Batches that run at the same time.
    budget : Budget or None, default=None
        What one batch may cost.
    verbose : bool, default=False
        Whether to draw a progress bar (needs rich).
    """
    table, budget, out = _pick_table(table_name), budget or Budget(), Path(out)
    chosen = _pick_rows(table, rows)
    methods = _pick_methods(table, methods)
    n_batches = table.n_batches if n_batches is None else n_batches
    if n_batches < 1:
        raise ValueError(f"n_batches must be positive, got {n_batches}")
    wanted = [
        (row, method, seed)
        for row in chosen
        for method in methods
        for seed in range(first_seed, first_seed + n_batches)
    ]
    out.mkdir(parents=True, exist_ok=True)
    done = {_identity(record) for record in read_records(out)}
    tasks = [
        (row, method, seed)
        for row, method, seed in wanted
        if (table.rows[row].name, method, seed, _limit(method, budget)) not in done
    ]
    threads = max(1, (os.cpu_count() or 1) // max(1, n_jobs))
    results = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(
        delayed(_run)(table.rows[row], row, method, seed, data, budget, threads) for row, method, seed in tasks
    )
    with progress_bar(verbose, total=len(wanted), description=table_name) as report:
        report(len(wanted) - len(tasks), "")
        for number, record in enumerate(results, start=len(wanted) - len(tasks) + 1):
            _append(out / f"{table_name}.jsonl", record)
            report(number, f"{record['row']} {record['directions']} {'exact' if record['exact'] else 'not exact'}")
    return records_of(table, read_records(out), chosen)


def records_of(
    table: Table, records: Iterable[dict[str, Any]], rows: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return the records that belong to a table, with its names of the rows, in its order."""
    names = {table.rows[row].name: row for row in (rows or table.rows)}
    kept = [{**record, "row": names[record["experiment"]]} for record in records if record["experiment"] in names]
    order = list(table.rows)
    return sorted(kept, key=lambda record: (order.index(record["row"]), record["seed"]))


def read_records(out: str | Path) -> list[dict[str, Any]]:
    """Return the records of every ``.jsonl`` file of a folder; a last line that was cut short is left out."""
    records = []
    for path in sorted(Path(out).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return records


def _run(
    experiment: Experiment, row: str, method: str, seed: int, data: str | None, budget: Budget, threads: int
) -> dict[str, Any]:
    """Run one batch and describe how it was run."""
    # Never more than the caller allows (OMP_NUM_THREADS): other work may be on the other cores.
    n_threads = min(threads, max((library["num_threads"] for library in threadpool_info()), default=1))
    with threadpool_limits(limits=n_threads):
        measured = experiment.run(method, seed, data, budget)
    return {
        "experiment": experiment.name,
        "row": row,
        "directions": method,
        "seed": seed,
        "limit": _limit(method, budget),
        "batch_size": experiment.batch_size,
        "width": experiment.width,
        **measured,
        "threads": n_threads,
        "device": budget.device,
        "versions": _versions(),
    }


@cache
def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{package: version(package) for package in _PACKAGES}}


def _limit(method: str, budget: Budget) -> str:
    """Return in words what a method may cost."""
    unit = METHODS[method].unit if method in METHODS else ""
    return f"{getattr(budget, unit):g} {unit}" if unit else ""


def _identity(record: dict[str, Any]) -> tuple[str, str, int, str]:
    return record["experiment"], record["directions"], record["seed"], record["limit"]


def _append(path: Path, record: dict[str, Any]) -> None:
    """Append one line; a line that an interruption cut short is ended first, so that it spoils no other."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _pick_table(name: str) -> Table:
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name]


def _pick_rows(table: Table, patterns: Sequence[str] | None) -> list[str]:
    for pattern in patterns or ():
        if not any(fnmatch(row, pattern) for row in table.rows):
            raise ValueError(f"no row fits {pattern!r}; there are {', '.join(table.rows)}")
    return [row for row in table.rows if patterns is None or any(fnmatch(row, pattern) for pattern in patterns)]


def _pick_methods(table: Table, names: Sequence[str] | None) -> Sequence[str]:
    known = set(table.methods) | set(METHODS)
    for name in names or ():
        if name not in known:
            raise ValueError(f"there are no directions {name!r}; there are {', '.join(sorted(known))}")
    return table.methods if names is None else names

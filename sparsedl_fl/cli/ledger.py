"""Put the reports of several rounds, or clients, into one ledger: what each leaked, and how many different records.

It reads the report.json of sparsedl-fl audit. With --show-samples there, records of different rounds are compared
within their errors, and one that was recovered twice counts once; else their number is a range. Exit status: 1 a round
leaks, 0 none does and all were attacked to the end, 2 bad usage or unreadable files, 3 some have no conclusion.
"""

from __future__ import annotations

import argparse
from typing import Any

from sparsedl_fl.cli._model import folder_of

HELP = "put the reports of several rounds into one ledger"

RESULTS = ("ledger.html", "ledger.json")

MOST = 2**30
"""Bytes of a report that is read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("reports", metavar="REPORT", nargs="+", help="report.json of an audit, or the folder it is in; "
                        "in the order of the rounds")  # fmt: skip
    parser.add_argument("--participants", metavar="FILE", help="JSON, where each update is the sum of several clients: "
                        'a list with those of each round, ["A", "B"], or {"A": 120, "B": 300} with the numbers of '
                        "records by which the server weighted them; says to whom a record can belong")  # fmt: skip
    parser.add_argument("--out", metavar="FOLDER", help=f"where {' and '.join(RESULTS)} go")
    parser.add_argument("--force", action="store_true", help="overwrite files there that are no ledgers of ours")
    parser.add_argument("--json", action="store_true", help="print the ledger as JSON")


def run(options: argparse.Namespace) -> int:
    """Read the reports."""
    from sparsedl_fl.audit import ledger

    folder = folder_of(options, RESULTS, "jinja2")
    participants = None if options.participants is None else _participants(options.participants)
    result = ledger([_report(path) for path in options.reports], options.reports, participants)
    if folder is not None:
        result.to_html(folder / "ledger.html")
        result.to_json(folder / "ledger.json")
    print(result.to_json() if options.json else result.to_table(), end="")
    return result.exit_status


def _report(given: str) -> Any:
    """Return a report from its file."""
    return _json(given, "it needs the report.json of sparsedl-fl audit --out", in_folder="report.json")


def _participants(given: str) -> Any:
    """Return who took part in each round, from its file."""
    found = _json(given, needed := "it needs a list with the clients of each round")
    if not isinstance(found, list) or not all(isinstance(one, (list, dict)) for one in found):
        raise ValueError(f"--participants {given}: {needed}, each a list of names, or names with numbers of records")
    return found


def _json(given: str, needed: str, in_folder: str = "") -> Any:
    """Return what a file holds, or one of this name in a folder."""
    import json
    from pathlib import Path

    path = Path(given)
    path = path / in_folder if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"{given}: there is no such file: {needed}")
    if path.stat().st_size > MOST:
        raise ValueError(f"{given} has more than {MOST >> 20} MiB: {needed}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{given} is no JSON: {needed}") from error

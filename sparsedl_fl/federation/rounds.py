"""What was found, by client and round."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparsedl_fl.audit.writing import write_whole

__all__ = ["RoundTable"]


class RoundTable:
    """Audits of a training, by client and round; also written to a folder.

    Parameters
    ----------
    out : str or Path or None, default=None
        Folder: ``round-003/client-7.html`` and ``.json`` for each audit, ``round-003/round.md`` for all of a round, and
        ``rounds.md`` by client and round. Several sets of arrays in one message have a file each.

    Attributes
    ----------
    audits : list of Checked
        In the order in which they came.
    """

    def __init__(self, out: str | Path | None = None) -> None:
        self.out = None if out is None else Path(out)
        self.audits: list[Any] = []

    def add(self, checked: Any) -> None:
        """Keep an audit, and write it where there is a folder."""
        self.audits.append(checked)
        if self.out is None:
            return
        folder = self.out / f"round-{checked.server_round:03}"
        folder.mkdir(parents=True, exist_ok=True)
        name = "-".join(
            ["client", *(re.sub(r"[^\w.-]", "_", part) for part in (checked.client, checked.record) if part)]
        )
        if checked.result is not None:
            checked.result.to_json(folder / f"{name}.json")
            with suppress(ImportError):  # without Jinja2 there is the JSON
                checked.result.to_html(folder / f"{name}.html")
        else:
            write_whole(folder / f"{name}.txt", checked.reason + "\n")
        write_whole(folder / "round.md", self.of_round(checked.server_round))
        write_whole(self.out / "rounds.md", self.to_table())

    def replace(self, old: Any, new: Any) -> None:
        """Put what is known by now in the place of an audit."""
        self.audits[self.audits.index(old)] = new

    def __len__(self) -> int:
        return len(self.audits)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.audits)

    def to_table(self) -> str:
        """Return a Markdown table, a row a client and a column a round."""
        rounds = sorted({checked.server_round for checked in self.audits})
        clients = sorted({checked.client for checked in self.audits})
        cells: dict[tuple[str, int], list[str]] = {}
        for checked in self.audits:
            cells.setdefault((checked.client, checked.server_round), []).append(_cell(checked))
        lines = [
            "| client | " + " | ".join(f"round {number}" for number in rounds) + " |",
            "| --- |" + " --- |" * len(rounds),
        ]
        for client in clients:
            row = ["; ".join(cells.get((client, number), ())) for number in rounds]
            lines.append(f"| {_plain(client)} | " + " | ".join(row) + " |")
        return "\n".join(lines) + "\n"

    def of_round(self, server_round: int) -> str:
        """Return the report of one round in Markdown: what each client's update gives away, and why."""
        lines = [f"# Round {server_round}", "", "| client | verdict | why | seconds |", "| --- | --- | --- | --- |"]
        for checked in self.audits:
            if checked.server_round == server_round:
                why = checked.result.reason if _is_told_by_verdict(checked) else checked.reason
                row = (checked.client, ", ".join(_words(checked)), why, f"{checked.seconds:.1f}")
                lines.append("| " + " | ".join(map(_plain, row)) + " |")
        aside = {name: None for checked in self.audits if checked.server_round == server_round
                 for name in checked.not_looked_at}  # fmt: skip
        if aside:
            lines += ["", f"Not looked at: {', '.join(map(_plain, aside))}."]
        return "\n".join(lines) + "\n"


def _is_told_by_verdict(checked: Any) -> bool:
    return checked.finding in ("clear", "leak", "out of range")


def _words(checked: Any) -> list[str]:
    """Return the verdict, or that there is none, what stood in its way, and whether the update is held."""
    words = ["audit failed" if checked.result is None else str(checked.result.verdict)]
    if not _is_told_by_verdict(checked):
        words.append(str(checked.finding))
    return [*words, "blocked"] if checked.is_blocked else words


def _cell(checked: Any) -> str:
    words = _words(checked)
    words[1:1] = [] if checked.result is None else _counts(checked.result)
    record = f"{checked.record}: " if checked.record else ""
    return _plain(f"{record}{', '.join(words)} ({checked.seconds:.1f} s)")


def _counts(result: Any) -> list[str]:
    """Return how much was found, of each kind."""
    best, found = result.best, []
    if best is not None and best.n_certified:
        total = f"{'' if best.is_size_known else 'at least '}{max(best.n_inputs, best.at_least)}"
        found.append(f"{best.n_certified} of {total} {best.what}")
    if result.likely:
        found.append(f"{len(result.likely)} likely")
    return [*found, f"{len(result.tokens)} token ids"] if result.tokens else found


def _plain(text: str) -> str:
    """Return a text that stays in its cell of a table: one line, no bars, nothing that steers a terminal."""
    return "".join(sign if sign.isprintable() else " " for sign in " ".join(text.split())).replace("|", "/")

"""What was found, by client and round."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["RoundTable"]


class RoundTable:
    """Audits of a training, by client and round; also written to a folder.

    Parameters
    ----------
    out : str or Path or None, default=None
        Folder: ``round-003/client-7.html`` and ``.json`` for each audit, ``round-003/round.md`` for all of a round, and
        ``rounds.md`` by client and round.

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
        name = "client-" + re.sub(r"[^\w.-]", "_", checked.client)
        if checked.result is not None:
            checked.result.to_json(folder / f"{name}.json")
            with suppress(ImportError):  # without Jinja2 there is the JSON
                checked.result.to_html(folder / f"{name}.html")
        else:
            (folder / f"{name}.txt").write_text(checked.reason + "\n", encoding="utf-8")
        (folder / "round.md").write_text(self.of_round(checked.server_round), encoding="utf-8")
        (self.out / "rounds.md").write_text(self.to_table(), encoding="utf-8")

    def __len__(self) -> int:
        return len(self.audits)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.audits)

    def to_table(self) -> str:
        """Return a Markdown table, a row a client and a column a round."""
        rounds = sorted({checked.server_round for checked in self.audits})
        clients = sorted({checked.client for checked in self.audits})
        cells = {(checked.client, checked.server_round): _cell(checked) for checked in self.audits}
        lines = [
            "| client | " + " | ".join(f"round {number}" for number in rounds) + " |",
            "| --- |" + " --- |" * len(rounds),
        ]
        for client in clients:
            lines.append(f"| {client} | " + " | ".join(cells.get((client, number), "") for number in rounds) + " |")
        return "\n".join(lines) + "\n"

    def of_round(self, server_round: int) -> str:
        """Return the report of one round in Markdown: what each client's update gives away, and why."""
        lines = [f"# Round {server_round}", "", "| client | verdict | why | seconds |", "| --- | --- | --- | --- |"]
        for checked in self.audits:
            if checked.server_round == server_round:
                verdict = "audit failed" if checked.result is None else str(checked.result.verdict)
                verdict += ", blocked" if checked.is_blocked else ""
                why = (checked.error if checked.result is None else checked.result.reason).replace("|", "/")
                lines.append(f"| {checked.client} | {verdict} | {why} | {checked.seconds:.1f} |")
        return "\n".join(lines) + "\n"


def _cell(checked: Any) -> str:
    if checked.result is None:
        text = "audit failed"
    else:
        best = checked.result.best
        count = "" if best is None else f", {best.n_certified} of {best.n_inputs} {best.what}"
        text = f"{checked.result.verdict}{count}"
    return f"{text}{', blocked' if checked.is_blocked else ''} ({checked.seconds:.1f} s)"

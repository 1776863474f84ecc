"""What was found, by client and round."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sparsedl_fl.audit import AuditResult, Ledger, ledger
from sparsedl_fl.audit.writing import write_whole
from sparsedl_fl.federation.outcome import Checked

__all__ = ["RoundTable", "write_reports"]


def write_reports(result: AuditResult, folder: Path, name: str) -> None:
    """Write the reports of an audit into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    result.to_json(folder / f"{name}.json")
    with suppress(ImportError):  # without Jinja2 there is the JSON
        result.to_html(folder / f"{name}.html")


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
        self.audits: list[Checked] = []

    def add(self, checked: Checked) -> None:
        """Keep an audit, and write it where there is a folder."""
        self.audits.append(checked)
        if self.out is None:
            return
        folder = self.out / f"round-{checked.server_round:03}"
        folder.mkdir(parents=True, exist_ok=True)
        name = "-".join(re.sub(r"[^\w.-]", "_", part) for part in ("client", checked.client, checked.record) if part)
        if checked.result is not None:
            write_reports(checked.result, folder, name)
        else:
            write_whole(folder / f"{name}.txt", checked.reason + "\n")
        write_whole(folder / "round.md", self.of_round(checked.server_round))
        write_whole(self.out / "rounds.md", self.to_table())

    def __len__(self) -> int:
        return len(self.audits)

    def __iter__(self) -> Iterator[Checked]:
        return iter(self.audits)

    def to_table(self) -> str:
        """Return a Markdown table, a row a client and a column a round."""
        rounds = sorted({checked.server_round for checked in self.audits})
        clients = sorted({checked.client for checked in self.audits})
        lines = [_line("client", *(f"round {number}" for number in rounds)), "| --- |" + " --- |" * len(rounds)]
        for client in clients:
            mine = [checked for checked in self.audits if checked.client == client]
            cells = ("; ".join(_cell(one) for one in mine if one.server_round == number) for number in rounds)
            lines.append(_line(client, *cells))
        return "\n".join(lines) + "\n"

    def ledger(self) -> Ledger:
        """Return the ledger of the audits: how many different records they leaked together; failed ones are no rows.

        Raises
        ------
        ValueError
            If no audit has a result.
        """
        done = [one for one in self.audits if one.result is not None]
        names = [
            " ".join(part for part in (f"round {x.server_round}, client {x.client}", x.record) if part) for x in done
        ]
        n_failed = len(self.audits) - len(done)
        return replace(ledger([one.result for one in done], names), n_failed=n_failed)

    def of_round(self, server_round: int) -> str:
        """Return the report of one round in Markdown: what each client's update leaks, and why."""
        lines = [f"# Round {server_round}", "", "| client | verdict | why | seconds |", "| --- | --- | --- | --- |"]
        here = [checked for checked in self.audits if checked.server_round == server_round]
        for checked in here:
            why = checked.result.reason if checked.finding.is_conclusion else checked.reason
            lines.append(_line(checked.client, ", ".join(_words(checked)), why, f"{checked.seconds:.1f}"))
        aside = dict.fromkeys(name for checked in here for name in checked.not_looked_at)
        if aside:
            lines += ["", f"Not looked at: {', '.join(map(_plain, aside))}."]
        return "\n".join(lines) + "\n"


def _line(*cells: str) -> str:
    return "| " + " | ".join(map(_plain, cells)) + " |"


def _words(checked: Checked) -> list[str]:
    """Return the verdict, if there is one, the finding, and whether the update is held."""
    words = ["audit failed" if checked.result is None else str(checked.result.verdict)]
    if not checked.finding.is_conclusion:
        words.append(str(checked.finding))
    return [*words, "blocked"] if checked.is_blocked else words


def _cell(checked: Checked) -> str:
    verdict, *words = _words(checked)
    found = [] if checked.result is None else _counts(checked.result)
    record = f"{checked.record}: " if checked.record else ""
    return f"{record}{', '.join([verdict, *found, *words])} ({checked.seconds:.1f} s)"


def _counts(result: AuditResult) -> list[str]:
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

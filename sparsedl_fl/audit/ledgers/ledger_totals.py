"""The ledger of several audits: a row for each, and what they leaked together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from sparsedl_fl.audit.facts import AuditFacts
from sparsedl_fl.audit.findings import Verdict
from sparsedl_fl.audit.ledgers.distinct_records import different
from sparsedl_fl.audit.ledgers.ledger_rows import LedgerRow
from sparsedl_fl.audit.ledgers.possible_clients import Round, clients_of_round, possible_clients
from sparsedl_fl.audit.report.data import as_dict
from sparsedl_fl.audit.writing import written
from sparsedl_fl.wording import escaped, installs, plain_json

__all__ = ["Ledger", "ledger"]

VERSION = "1.1"
"""Of the ledger as plain data."""


@dataclass(frozen=True)
class Ledger:
    """Audits of several rounds, or of several clients.

    Attributes
    ----------
    rows : tuple of LedgerRow
        One an audit, in the order in which they were given.
    n_failed : int
        Audits that failed, of which there is no row.
    participants : tuple of mappings of str to float
        Of each row, who took part, with the number of records by which the server weighted each (NaN for not known);
        empty where that was not said.
    """

    rows: tuple[LedgerRow, ...]
    n_failed: int = 0
    participants: tuple[Mapping[str, float], ...] = ()

    @property
    def n_certified(self) -> int:
        """Sum of the records that were certified; one recovered twice counts twice."""
        return sum(row.n_certified for row in self.rows)

    @property
    def n_different(self) -> tuple[int, int]:
        """Least and largest number of different records among them.

        Records are compared where the reports hold them, and their numbers mean the same: inputs of the model always,
        features at one layer of one model. Of others the least number counts those of one round, the largest all.
        """
        alone = [row.n_certified for row in self.rows if row.records is None and row.n_certified]
        counts = [different([self.rows[i].records.found for i in alike]) for alike in self._comparable]
        sure = [
            1 if row.may_repeat else row.n_certified for row in self.rows if row.records is None and row.n_certified
        ]
        least = max([least for least, _ in counts] + sure, default=0)
        return least, sum(most for _, most in counts) + sum(alone)

    @cached_property
    def possible_clients(self) -> list[frozenset[str]]:
        """The clients to which each different record can belong; empty where it was not said who took part."""
        if not self.participants:
            return []
        found: list[frozenset[str]] = []
        for alike in self._comparable:
            records = [(self.rows[i].records, self.participants[i]) for i in alike]
            found += possible_clients([Round(one.found, clients, one.weights) for one, clients in records])
        return found

    @property
    def _comparable(self) -> list[list[int]]:
        """Places of the rows whose records can be compared, of each kind."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        for place, row in enumerate(self.rows):
            if row.records is not None:
                groups.setdefault(row.records.key, []).append(place)
        return list(groups.values())

    @property
    def n_compared(self) -> int:
        """Rounds whose certified records the reports hold, so that they could be compared."""
        return sum(row.records is not None for row in self.rows)

    @property
    def texts(self) -> tuple[int, int]:
        """Least and largest number of different texts recovered whole; texts are equal where all their tokens are."""
        return _different(self.rows, "texts", "n_texts")

    @property
    def tokens(self) -> tuple[int, int]:
        """Least and largest number of different token ids."""
        return _different(self.rows, "tokens", "n_tokens")

    @property
    def verdicts(self) -> dict[str, int]:
        """How often each verdict was given."""
        found = [str(row.verdict) for row in self.rows]
        return {verdict: found.count(verdict) for verdict in map(str, Verdict) if verdict in found}

    @property
    def exit_status(self) -> int:
        """1 where a round leaks; else 3 where one has no conclusion, 0 where all were attacked to the end in vain."""
        states = {row.verdict.exit_status for row in self.rows}
        return 1 if 1 in states else 3 if 3 in states or not states or self.n_failed else 0

    @property
    def notes(self) -> list[str]:
        """What limits the totals, a sentence each."""
        found = []
        if any(row.may_repeat for row in self.rows):
            found.append("features of several local steps may be of one record more than once, and were not compared")
        n_left_out = sum(bool(row.n_certified) and row.records is None and not row.may_repeat for row in self.rows)
        if n_left_out:
            found.append(
                f"{n_left_out} report{'s leave' if n_left_out > 1 else ' leaves'} the records out, which were not "
                "compared: audit with --show-samples to count different ones"
            )
        keys = {row.records.key for row in self.rows if row.records is not None}
        if len(keys) > 1:
            found.append("records of some rounds are numbers of different kinds, layers or weights, and not comparable")
        sent = [row.update_sha256 for row in self.rows if row.update_sha256]
        if len(set(sent)) < len(sent):
            found.append("some reports are of the same update")
        n_cut = sum(not row.is_complete for row in self.rows)
        if n_cut:
            found.append(f"{n_cut} audit{'s were' if n_cut > 1 else ' was'} cut short, and may have missed records")
        n_open = sum(row.verdict is Verdict.OUT_OF_RANGE for row in self.rows)
        if n_open:
            found.append(f"{n_open} of {len(self.rows)} audits have no conclusion; that is no reassurance")
        if self.n_failed:
            found.append(f"{self.n_failed} audits failed, and are no rows; that is no reassurance")
        if self.participants:
            found.append("whose a record can be follows from who took part, if no two clients hold it; not certified")
        return [*found, "each update was attacked by itself: attacks on several rounds together were not run"]

    @property
    def summary(self) -> str:
        """The totals in a sentence."""
        leaks = sum(row.verdict.is_leak for row in self.rows)
        parts = [f"{leaks} of {len(self.rows)} updates leak something"]
        if self.n_certified:
            parts.append(f"{self.n_certified} records certified, {_between(self.n_different)} different ones")
        if self.possible_clients:
            parts.append(self.of_clients)
        if max(self.texts):
            parts.append(f"{_between(self.texts)} different texts")
        if max(self.tokens):
            parts.append(f"{_between(self.tokens)} different token ids")
        return "; ".join(parts)

    @property
    def of_clients(self) -> str:
        """How many records can belong to how many clients, in words."""
        sizes = Counter(map(len, self.possible_clients))
        n, n_clients = sizes.total(), len(set().union(*self.participants))
        several = f", {sizes[0]} must be held by several" if sizes[0] else ""
        return f"{sizes[1]} of {n} different records can belong to one of the {n_clients} clients alone{several}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, without what was recovered."""
        possible = self.possible_clients
        alone = Counter(name for names in possible if len(names) == 1 for name in names)
        pairs = {"different": self.n_different, "texts": self.texts, "tokens": self.tokens}
        return {
            "ledger_version": VERSION,
            "rows": [row.to_dict() for row in self.rows],
            "totals": {
                "n_updates": len(self.rows),
                "n_failed": self.n_failed,
                "verdicts": self.verdicts,
                "n_certified": self.n_certified,
                "n_compared": self.n_compared,
                **{name: {"least": least, "most": most} for name, (least, most) in pairs.items()},
            },
            "clients": {
                "participants": [sorted(names) for names in self.participants],
                "records_by_number_of_clients": {str(n): k for n, k in sorted(Counter(map(len, possible)).items())},
                "records_of_one": dict(sorted(alone.items())),
            },
            "summary": self.summary,
            "notes": self.notes,
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """Return everything as JSON, and write it where a path is given."""
        return written(plain_json(self.to_dict()) + "\n", path)

    def to_table(self) -> str:
        """Return a Markdown table, with the totals below it."""
        lines = ["| round | verdict | records certified | likely | texts | token ids | labels | what |"]
        lines.append("| --- " * 8 + "|")
        for row in self.rows:
            numbers = [row.n_likely, row.n_texts, row.n_tokens, row.n_labels]
            cells = [row.name, str(row.verdict), row.of_records, *map(str, numbers), row.reason]
            lines.append(f"| {' | '.join(escaped(cell).replace('|', '/') for cell in cells)} |")
        return "\n".join([*lines, "", f"{self.summary}.", *(f"- {note}" for note in self.notes)]) + "\n"

    def to_html(self, path: str | Path | None = None) -> str:
        """Return everything as one self-contained page, and write it where a path is given."""
        with installs("the ledger is a page made with Jinja2", "audit"):
            from jinja2 import Environment, StrictUndefined
        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
                                  finalize=lambda value: escaped(value) if type(value) is str else value)  # fmt: skip
        folder = files("sparsedl_fl.audit.report")
        page, template = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "ledger.html"))
        style = page[page.index("<style>") + len("<style>") : page.index("</style>")]
        found = environment.from_string(template).render(ledger=self, style=style)
        return written(found, path)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.to_table())}</pre>"

    def __repr__(self) -> str:
        return f"<Ledger: {self.summary}>"


def ledger(
    results: Iterable[AuditFacts | Mapping[str, Any]],
    names: Sequence[str] | None = None,
    participants: Sequence[Iterable[str] | Mapping[str, float]] | None = None,
) -> Ledger:
    """Return the ledger of several audits: a row for each, and how many different records they leaked together.

    Parameters
    ----------
    results : iterable of AuditResult or mapping
        Audits of one client's rounds, or of several clients; or their reports as plain data (``report.json``). Those
        that leave the samples out give the numbers of each round, and of different records a range.
    names : sequence of str or None, default=None
        Of the rounds; None numbers them from 1.
    participants : sequence of iterables of str, or of mappings of str to float, or None, default=None
        Of each round, the clients of whose updates it is the sum, or these with the number of records by which the
        server weighted each. Then the ledger says to how many clients each record can belong.

    Raises
    ------
    ValueError
        If one is no report, or there are other names or participants than results.

    Examples
    --------
    >>> import torch
    >>> from sparsedl_fl.audit import audit_model
    >>> from sparsedl_fl.simulation import client_gradient, fully_connected
    >>> model, batch = fully_connected(64, width=100, random_state=0), torch.randn(6, 64)
    >>> parts = batch[:4], batch[2:]
    >>> ledger(audit_model(model, client_gradient(model, part, torch.arange(4))) for part in parts)
    <Ledger: 2 of 2 updates leak something; 8 records certified, 6 different ones>
    """
    reports = [as_dict(one, show_samples=True) if isinstance(one, AuditFacts) else one for one in results]
    names = [f"round {number}" for number in range(1, len(reports) + 1)] if names is None else list(names)
    if len(names) != len(reports):
        raise ValueError(f"names must be as many as the results ({len(reports)}), got {len(names)}")
    if not reports:
        raise ValueError("results must hold an audit or more, got none")
    rows = tuple(LedgerRow.of(report, name) for report, name in zip(reports, names, strict=True))
    if participants is not None and len(participants) != len(rows):
        raise ValueError(f"participants must be as many as the results ({len(rows)}), got {len(participants)}")
    return Ledger(rows, participants=tuple(map(clients_of_round, participants or ())))


def _different(rows: Sequence[LedgerRow], kept: str, counted: str) -> tuple[int, int]:
    """Return the least and the largest number of different items, of which some reports have the count alone."""
    shown = frozenset().union(*(getattr(row, kept) or () for row in rows))
    alone = [getattr(row, counted) for row in rows if getattr(row, kept) is None]
    return max([len(shown), *alone]), len(shown) + sum(alone)


def _between(pair: tuple[int, int]) -> str:
    least, most = pair
    return str(least) if least == most else f"{least} to {most}"

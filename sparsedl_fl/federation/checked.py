"""What came of one update: why it may leave, or is held."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sparsedl_fl.audit import AuditResult

__all__ = ["Checked", "Finding"]


class Finding(StrEnum):
    """What the check of an update came to. Where updates are blocked, only the first of these always leaves."""

    CLEAR = "clear"
    """The audit is complete, and ended NOT RECOVERED."""

    OUT_OF_RANGE = "out of range"
    """The audit is complete, and has no conclusion."""

    LEAK = "leak"
    """Something was recovered, or is likely; or its verdict counts as a leak by the policy."""

    CAP = "cap"
    """A cap on effort or seconds ended the audit early, and nothing was found by then."""

    INTERRUPTED = "interrupted"
    """An interrupt (Ctrl-C) ended the audit early, and nothing was found by then."""

    ERROR = "error"
    """The update could not be read, the audit failed, its report could not be written, or a part was not looked at."""


@dataclass(frozen=True, eq=False)
class Checked:
    """What came of one update.

    Attributes
    ----------
    client, server_round : str, int
        Whose update, and when.
    result : AuditResult or None
        The audit; None where it failed.
    error : str
        What went wrong, or empty.
    is_blocked : bool
        Whether the update must not leave.
    seconds : float
        What the check cost.
    finding : Finding
        What it came to: why the update is held, if it is.
    record : str
        Which of several sets of arrays in one message this is; empty where there is one.
    not_looked_at : tuple of str
        What travels in the same message and is no array: metrics, configuration.
    """

    client: str
    server_round: int
    result: AuditResult | None
    error: str
    is_blocked: bool
    seconds: float
    finding: Finding
    record: str = ""
    not_looked_at: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """What there is to say, in a sentence; one that does not begin with a verdict begins with the finding."""
        found = "" if self.result is None else f"{self.result.verdict}: {self.result.reason}"
        what = {
            Finding.ERROR: f"error: {'the audit failed: ' if self.result is None else ''}{self.error}",
            Finding.INTERRUPTED: "interrupted: the audit did not come to its end",
            Finding.CAP: (
                "cap: the audit was cut short before its own end, and what it did not find says nothing; raise "
                "max_effort or max_seconds, or leave them out"
            ),
        }.get(self.finding, "")
        text = "; ".join(part for part in (what, found) if part)
        return f"array record {self.record!r}: {text}" if self.record else text

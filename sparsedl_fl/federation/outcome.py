"""The outcome of an audit of one update: its result, its error or an interrupt, and why the update is held."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType
from typing import Any

from torch import nn

from sparsedl_fl.audit import AuditResult
from sparsedl_fl.caught_warnings import caught_warnings
from sparsedl_fl.federation.checking import State, check_update

__all__ = ["Checked", "Finding", "Interrupts", "Outcome", "audited"]


class Finding(StrEnum):
    """The finding of a check. Where updates are blocked, only one that is clear always leaves."""

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
    """The update could not be read, the audit failed, its report could not be written, or a part was not audited."""

    @property
    def is_conclusion(self) -> bool:
        """Whether the verdict of the audit is its conclusion."""
        return self in (self.CLEAR, self.OUT_OF_RANGE, self.LEAK)


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """The outcome of an audit.

    Attributes
    ----------
    result : AuditResult or None
        None where it failed.
    error : str
        What went wrong, or empty.
    seconds : float
        Time of the audit.
    is_interrupted : bool
        Whether an interrupt came during it, wherever it was handled.
    """

    result: AuditResult | None = None
    error: str = ""
    seconds: float = 0.0
    is_interrupted: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Checked(Outcome):
    """The outcome for one update.

    Attributes
    ----------
    result, error, seconds, is_interrupted
        Of the audit, as of `Outcome`.
    client, server_round : str, int
        Whose update, and when.
    is_blocked : bool
        Whether the update must not leave.
    finding : Finding
        The finding, which is the reason if the update is held.
    record : str
        Which of several sets of arrays in one message this is; empty where there is one.
    not_looked_at : tuple of str
        Parts of the same message that are not audited: metrics, configuration.
    """

    client: str
    server_round: int
    is_blocked: bool
    finding: Finding
    record: str = ""
    not_looked_at: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """The verdict with its reason, in a sentence; without a conclusion it begins with the finding."""
        found = "" if self.result is None else f"{self.result.verdict}: {self.result.reason}"
        what = {
            Finding.ERROR: f"error: {'the audit failed: ' if self.result is None else ''}{self.error}",
            Finding.INTERRUPTED: "interrupted: the audit is incomplete",
            Finding.CAP: (
                "cap: the audit was ended early by a cap, so that finding nothing means nothing; raise max_effort or "
                "max_seconds, or leave them out"
            ),
        }.get(self.finding, "")
        text = "; ".join(part for part in (what, found) if part)
        return f"array record {self.record!r}: {text}" if self.record else text


class Interrupts:
    """Records an interrupt (SIGINT, Ctrl-C) during a block, even if something inside handled it.

    Signals reach the main thread alone; in other threads nothing is recorded.

    Attributes
    ----------
    came : bool
        Whether there was one.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        try:
            self._before(number, frame)
        except KeyboardInterrupt:  # another handler may not raise it, and then it is no interrupt
            self.came = True
            raise


def audited(
    model: nn.Module | Callable[[], nn.Module],
    before: State | Exception,
    after: State | Exception,
    options: Mapping[str, Any],
) -> Outcome:
    """Audit one update, and return the outcome. Nothing is raised, and an interrupt is recorded.

    Parameters
    ----------
    model, before, after
        As of `check_update`; states that could not be read are given as the exception.
    options : mapping
        The other arguments of `check_update`.
    """
    result, error, is_interrupted, interrupts = None, "", False, Interrupts()
    with caught_warnings():
        start = time.perf_counter()
        try:
            with interrupts:
                if isinstance(before, Exception):
                    raise before
                if isinstance(after, Exception):
                    raise after
                result = check_update(model, before, after, **options)
            error, is_interrupted = _not_finite(result), result.is_interrupted
        except KeyboardInterrupt:
            is_interrupted = True
        except Exception as problem:  # whatever it is, it must not break a training
            error = f"{type(problem).__name__}: {problem}"
        seconds = time.perf_counter() - start
    return Outcome(result=result, error=error, seconds=seconds, is_interrupted=is_interrupted or interrupts.came)


def _not_finite(result: AuditResult) -> str:
    """Return which tensors were not audited for NaN or infinity, whose other numbers a server can read all the same."""
    spoilt = result.context.get("missing")
    return f"NaN or infinity in {', '.join(map(repr, spoilt))}, not looked at" if spoilt else ""

"""One audit that fails by itself: whatever is raised inside becomes words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from sparsedl_fl.audit import AuditResult
from sparsedl_fl.doubts import caught_warnings
from sparsedl_fl.federation.checking import State, check_update
from sparsedl_fl.federation.interrupts import Interrupts

__all__ = ["Outcome", "audited"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of an audit.

    Attributes
    ----------
    result : AuditResult or None
        None where it failed.
    error : str
        What went wrong, or empty.
    seconds : float
        What it cost.
    is_interrupted : bool
        Whether an interrupt came meanwhile, whoever took it.
    """

    result: AuditResult | None = None
    error: str = ""
    seconds: float = 0.0
    is_interrupted: bool = False


def audited(
    model: nn.Module | Callable[[], nn.Module],
    before: State | Exception,
    after: State | Exception,
    options: Mapping[str, Any],
) -> Outcome:
    """Audit one update, and return what came of it. Nothing is raised, and an interrupt is noted.

    Parameters
    ----------
    model, before, after
        As of `check_update`; what could not be read is the exception that it raised.
    options : mapping
        The other arguments of `check_update`.
    """
    result, error, is_interrupted = None, "", False
    with caught_warnings():
        start = time.perf_counter()
        try:
            with Interrupts() as interrupts:
                for state in (before, after):
                    if isinstance(state, Exception):
                        raise state
                result = check_update(model, before, after, **options)
            error = _not_finite(result)
            is_interrupted = interrupts.came or result.is_interrupted
        except KeyboardInterrupt:
            is_interrupted = True
        except Exception as problem:  # whatever it is, it must not break a training
            error, is_interrupted = f"{type(problem).__name__}: {problem}", interrupts.came
        return Outcome(result, error, time.perf_counter() - start, is_interrupted)


def _not_finite(result: AuditResult) -> str:
    """Return what was not looked at for NaN or infinity in it: a server can read the other numbers beside these."""
    spoilt = result.context.get("missing")
    return f"NaN or infinity in {', '.join(map(repr, spoilt))}, which was not looked at" if spoilt else ""

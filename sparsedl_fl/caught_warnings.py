"""The warnings of one fit, kept apart from those of other threads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

__all__ = ["caught_warnings"]

_FILTERS = RLock()


@contextmanager
def caught_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Catch every warning raised inside, whatever the filters say.

    Python keeps filters for the whole process: of two threads that catch at the same time, one gets the other's
    warnings, and the filters of the one that entered last stay for good. So threads wait for each other here; processes
    do not. What a thread warns of without catching meanwhile still lands here.

    Yields
    ------
    caught : list of warnings.WarningMessage
        What was raised so far.
    """
    with _FILTERS, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught

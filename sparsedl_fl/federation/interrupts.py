"""An interrupt that is not lost, whoever takes it: a search keeps what it has found and goes on."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Interrupts"]


class Interrupts:
    """Notes an interrupt (SIGINT, Ctrl-C) that came during a block, though something inside took it.

    Signals reach the main thread alone; in any other one nothing is noted.

    Attributes
    ----------
    came : bool
        Whether there was one.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        try:
            self._before(number, frame)
        except KeyboardInterrupt:  # another handler may do without, and then it is none
            self.came = True
            raise

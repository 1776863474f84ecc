"""An interrupt is noted whoever takes it, and handlers are left as they were."""

import signal
from contextlib import suppress
from threading import Thread

import pytest

from sparsedl_fl.federation.outcome import Interrupts


@pytest.fixture
def handler():
    """Put a handler of SIGINT in its place, and the old one back."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda new: signal.signal(signal.SIGINT, new)
    signal.signal(signal.SIGINT, before)


def test_one_that_is_taken_inside_is_noted():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as outer, Interrupts() as inner:
        assert not inner.came
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert outer.came
    assert inner.came
    assert signal.getsignal(signal.SIGINT) is before


def test_the_handler_is_back_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), Interrupts():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_that_raises_nothing_has_the_last_word(handler):
    heard = []
    handler(lambda *_: heard.append(1))
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
    assert heard == [1]
    assert not interrupts.came


def test_what_is_ignored_stays_so(handler):
    handler(signal.SIG_IGN)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
    assert not interrupts.came
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_in_another_thread_nothing_is_touched():
    before, seen = signal.getsignal(signal.SIGINT), []

    def run():
        with Interrupts() as interrupts:
            seen.append((signal.getsignal(signal.SIGINT), interrupts.came))

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(before, False)]

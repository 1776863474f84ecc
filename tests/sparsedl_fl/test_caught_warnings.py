"""Warnings of threads are kept apart."""

import warnings
from threading import Event, Thread

from sparsedl_fl.caught_warnings import caught_warnings


def test_threads_wait_for_each_other_and_leave_the_filters_as_they_were():
    before, begun, seen = list(warnings.filters), Event(), []

    def other():
        begun.set()
        with caught_warnings() as caught:
            warnings.warn("theirs", stacklevel=1)
        seen.extend(str(doubt.message) for doubt in caught)

    thread = Thread(target=other)
    with caught_warnings() as caught:
        thread.start()
        assert begun.wait(10)
        thread.join(0.1)
        assert thread.is_alive()
        warnings.warn("ours", stacklevel=1)
    thread.join(10)
    assert [str(doubt.message) for doubt in caught] == ["ours"]
    assert seen == ["theirs"]
    assert warnings.filters == before


def test_one_inside_another_of_the_same_thread():
    with caught_warnings() as outer:
        with caught_warnings() as inner:
            warnings.warn("inside", stacklevel=1)
        warnings.warn("outside", stacklevel=1)
    assert [len(inner), len(outer)] == [1, 1]

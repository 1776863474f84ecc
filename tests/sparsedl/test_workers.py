"""Work is shared in whatever order, and comes back in its own."""

import threading
import time
from contextlib import nullcontext

import pytest
import torch
from joblib import parallel_config

from sparsedl.workers import in_turn, mapped, shared_rows, workers


def squares(n, share):
    return share(lambda x: x**2, list(range(n)))


@pytest.mark.parametrize("n_jobs", [None, 1, 2, 3, -1])
def test_results_keep_their_order(n_jobs):
    with workers(n_jobs) as those:
        assert those.run([(squares, n) for n in range(6)]) == [[x**2 for x in range(n)] for n in range(6)]


def test_two_threads_take_the_blocks_of_one_task():
    meeting = threading.Barrier(2, timeout=30)
    with workers(2) as two:
        both = two.run([(lambda share: share(lambda _: (meeting.wait(), threading.get_ident())[1], [0, 1]),)])[0]
    assert len(set(both)) == 2


def test_an_error_in_a_block_is_that_of_the_caller():
    def failing(share):
        return share(lambda x: 1 // x, [1, 1, 0, 1])

    with pytest.raises(ZeroDivisionError), workers(2) as two:
        two.run([(failing,)])


def test_processes_get_whole_tasks():
    with parallel_config("loky"), workers(2) as two:
        assert two.share is in_turn
        assert two.run([(divmod_of, 7), (divmod_of, 9)]) == [(3, 1), (4, 1)]


def divmod_of(n, share):
    return share(lambda x: divmod(x, 2), [n])[0]


def test_rows_are_split_only_where_there_are_more_than_a_block():
    sizes = []

    def twice(part):
        sizes.append(len(part))
        return 2 * part

    rows = torch.arange(10.0).reshape(5, 2)
    assert torch.equal(shared_rows(in_turn, twice, rows, 2), 2 * rows)
    assert torch.equal(shared_rows(in_turn, twice, rows[:2], 2), 2 * rows[:2])
    assert shared_rows(in_turn, twice, rows[:0], 2).shape == (0, 2)
    assert sizes == [2, 2, 1, 2, 0]


@pytest.mark.parametrize(
    ("configured", "n_threads"), [({"n_jobs": 2}, 2), ({"n_jobs": 3, "backend": "threading"}, 3), ({}, 1)]
)
def test_the_number_of_a_configuration(configured, n_threads):
    seen, meet = set(), threading.Barrier(n_threads, timeout=60)

    def task(share):
        meet.wait()
        seen.add(threading.get_ident())

    with parallel_config(**configured) if configured else nullcontext(), workers(None) as those:
        those.run([(task,)] * n_threads)
    assert len(seen) == n_threads


@pytest.mark.parametrize("configured", [{"n_jobs": 2}, {"n_jobs": 2, "backend": "loky"}, {}])
def test_mapped_keeps_the_order_and_shares_where_there_are_threads(configured):
    with parallel_config(**configured) if configured else nullcontext():
        assert mapped(lambda x: (time.sleep(0.01), x * x)[1], range(7)) == [x * x for x in range(7)]
        assert mapped(abs, []) == []


def test_mapped_raises_what_its_function_raises():
    with parallel_config(n_jobs=2), pytest.raises(ZeroDivisionError):
        mapped(lambda x: 1 / x, [1, 2, 0, 3])

"""Threads that share the work of a search, in blocks of sizes that do not depend on how many there are.

What is computed is the same for any number of workers: blocks are made by the caller, of a fixed size, and each runs on
one thread. Products and decompositions run outside Python's global lock, so threads are enough, and there is no process
to start or to send observations to. A back end that somebody chose by ``joblib.parallel_config`` and that has processes
gets whole tasks, and their blocks are done in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from joblib import Parallel, delayed
from joblib.parallel import get_active_backend

from sparsedl.process import undisturbed

__all__ = ["Share", "Task", "Workers", "in_turn", "mapped", "shared_rows", "workers"]

T = TypeVar("T")
R = TypeVar("R")
Task = tuple[Callable[..., T], *tuple[Any, ...]]
"""A function and its arguments, all but the last one."""

Share = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
"""``share(function, items)``, the results of a function for each item, in their order."""


def in_turn(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Return the results of a function for each item, one after the other.

    Examples
    --------
    >>> in_turn(abs, [-1, 2])
    [1, 2]
    """
    return [function(item) for item in items]


def shared_rows(
    share: Share, function: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor, size: int
) -> torch.Tensor:
    """Return what a function makes of the rows of a tensor, so many at once."""
    if len(rows) <= size:
        return function(rows)
    return torch.cat(share(function, rows.split(size)))


class Workers:
    """What tasks run on, and the blocks of each: here one after the other.

    Attributes
    ----------
    share : callable
        `Share` for the blocks of a task.
    """

    share: Share = staticmethod(in_turn)

    def run(self, tasks: Sequence[Task[T]]) -> list[T]:
        """Return the results of tasks, each a function and its arguments; ``share`` is the last argument of each."""
        return [task(*arguments, self.share) for task, *arguments in tasks]


class _Processes(Workers):
    """Those of joblib's back end."""

    def __init__(self, n_jobs: int | None) -> None:
        self._n_jobs = n_jobs

    def run(self, tasks: Sequence[Task[T]]) -> list[T]:
        if len(tasks) == 1:
            return super().run(tasks)
        return Parallel(n_jobs=self._n_jobs)(delayed(task)(*arguments, in_turn) for task, *arguments in tasks)


class _Threads(Workers):
    """Threads of this process: one that has no task left takes blocks of the others'."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool, self.share = pool, self._share

    def run(self, tasks: Sequence[Task[T]]) -> list[T]:
        futures = [self._pool.submit(_undisturbed, task, *arguments, self.share) for task, *arguments in tasks]
        return [future.result() for future in futures]

    def _share(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        futures = [self._pool.submit(_undisturbed, function, item) for item in items[1:]]
        results = {0: function(items[0])} if items else {}
        # What nobody has begun is done here, from the end: others begin at the front. Nobody waits for a free worker.
        for index in range(len(items) - 1, 0, -1):
            if futures[index - 1].cancel():
                results[index] = function(items[index])
        return [results[index] if index in results else futures[index - 1].result() for index in range(len(items))]


def _undisturbed(function: Callable[..., Any], *arguments: Any) -> Any:
    with undisturbed():
        return function(*arguments)


@contextmanager
def workers(n_jobs: int | None) -> Iterator[Workers]:
    """Yield the workers of ``n_jobs``, as joblib counts them: threads unless somebody chose another back end.

    None is the number of ``joblib.parallel_config``, or one.

    Examples
    --------
    >>> with workers(2) as two:
    ...     two.run([(lambda base, share: share(lambda x: base + x, [1, 2, 3]), 10)])
    [[11, 12, 13]]
    """
    backend, _ = get_active_backend(prefer="threads")
    _, configured = get_active_backend()  # who prefers threads is told of one where no back end was chosen
    n_workers = backend.effective_n_jobs(configured if n_jobs is None else n_jobs)
    if n_workers == 1:
        yield Workers()
    elif not getattr(backend, "supports_sharedmem", False):
        yield _Processes(n_jobs)
    else:
        pool = ThreadPoolExecutor(n_workers, thread_name_prefix="sparsedl")
        try:
            yield _Threads(pool)
        finally:
            pool.shutdown(cancel_futures=True)


def mapped(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the results of a function for each item, shared by the threads of ``joblib.parallel_config`` if there are.

    For what is too small to send to another process, and comes in parts that do not depend on the number of workers.

    Examples
    --------
    >>> mapped(abs, [-1, 2])
    [1, 2]
    """
    those = list(items)
    if len(those) < 2:
        return in_turn(function, those)
    with workers(None) as here:
        return here.share(function, those)

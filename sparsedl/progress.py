"""A progress bar when asked for, and nothing otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(enabled: bool, total: int, description: str) -> Iterator[Callable[[int, str], None]]:
    """Yield ``report(done, note)``, which moves a bar drawn by rich on the standard error stream.

    Parameters
    ----------
    enabled : bool
        When false, ``report`` does nothing and rich is not imported.
    total : int
        What ``done`` counts up to.
    description : str
        Text before the bar.

    Raises
    ------
    ImportError
        If the bar is wanted and rich is missing.
    """
    if not enabled:
        yield lambda done, note: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError as error:
        raise ImportError("verbose=True draws its bar with rich: pip install 'sparsedl[progress]'") from error
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total, note="")
        yield lambda done, note: bar.update(task, completed=done, note=note)

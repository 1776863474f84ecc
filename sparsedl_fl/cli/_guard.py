"""The end of every command: its exit status, and one line for an error."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from sparsedl_fl.cli._options import BAD_USAGE, INTERRUPTED, OPTIONS

__all__ = ["DEBUG", "guarded"]

DEBUG = "SPARSEDL_DEBUG"
"""Environment variable with which errors come with their traceback."""


def guarded(options: argparse.Namespace) -> int:
    """Run a command; whatever it raises becomes a line on the standard error, and `BAD_USAGE`.

    A call of ``exit`` inside is an error as well: a user's code may not decide what an audit says.
    """
    from sparsedl_fl.wording import arguments_said_as

    for stream in (sys.stdout, sys.stderr):  # a name that a terminal has no letters for is no error
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with arguments_said_as(OPTIONS), _notes():
            status = options.run(options)
            sys.stdout.flush()
            return status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output is gone; without this the interpreter would report it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD_USAGE
    except BaseException as error:
        _say(error)
        raise SystemExit(BAD_USAGE) from (error if os.environ.get(DEBUG) else None)


def _say(error: BaseException) -> None:
    """Print an error in a line."""
    from sparsedl_fl.wording import escaped, first_line

    if os.environ.get(DEBUG):
        traceback.print_exception(error)

    if isinstance(error, ValueError | TypeError | ImportError):
        text = " ".join(str(error).split("\n")) or type(error).__name__
    elif isinstance(error, MemoryError):
        text = f"not enough memory: {error or 'the model or a file is too large for this machine'}"
    elif isinstance(error, OSError):
        text = f"{error.filename}: {error.strerror}" if error.filename else first_line(error)
    else:
        text = f"{first_line(error)}; this should not happen, please report it ({DEBUG}=1 shows where)"
    print(f"error: {escaped(text)}", file=sys.stderr)


@contextmanager
def _notes() -> Iterator[None]:
    """Say each warning once, in a line that begins with "note:"."""
    from sparsedl_fl.wording import escaped

    seen = set()

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        text = escaped(" ".join(str(message).split("\n")))
        if text not in seen:
            seen.add(text)
            print(f"note: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        # Others speak to programmers: of numbers that overflow inside, or of names that will be gone.
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield

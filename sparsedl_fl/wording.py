"""How messages read: a user's names of arguments, and text from files that cannot control a terminal or a page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

__all__ = [
    "argument",
    "arguments_said_as",
    "escaped",
    "first_line",
    "installs",
    "argument_with",
    "is_option",
    "pass_example",
    "plain_json",
]

_NAMES: ContextVar[Mapping[str, str]] = ContextVar("names", default=MappingProxyType({}))


def argument(name: str) -> str:
    """Return the user's name of an argument: its name in Python, or its option on the command line.

    Examples
    --------
    >>> argument("batch_size")
    'batch_size'
    >>> with arguments_said_as({"batch_size": "--batch-size"}):
    ...     argument("batch_size")
    '--batch-size'
    """
    return _NAMES.get().get(name, name)


def is_option(name: str) -> bool:
    """Return whether the user gives an argument on the command line."""
    return argument(name).startswith("--")


def argument_with(name: str, value: object) -> str:
    """Return an argument with what the user gave for it.

    Examples
    --------
    >>> argument_with("layers", "fc9")
    "layers='fc9'"
    """
    return f"{argument(name)} {value}" if is_option(name) else f"{name}={value!r}"


def pass_example() -> str:
    """Return the advice to give an input of the model.

    Examples
    --------
    >>> pass_example()
    'pass example=, an input of the model'
    """
    return f"pass {argument('example')}{'' if is_option('example') else '='}, an input of the model"


@contextmanager
def installs(what: str, extra: str) -> Iterator[None]:
    """Make the error of an import inside name what needs it, and the extra that installs it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{what}: pip install 'sparsedl[{extra}]'") from error


@contextmanager
def arguments_said_as(names: Mapping[str, str]) -> Iterator[None]:
    """Let messages use other names of arguments within a context."""
    token = _NAMES.set(names)
    try:
        yield
    finally:
        _NAMES.reset(token)


def escaped(text: object) -> str:
    r"""Return text with invisible characters escaped: controls, line breaks, changes of direction.

    Examples
    --------
    >>> print(escaped("a\x1b[2Jb\n\u202ec"))
    a\x1b[2Jb\n\u202ec
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def first_line(error: BaseException) -> str:
    """Return the class and the first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__


def plain_json(data: Any) -> str:
    r"""Return data as indented JSON, with invisible characters in its text escaped; its values stay the same.

    Examples
    --------
    >>> print(plain_json(["\x1b\u202eé"]))
    [
      "\u001b\u202eé"
    ]
    """
    text = json.dumps(data, indent=2, ensure_ascii=False)
    return re.sub(r"[^\x20-\x7e\n]", lambda found: _as_json(found[0]), text)


def _as_json(character: str) -> str:
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else json.dumps(character)[1:-1]

"""Options: what they may be, how messages call them, a file that has them; and what exit statuses mean."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

__all__ = ["BAD_USAGE", "INTERRUPTED", "OPTIONS", "SEEDS", "Parser", "decay", "number", "read_config", "whole"]

BAD_USAGE = 2
"""Exit status, as argparse has it; 1 means that something was recovered, and nothing else."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""

SAME = ("batch_size", "force", "key", "kind", "layers", "learning_rate", "loss", "momentum", "noise_level", "optimizer",
        "others", "out", "records", "vocabulary", "weight_decay", "weights")  # fmt: skip
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in SAME} | {
    "after": "UPDATE",
    "before": "MODEL",
    "example": "--input-shape, --input-ids or --example-input",
    "inputs": "--data",
    "layer": "--layer",
    "max_effort": "--effort",
    "max_seconds": "--seconds",
    "mode": "--eval",
    "n_steps": "--local-steps",
}
"""Names of the package's arguments on the command line."""

SEEDS = 2**32 - 1
"""The largest seed that NumPy takes."""


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line, and where help is."""

    def error(self, message: str) -> None:
        """Print what is wrong, and exit."""
        from sparsedl_fl.wording import escaped

        print(f"error: {escaped(message)} ({self.prog} --help lists the options)", file=sys.stderr)
        raise SystemExit(BAD_USAGE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse arguments; a file may also come after options, where argparse takes it for one too many."""
        options, left = super().parse_known_args(args, namespace)
        for action in self._actions:
            is_missing = not action.option_strings and action.nargs == "?" and not getattr(options, action.dest, True)
            if is_missing and left and not left[0].startswith("-"):
                setattr(options, action.dest, left.pop(0))
        return options, left


def whole(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """Return a reader of whole numbers in a range."""

    def read(text: str) -> int:
        with suppress(ValueError):
            if least <= int(text) <= (math.inf if most is None else most):
                return int(text)
        upper = "" if most is None else f" and at most {most}"
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}{upper}, got {text!r}")

    return read


def number(least: float = 0.0, *, is_above: bool = False, below: float = math.inf) -> Callable[[str], float]:
    """Return a reader of finite numbers in a range, with its lower bound unless it has to be above that."""

    def read(text: str) -> float:
        with suppress(ValueError):
            value = float(text)
            if least <= value < below and not (is_above and value == least):
                return value
        start = "above" if is_above else "of at least"
        upper = f" and below {below:g}" if math.isfinite(below) else ""
        raise argparse.ArgumentTypeError(f"must be a number {start} {least:g}{upper}, got {text!r}")

    return read


def decay(text: str) -> float | None:
    """Read a weight decay; "find" is None."""
    if text == "find":
        return None
    try:
        return number()(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; 'find' estimates it from the rank") from None


def read_config(parser: argparse.ArgumentParser, arguments: Sequence[str] | None, command: str) -> None:
    """Take the defaults of a command's options from the file that ``--config`` names, and check them."""
    finder = Parser(add_help=False, prog=parser.prog)
    finder.add_argument("--config")
    path = finder.parse_known_args(arguments)[0].config
    if path is None:
        return
    import tomllib

    try:
        with open(path, "rb") as file:
            given = tomllib.load(file)
    except (OSError, ValueError, RecursionError) as error:
        parser.error(f"--config {path}: {error}")
    given = given.get(command, given)
    if not isinstance(given, dict):
        parser.error(f"--config {path}: [{command}] must be a table of options, got {given!r}")
    actions = {name.strip("-").replace("-", "_"): action for action in parser._actions
               for name in action.option_strings or [action.dest] if action.dest not in ("help", "config")}  # fmt: skip
    for name, value in given.items():
        action = actions.get(name.replace("-", "_"))
        if action is None:
            if isinstance(value, dict):  # a table for another command
                continue
            parser.error(f"--config {path}: there is no option {name!r}; there are {sorted(actions)}")
        try:
            parser.set_defaults(**{action.dest: _converted(action, value)})
        except argparse.ArgumentTypeError as error:
            parser.error(f"--config {path}: {name} {error}")


def _converted(action: argparse.Action, value: object) -> object:
    """Return a value of a file as the option would have it."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise argparse.ArgumentTypeError(f"must be true or false, got {value!r}")
        return action.const if value else action.default
    if action.nargs == "+":
        if not isinstance(value, list) or not value:
            raise argparse.ArgumentTypeError(f"must be a list with something in it, got {value!r}")
        return [_one(action, part) for part in value]
    return _one(action, value)


def _one(action: argparse.Action, value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise argparse.ArgumentTypeError(f"must be a text or a number, got {value!r}")
    found = action.type(str(value)) if callable(action.type) else str(value)
    if action.choices is not None and found not in action.choices:
        raise argparse.ArgumentTypeError(f"must be one of {sorted(action.choices)}, got {value!r}")
    return found

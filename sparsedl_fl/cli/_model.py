"""Options that every command about a user's own model shares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sparsedl_fl.cli._extras import BAD_USAGE

__all__ = ["add_model_arguments", "clear_errors", "input_of_shape", "read_config", "steps_shown"]


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, its weights, the shape of its input, and the loss."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="package.module:function or file.py:function that "
                        "returns the torch module")  # fmt: skip
    parser.add_argument("--weights", metavar="FILE", help="its weights, .safetensors or .pt (tensors alone)")
    parser.add_argument("--input-shape", metavar="N", nargs="+", type=int, help="shape of one input, such as 3 32 32 "
                        "(default: made up from the layers)")  # fmt: skip
    parser.add_argument("--loss", metavar="NAME", help="cross_entropy, binary_cross_entropy, mse, or package.module:"
                        "function of outputs and labels (default: cross-entropy)")  # fmt: skip
    parser.add_argument("--config", metavar="FILE", help="TOML file with options by their names; the command line wins")


def read_config(parser: argparse.ArgumentParser, arguments: Sequence[str] | None, command: str) -> None:
    """Take the defaults of a command's options from the file that ``--config`` names."""
    finder = argparse.ArgumentParser(add_help=False)
    finder.add_argument("--config")
    path = finder.parse_known_args(arguments)[0].config
    if path is None:
        return
    import tomllib

    try:
        with open(path, "rb") as file:
            given = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        parser.error(f"--config {path}: {error}")
    given = given.get(command, given)
    actions = {action.dest: action for action in parser._actions if action.dest not in ("help", "config")}
    for name, value in given.items():
        action = actions.get(name.replace("-", "_"))
        if action is None:
            if isinstance(value, dict):  # a table for another command
                continue
            parser.error(f"--config {path}: there is no option {name!r}; there are {sorted(actions)}")
        for part in value if isinstance(value, list) else [value]:
            if action.choices is not None and part not in action.choices:
                parser.error(f"--config {path}: {name} must be one of {sorted(action.choices)}, got {part!r}")
        parser.set_defaults(**{action.dest: value})


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn what is wrong with a user's files and options into a sentence and exit status 2."""
    try:
        yield
    except (ValueError, TypeError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(BAD_USAGE) from error


def input_of_shape(shape: Sequence[int] | None) -> object:
    """Return made-up inputs of a shape, or None for none."""
    if shape is None:
        return None
    import torch

    if min(shape) < 1:
        raise ValueError(f"--input-shape must be positive numbers, got {list(shape)}")
    return torch.randn((2, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.float32)


def loss_of(name: str | None) -> object:
    """Return a loss by its name, or the user's own."""
    if name is None or ":" not in name:
        from sparsedl_fl.losses import LOSSES

        if name is not None and name not in LOSSES:
            raise ValueError(f"--loss must be one of {sorted(LOSSES)} or package.module:function, got {name!r}")
        return name
    from sparsedl_fl.audit.files import load_object

    return load_object(name, "--loss")


@contextmanager
def steps_shown(enabled: bool) -> Iterator[Callable[[str], None]]:
    """Show what is going on: a line that moves where somebody looks, nothing else."""
    try:
        from rich.console import Console
    except ImportError:
        yield lambda line: None
        return
    console = Console(stderr=True)
    if not enabled or not console.is_terminal:
        yield lambda line: None
        return
    with console.status("looking at the model") as status:
        yield lambda line: status.update(line)

"""What several commands share: options about a user's own model, a folder for reports, and what is going on."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sparsedl_fl.cli._options import whole

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from rich.console import Console
    from torch import nn

__all__ = ["add_model_arguments", "console", "example_of", "folder_of", "loss_of", "model_of", "require", "steps_shown"]

MOST_TOKENS = 2**20


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, its weights and mode, an input of it, and the loss."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="package.module:function or file.py:function that "
                        "returns the torch module")  # fmt: skip
    parser.add_argument("--weights", metavar="FILE", help="its weights: .safetensors, .npz or .pt (tensors alone)")
    parser.add_argument("--key", metavar="NAME", help="entry of a checkpoint that has several (default: the one that "
                        "fits the model)")  # fmt: skip
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--eval", dest="mode", action="store_const", const="eval", help="the client ran the model in "
                       "evaluation mode")  # fmt: skip
    modes.add_argument("--train", dest="mode", action="store_const", const="train", help="the client ran the model in "
                       "training mode (default: the mode in which MODEL returns it)")  # fmt: skip
    inputs = parser.add_mutually_exclusive_group()
    inputs.add_argument("--input-shape", metavar="N", nargs="+", type=whole(), help="shape of one input, such as "
                        "3 32 32, with or without the batch (default: made up from the layers)")  # fmt: skip
    inputs.add_argument("--input-ids", metavar="LENGTH", type=whole(most=MOST_TOKENS), help="the input is as many "
                        "token ids")  # fmt: skip
    inputs.add_argument("--example-input", metavar="FILE", help="one input of the model, any numbers: .pt, .npz, .npy "
                        "or .safetensors")  # fmt: skip
    parser.add_argument("--loss", metavar="NAME", help="cross_entropy, binary_cross_entropy, mse, or package.module:"
                        "function of outputs and labels; mse is of labels as unit vectors (default: "
                        "cross-entropy is assumed)")  # fmt: skip
    parser.add_argument("--config", metavar="FILE", help="TOML file with options by their names; the command line wins")


def model_of(options: argparse.Namespace, spec: str, weights: str | Path | None) -> nn.Module:
    """Return the model, with its weights and in the client's mode."""
    from sparsedl_fl.audit.files import load_model

    model = load_model(spec, weights, key=options.key)
    if options.mode is not None:
        model.train(options.mode == "train")
    return model


def example_of(options: argparse.Namespace, model: nn.Module, shape: list[int] | None = None) -> torch.Tensor | None:
    """Return an input of the model, as the options say, on which it runs; None where they say nothing.

    Raises
    ------
    ValueError
        If they say several things, or the model does not run on what they say.
    """
    from sparsedl_fl.tracing.described_inputs import fitting_example, ids_of_length, numbers_of_shape

    names = ("input_shape", "input_ids", "example_input")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) is not None]
    if len(given) > 1:
        raise ValueError(f"only one of {', '.join(given)} can say what an input is")
    shape = options.input_shape or shape
    readings: Iterable[torch.Tensor]
    if options.input_ids is not None:
        name, readings = f"--input-ids {options.input_ids}", ids_of_length(model, options.input_ids)
    elif options.example_input is not None:
        from sparsedl_fl.audit.files import load_example

        name = f"--example-input {options.example_input}"
        try:
            readings = load_example(options.example_input)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    elif shape is not None:
        name, readings = f"--input-shape {' '.join(map(str, shape))}", numbers_of_shape(model, shape)
    else:
        return None
    return fitting_example(model, readings, name)


def loss_of(name: str | None) -> str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """Return a loss by its name, or the user's own."""
    from sparsedl_fl.audit.files import load_object
    from sparsedl_fl.layers.losses import LOSSES

    if name is None or name in LOSSES:
        return name
    if ":" not in name:
        raise ValueError(f"--loss must be one of {sorted(LOSSES)} or package.module:function, got {name!r}")
    found = load_object(name, "--loss")
    if not callable(found):
        raise ValueError(f"--loss {name!r} must be a function of outputs and labels, got {type(found).__name__}")
    return found


def require(extra: str, *modules: str) -> None:
    """Raise ``ImportError`` that says what to install, unless all modules are there."""
    for module in modules:
        if find_spec(module) is None:
            raise ImportError(f"this command needs {module}: pip install 'sparsedl[{extra}]'")


def folder_of(options: argparse.Namespace, names: tuple[str, ...], *modules: str) -> Path | None:
    """Return the folder of ``--out``, made, in which files of these names may be written; None where there is none."""
    if options.out is None:
        return None
    from sparsedl_fl.audit.writing import check_folder, check_target

    require("audit", *modules)
    folder = check_folder(options.out)
    for name in names:
        check_target(folder / name, is_forced=options.force)
    return folder


def console(enabled: bool) -> Console | None:
    """Return a console for progress, if that is wanted, rich is installed and the output is a terminal."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    found = Console(stderr=True)
    return found if enabled and found.is_terminal else None


@contextmanager
def steps_shown(enabled: bool) -> Iterator[Callable[[str], None]]:
    """Show progress in a line on a terminal, and nothing elsewhere."""
    screen = console(enabled)
    if screen is None:
        yield lambda line: None
        return
    from rich.markup import escape

    from sparsedl_fl.wording import escaped

    with screen.status("inspecting the model") as status:
        yield lambda line: status.update(escape(escaped(line)))

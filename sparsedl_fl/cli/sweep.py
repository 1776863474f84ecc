"""Simulate clients on a model, with batch sizes, local steps, noise and quantisation, and attack what each would send.

Records go to the folder of --out, and the same command goes on from there after an interruption (exit status 130). Exit
status 0 says that the sweep ended, whatever it found; 2 is bad usage. A setting at which these attacks recovered
nothing may still leak: in other batches, or to other attacks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sparsedl_fl.cli._model import add_model_arguments, console, example_of, folder_of, loss_of, model_of
from sparsedl_fl.cli._options import INTERRUPTED, SEEDS, number, whole

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from sparsedl_fl.audit import Setting, SweepResult

HELP = "simulate clients, and find the setting at which the leak stops"

FROM = "nothing recovered by these attacks from {} on"

NONE = "not stopped by the settings tried (a leak, or out of range)"

RECORDS, RESULTS = "records.jsonl", ("sweep.json", "sweep.md", "sweep.png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_model_arguments(parser)
    parser.add_argument("--example", action="store_true", help="take the model and the digits that ship with this")
    parser.add_argument("--data", metavar="FILE", help=".npz or .safetensors with x and y (default: Gaussian numbers)")
    parser.add_argument(
        "--defaults", action="store_true", help="try the stock settings of Flower, NVFLARE, FLIP, Opacus"
    )
    parser.add_argument("--exclude", nargs="+", metavar="REGEX", help="try these alone: updates without the tensors in "
                        "whose names each is found (NVFLARE's ExcludeVars)")  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="DEFENCE", help="defences whose name contains one of these")
    parser.add_argument("--batch-size", type=whole(), default=16, help="records of a client (default: 16)")
    parser.add_argument("--batches", type=whole(), default=3, help="batches a setting (default: 3)")
    parser.add_argument("--rounds", type=whole(0), default=0, help="rounds of training to measure the loss of "
                        "accuracy (default: 0, none)")  # fmt: skip
    parser.add_argument("--effort", type=number(), default=20.0, help="budget of the searches of an audit, about "
                        "seconds on one core, but the same on any machine (default: 20)")  # fmt: skip
    parser.add_argument("--seconds", type=number(), help="cap on the searches in seconds, instead (default: none)")
    parser.add_argument("--jobs", type=whole(), default=1, help="audits at the same time (default: 1)")
    parser.add_argument("--backend", choices=("loky", "threading", "multiprocessing", "dask", "ray"), default="loky",
                        help="of joblib (default: loky)")  # fmt: skip
    parser.add_argument("--seed", type=whole(0, SEEDS), default=0, help="seed of the first batch (default: 0)")
    parser.add_argument("--out", metavar="FOLDER", help=f"where {RECORDS}, {', '.join(RESULTS)} go")
    parser.add_argument("--force", action="store_true", help="overwrite files there that are no results of ours")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(options: argparse.Namespace) -> int:
    """Run the sweep."""
    folder = folder_of(options, (RECORDS, *RESULTS), "matplotlib")
    try:
        result = _swept(options, folder)
    except KeyboardInterrupt:
        again = f"; the same command goes on from the records in {folder}" if folder else ""
        print(f"interrupted{again}", file=sys.stderr)
        return INTERRUPTED
    if folder is not None:
        _write(result, folder)
    print(result.to_json() if options.json else result.to_table(), end="")
    if not options.json:
        for defence, setting in result.weakest.items():
            print(f"{defence}: {FROM.format(setting) if setting else NONE}")
    return 0


def _write(result: SweepResult, folder: Path) -> None:
    """Write the result as JSON, as a table and as a picture, each with a mark that it is ours."""
    import io

    from sparsedl_fl.audit.writing import MARK, write_whole

    result.to_json(folder / "sweep.json")
    write_whole(folder / "sweep.md", f"<!-- {MARK} -->\n\n{result.to_table()}")
    picture = io.BytesIO()
    result.plot().figure.savefig(picture, dpi=150, format="png", metadata={"Software": MARK})
    write_whole(folder / "sweep.png", picture.getvalue())


def _swept(options: argparse.Namespace, folder: Path | None) -> SweepResult:
    """Load what the options name, and sweep."""
    from functools import partial

    import joblib
    from torch.nn.functional import cross_entropy

    from sparsedl_fl.audit import STOCK, default_settings, example, sweep
    from sparsedl_fl.audit.files import load_records
    from sparsedl_fl.layers.losses import mean_loss

    loss, inputs, labels = loss_of(options.loss), None, None
    loss = cross_entropy if loss is None else loss if callable(loss) else partial(mean_loss, loss)
    if options.example:
        model, (inputs, labels) = model_of(options, f"{example.__name__}:model", example.WEIGHTS), example.records()
    elif options.model is None:
        raise ValueError("MODEL is needed, or --example")
    else:
        model = model_of(options, options.model, options.weights)
    made_up = example_of(options, model)
    if options.data is not None:
        shape = None if made_up is None else tuple(made_up.shape[1:])
        inputs, labels = load_records(options.data, shape)
        inputs = inputs if made_up is None or made_up.is_floating_point() else inputs.long()
    most = 256 if inputs is None else min(len(inputs), 256)
    settings = STOCK if options.defaults else default_settings(options.batch_size, most=most)
    if options.exclude:
        settings = [_without(pattern, options.batch_size, model) for pattern in options.exclude]
    if options.only:
        settings = [one for one in settings if any(word in one.defence for word in options.only)]
        if not settings:
            raise ValueError(f"--only: no defence has one of {options.only} in its name")
    plan = {"n_batches": options.batches, "n_rounds": options.rounds, "random_state": options.seed}
    plan |= {"max_effort": options.effort, "max_seconds": options.seconds}
    plan |= {"out": None if folder is None else folder / RECORDS}
    with _progress(not options.json) as report, joblib.parallel_config(options.backend, n_jobs=options.jobs):
        return sweep(model, inputs, labels, settings=settings, example=made_up, loss=loss, **plan, report=report)


def _without(pattern: str, batch_size: int, model: nn.Module) -> Setting:
    """Return the setting of a client that leaves tensors out of its update, by their names."""
    import re

    from sparsedl_fl.audit import Setting
    from sparsedl_fl.simulation import ExcludeVars, SimulatedClient

    try:
        left_out = [name for name, _ in model.named_parameters() if re.search(pattern, name)]
    except re.error as error:
        raise ValueError(f"--exclude {pattern} is no regular expression: {error}") from error
    if not left_out:
        names = ", ".join(name for name, _ in model.named_parameters())
        raise ValueError(f"--exclude {pattern} is in none of the names of the model's tensors: {names}")
    return Setting(
        "tensors left out", pattern, SimulatedClient(batch_size=batch_size, update_filter=ExcludeVars(pattern))
    )


@contextmanager
def _progress(enabled: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar, where rich is there and somebody looks; what it yields moves it on."""
    screen = console(enabled)
    if screen is None:
        yield None
        return
    from rich.progress import Progress

    with Progress(console=screen) as bar:
        task = bar.add_task("audits", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

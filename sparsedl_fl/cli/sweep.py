"""Simulate clients on a model with batch sizes, local steps, noise and quantisation, until nothing is recovered.

Records go to the folder of --out, and the same command goes on from there after an interruption.
"""

from __future__ import annotations

import argparse

from sparsedl_fl.cli._extras import require
from sparsedl_fl.cli._model import add_model_arguments, clear_errors, input_of_shape, loss_of

HELP = "simulate clients, and see at which setting the leak stops"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_model_arguments(parser)
    parser.add_argument("--example", action="store_true", help="take the model and the digits that ship with this")
    parser.add_argument("--data", metavar="FILE", help=".npz or .safetensors with x and y (default: Gaussian numbers)")
    parser.add_argument(
        "--defaults", action="store_true", help="try the stock settings of Flower, NVFLARE, FLIP, Opacus"
    )
    parser.add_argument("--only", nargs="+", metavar="DEFENCE", help="defences whose name contains one of these")
    parser.add_argument("--batch-size", type=int, default=16, help="records of a client (default: 16)")
    parser.add_argument("--batches", type=int, default=3, help="batches a setting (default: 3)")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of training to see what a setting costs in "
                        "accuracy (default: 0, none)")  # fmt: skip
    parser.add_argument("--effort", type=float, default=20, help="budget of the searches of an audit, about seconds on "
                        "one core, counted from sizes (default: 20)")  # fmt: skip
    parser.add_argument("--seconds", type=float, help="cap on them by the clock, in its place (default: none)")
    parser.add_argument("--jobs", type=int, default=1, help="audits at the same time (default: 1)")
    parser.add_argument("--backend", default="loky", help="of joblib: loky, dask, ray, threading (default: loky)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first batch (default: 0)")
    parser.add_argument("--out", metavar="FOLDER", help="where records, sweep.json, sweep.md and sweep.png go")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(options: argparse.Namespace) -> int:
    """Run the sweep."""
    from pathlib import Path

    folder = None if options.out is None else Path(options.out)
    if folder is not None:
        require("audit", "matplotlib")
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with clear_errors():
            result = _swept(options, folder)
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on from the records in {folder}" if folder else "interrupted")
        return 130
    if folder is not None:
        result.to_json(folder / "sweep.json")
        (folder / "sweep.md").write_text(result.to_table(), encoding="utf-8")
        result.plot().figure.savefig(folder / "sweep.png", dpi=150)
    print(result.to_json() if options.json else result.to_table(), end="")
    if not options.json:
        for defence, setting in result.weakest.items():
            print(f"{defence}: nothing recovered by these attacks from {setting or 'none of the settings tried'} on")
    return 0


def _swept(options: argparse.Namespace, folder: object) -> object:
    """Load what the options name, and sweep."""
    import joblib
    from torch.nn.functional import cross_entropy

    from sparsedl_fl.audit import STOCK, default_settings, example, sweep
    from sparsedl_fl.audit.files import load_model, load_records

    if options.example:
        model, (inputs, labels) = load_model(f"{example.__name__}:model", example.WEIGHTS), example.records()
    elif options.model is None:
        raise ValueError("MODEL is needed, or --example")
    else:
        model = load_model(options.model, options.weights)
        inputs, labels = (None, None) if options.data is None else load_records(options.data, options.input_shape)
    most = 1024 if inputs is None else len(inputs)
    settings = STOCK if options.defaults else default_settings(options.batch_size, most=min(most, 256))
    if options.only:
        settings = [one for one in settings if any(word in one.defence for word in options.only)]
        if not settings:
            raise ValueError(f"--only: no defence has one of {options.only} in its name")
    loss = loss_of(options.loss)
    with _progress(not options.json) as report, joblib.parallel_config(options.backend, n_jobs=options.jobs):
        return sweep(
            model,
            inputs,
            labels,
            settings=settings,
            n_batches=options.batches,
            example=input_of_shape(options.input_shape),
            loss=loss if callable(loss) else cross_entropy if loss is None else _by_name(loss),
            max_effort=options.effort,
            max_seconds=options.seconds,
            n_rounds=options.rounds,
            random_state=options.seed,
            out=None if folder is None else folder / "records.jsonl",
            report=report,
        )


def _by_name(name: str) -> object:
    """Return a loss by its name, as a mean."""
    from functools import partial

    from sparsedl_fl.losses import mean_loss

    return partial(mean_loss, name)


def _progress(enabled: bool) -> object:
    """Return a progress bar, where rich is there and somebody looks."""
    from contextlib import nullcontext

    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        return nullcontext()
    console = Console(stderr=True)
    if not enabled or not console.is_terminal:
        return nullcontext()

    class Bar(Progress):
        def __enter__(self) -> object:
            super().__enter__()
            task = self.add_task("audits", total=None)
            return lambda done, total: self.update(task, completed=done, total=total)

    return Bar(console=console)

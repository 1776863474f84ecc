"""Attack one update of a client, and report what came back.

Exit status: 0 nothing recovered, 1 something was, 2 bad usage, 3 no conclusion; with --fail-on, 1 for the verdicts
named and 0 for the others. Ctrl-C keeps what was found.
"""

from __future__ import annotations

import argparse
import sys

from sparsedl_fl.cli._extras import require
from sparsedl_fl.cli._model import add_model_arguments, clear_errors, input_of_shape, loss_of, steps_shown

HELP = "attack one update, and write a report"

VERDICTS = {
    "recovered": "RECOVERED",
    "partly": "PARTLY",
    "not-recovered": "NOT RECOVERED",
    "out-of-range": "OUT OF RANGE",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_model_arguments(parser)
    parser.add_argument("update", metavar="UPDATE", nargs="?", help="what the client sent: .safetensors or .pt")
    parser.add_argument("--example", action="store_true", help="audit the model and the update that ship with this")
    parser.add_argument("--kind", choices=("auto", "gradient", "weights", "delta"), default="auto",
                        help="what UPDATE is (default: weights where near the model's own, else gradient)")  # fmt: skip
    parser.add_argument("--learning-rate", type=float, help="the client's, for weights or a delta")
    parser.add_argument("--local-steps", type=int, help="the client's optimiser steps, where they are known")
    parser.add_argument("--momentum", type=float, default=0.0, help="the client's (default: 0)")
    parser.add_argument("--weight-decay", default="0", help="the client's, or 'find' (default: 0)")
    parser.add_argument("--optimizer", default="sgd", help="the client's; any but sgd is out of range (default: sgd)")
    parser.add_argument("--batch-size", type=int, help="inputs in the batch (default: found from the gradient)")
    parser.add_argument("--effort", type=float, help="budget of the searches of all layers together, about seconds on "
                        "one core, counted from sizes (default: none)")  # fmt: skip
    parser.add_argument("--seconds", type=float, help="cap on them by the clock, in its place (default: none)")
    parser.add_argument("--layers", nargs="+", metavar="NAME", help="layers to attack (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the search (default: 0)")
    parser.add_argument("--out", metavar="FOLDER", help="where report.html and report.json go")
    parser.add_argument("--show-samples", action="store_true", help="put what was recovered into the report")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--fail-on", nargs="+", choices=sorted(VERDICTS), help="verdicts that exit with status 1")


def run(options: argparse.Namespace) -> int:
    """Audit the update."""
    if options.out:
        require("audit", "jinja2", *(["matplotlib"] if options.show_samples else []))
    with clear_errors():
        result = _audited(options)
    if options.out:
        from pathlib import Path

        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        result.to_html(folder / "report.html", show_samples=options.show_samples)
        result.to_json(folder / "report.json", show_samples=options.show_samples)
    if options.json:
        print(result.to_json(show_samples=options.show_samples), end="")
    else:
        _print(result, options.out)
    if options.fail_on is None:
        return result.verdict.exit_status
    return int(str(result.verdict) in [VERDICTS[name] for name in options.fail_on])


def _audited(options: argparse.Namespace) -> object:
    """Load what the options name, and attack it."""
    import warnings
    from dataclasses import replace

    from sparsedl_fl.audit import audit_model, example, out_of_range
    from sparsedl_fl.audit.files import check_fixed, load_model, load_update
    from sparsedl_fl.inverter import GradientInverter
    from sparsedl_fl.models.updates import obstacle_of_optimizer

    shape = options.input_shape
    if options.example:
        spec, weights, update = f"{example.__name__}:model", str(example.WEIGHTS), str(example.UPDATE)
        shape = shape or [1, 8, 8]
    else:
        spec, weights, update = options.model, options.weights, options.update
        if spec is None or update is None:
            raise ValueError("MODEL and UPDATE are needed, or --example")
        if weights is None:
            check_fixed(spec)
    model = load_model(spec, weights)
    is_open = options.weight_decay == "find"
    client = {
        "n_steps": options.local_steps,
        "momentum": options.momentum,
        "weight_decay": None if is_open else float(options.weight_decay),
    }
    told = {"command": " ".join(["sparsedl-fl", *sys.argv[1:]]), "model_path": spec, "update_path": update}
    obstacle = obstacle_of_optimizer(options.optimizer)
    if obstacle:
        return out_of_range(model, obstacle, input_of_shape(shape), seed=options.seed, **told)
    sent = load_update(model, update, kind=options.kind, learning_rate=options.learning_rate, **client)
    inverter = GradientInverter(batch_size=options.batch_size, random_state=options.seed)
    with steps_shown(not options.json) as report, warnings.catch_warnings(record=True) as doubts:
        result = audit_model(
            model,
            sent.gradients,
            inverter,
            options.layers,
            input_of_shape(shape),
            loss_of(options.loss),
            learning_rate=sent.learning_rate,
            max_effort=options.effort,
            max_seconds=options.seconds,
            report=report,
        )
    for text in dict.fromkeys(str(doubt.message) for doubt in doubts):
        print(f"note: {text}", file=sys.stderr)
    return replace(result, context={**result.context, **told, "kind": sent.kind})


def _print(result: object, out: str | None) -> None:
    """Print the verdict, a line for each layer, and where the report is."""
    print(f"{result.verdict}: {result.reason}")
    for layer in result.layers:
        count = layer.count or layer.reason
        how = f" ({layer.source})" if layer.source else ""
        print(f"  {layer.name or '(model)'}: {layer.verdict}: {count}{how}")
    print(str(result.replay) if result.replay else f"not replayed: {result.replay_reason}")
    if out:
        print(f"report: {out}/report.html, {out}/report.json")

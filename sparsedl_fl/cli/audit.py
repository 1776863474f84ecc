"""Attack one update of a client, and report what was recovered.

Exit status: 0 a layer that carries the whole batch was in range, was attacked to the end and resisted (NOT RECOVERED),
1 something leaks (RECOVERED, PARTLY, LIKELY), 2 bad usage or unreadable files, 3 no conclusion (OUT OF RANGE), which is
no reassurance, 130 interrupted (Ctrl-C keeps what was found). --fail-on makes more of these 1, and none of them 0.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparsedl_fl.cli import members
from sparsedl_fl.cli._model import add_model_arguments, example_of, folder_of, loss_of, model_of, steps_shown
from sparsedl_fl.cli._options import INTERRUPTED, SEEDS, decay, number, whole

if TYPE_CHECKING:
    from sparsedl_fl.audit.membership import Membership
    from sparsedl_fl.audit.result import AuditResult

HELP = "attack one update, and write a report"

LABELS = "labels"

VERDICTS = ("recovered", "partly", "likely", "not-recovered", "out-of-range")
"""Names of verdicts for --fail-on."""

REPORTS = ("report.html", "report.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_model_arguments(parser)
    parser.add_argument("update", metavar="UPDATE", nargs="?", help="what the client sent: .safetensors, .npz or .pt")
    shipped = parser.add_mutually_exclusive_group()
    shipped.add_argument("--example", action="store_true", help="audit the model and the update that ship with this")
    shipped.add_argument("--example-cnn", action="store_true", help="the same with a convolutional model: to pictures")
    parser.add_argument("--kind", choices=("auto", "gradient", "weights", "delta"), default="auto",
                        help="what UPDATE is (default: weights where near the model's own, else gradient)")  # fmt: skip
    parser.add_argument("--learning-rate", type=number(is_above=True), help="the client's, for weights or a delta")
    parser.add_argument("--local-steps", type=whole(), help="the client's optimiser steps, where they are known")
    parser.add_argument("--momentum", type=number(below=1), default=0.0, help="the client's (default: 0)")
    parser.add_argument("--weight-decay", type=decay, default=0.0, help="the client's, or 'find' (default: 0)")
    parser.add_argument("--optimizer", default="sgd", help="the client's (default: sgd); of adam, adamw, adamax, "
                        "rmsprop and adagrad one step is in range, of others only token ids can be read")  # fmt: skip
    parser.add_argument("--batch-size", type=whole(), help="inputs in the batch (default: found from the gradient)")
    parser.add_argument("--noise-level", type=number(), help="standard deviation of the noise that the client adds to "
                        "each entry of a gradient (default: found from the gradient)")  # fmt: skip
    parser.add_argument("--effort", type=number(), help="budget of the searches of all layers together, about seconds "
                        "on one core, but the same on any machine; a search that it ends has no conclusion (default: "
                        "none)")  # fmt: skip
    parser.add_argument("--seconds", type=number(), help="cap on the searches in seconds, instead (default: none)")
    parser.add_argument("--layers", nargs="+", metavar="NAME", help="layers to attack; the report says nothing of "
                        "others (default: all)")  # fmt: skip
    parser.add_argument("--pictures", action=argparse.BooleanOptionalAction, help="go from features of a convolutional "
                        "model to its pictures, seconds for each (default: unless there is a cap); if asked for, also "
                        "where it takes the convolutions' gradients, minutes to an hour for each")  # fmt: skip
    parser.add_argument("--seed", type=whole(0, SEEDS), default=0, help="seed of the search (default: 0)")
    parser.add_argument("--records", metavar="FILE", help="records to test for membership, as of sparsedl-fl members: "
                        "a chapter of the report says which of them were trained on")  # fmt: skip
    parser.add_argument("--vocabulary", metavar="FILE", help="words of token ids: a text file with one a line, or JSON")
    parser.add_argument("--out", metavar="FOLDER", help=f"where {' and '.join(REPORTS)} go")
    parser.add_argument("--force", action="store_true", help="overwrite files there that are no reports of ours")
    parser.add_argument("--show-samples", action="store_true", help="put what was recovered into the report")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--fail-on", nargs="+", choices=sorted([*VERDICTS, LABELS]), help="what else exits with status "
                        "1: a verdict, or labels that the update shows")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Audit the update."""
    options.out = options.out or None
    folder = folder_of(options, REPORTS, "jinja2", *(["matplotlib"] if options.show_samples else []))
    vocabulary = None
    if options.vocabulary is not None:  # errors in it are reported before the work
        from sparsedl_fl.audit.files import load_vocabulary

        vocabulary = load_vocabulary(options.vocabulary)
    result = _audited(options)
    if folder is not None:
        result.to_html(folder / "report.html", show_samples=options.show_samples, vocabulary=vocabulary)
        result.to_json(folder / "report.json", show_samples=options.show_samples)
    if options.json:
        print(result.to_json(show_samples=options.show_samples), end="")
    else:
        _print(result, options.out)
    if result.is_interrupted:
        print("interrupted: this was found so far; of the other layers nothing can be concluded", file=sys.stderr)
        return INTERRUPTED
    return _exit_status(result, options.fail_on or ())


def _exit_status(result: AuditResult, fail_on: Sequence[str]) -> int:
    """Return the verdict's status, or 1 where the user wants more to fail; a leak is 1 in any case."""
    is_named = str(result.verdict).lower().replace(" ", "-") in fail_on
    is_label = LABELS in fail_on and len(result.labels_present) > 0
    is_member = result.membership is not None and result.membership.n_members > 0
    return 1 if is_named or is_label or is_member else result.verdict.exit_status


def _audited(options: argparse.Namespace) -> AuditResult:
    """Load what the options name, and attack it."""
    from dataclasses import replace

    from sparsedl_fl.audit import audit_model, example, out_of_range
    from sparsedl_fl.audit.files import check_fixed, load_after, load_update
    from sparsedl_fl.audit.first_step import audit_first_step, is_first_step
    from sparsedl_fl.inverter import GradientInverter
    from sparsedl_fl.layers.updates import obstacle_of_optimizer

    obstacle = obstacle_of_optimizer(options.optimizer)
    loss = loss_of(options.loss)
    spec, weights, update, shape = options.model, options.weights, options.update, None
    if options.example:
        spec, weights, update, shape = f"{example.__name__}:model", str(example.WEIGHTS), str(example.UPDATE), [1, 8, 8]
    elif options.example_cnn:
        spec, shape = f"{example.__name__}:convolutional", [1, 8, 8]
        weights, update = str(example.CONVOLUTIONAL_WEIGHTS), str(example.CONVOLUTIONAL_UPDATE)
    elif spec is None or update is None:
        raise ValueError("MODEL and UPDATE are needed, or --example or --example-cnn")
    elif weights is None:
        check_fixed(spec)
    model = model_of(options, spec, weights)
    client = {"n_steps": options.local_steps, "momentum": options.momentum, "weight_decay": options.weight_decay}
    facts = {"command": " ".join(["sparsedl-fl", *sys.argv[1:]]), "model_path": spec, "update_path": update}
    inputs = example_of(options, model, shape)
    inverter = GradientInverter(
        batch_size=options.batch_size, noise_level=options.noise_level, random_state=options.seed
    )
    budget: dict[str, Any] = {
        "max_effort": options.effort,
        "max_seconds": options.seconds,
        "pictures": options.pictures,
    }
    # The rows that changed show token ids whatever the optimiser, and at any learning rate.
    rate, client = (options.learning_rate or 1.0, {}) if obstacle else (options.learning_rate, client)
    sent = load_update(model, update, kind=options.kind, learning_rate=rate, key=options.key, **client)
    membership = None
    if options.records is not None:
        how: dict[str, Any] = {"kind": sent.kind, "key": options.key, "random_state": options.seed}
        membership = members.membership_of(model, inputs, update, options.records, **how)
    after = None
    if is_first_step(options.optimizer, options.local_steps) and options.learning_rate:
        after = load_after(model, update, kind=options.kind, key=options.key)
    if obstacle and after is None:
        found = out_of_range(model, obstacle, inputs, gradients=sent.gradients, seed=options.seed, **facts)
        return replace(
            found, context=_with_client(found.context, options, sent.kind, membership), membership=membership
        )
    budget |= {"layers": options.layers, "example": inputs, "loss": loss}
    with steps_shown(not options.json) as report:
        if after is None:
            rate = sent.learning_rate
            result = audit_model(model, sent.gradients, inverter, learning_rate=rate, **budget, report=report)
        else:
            step = (options.learning_rate, options.optimizer, inverter)
            decay = options.weight_decay
            result = audit_first_step(model, after, *step, weight_decay=decay, **budget, report=report)
    context = _with_client(result.context, options, sent.kind, membership)
    return replace(result, context={**context, **facts, "kind": sent.kind}, membership=membership)


def _with_client(
    context: Mapping[str, Any], options: argparse.Namespace, kind: str, membership: Membership | None
) -> dict[str, Any]:
    """Return facts of a run with what the options declare of the client; a gradient has no use for its training."""
    from sparsedl_fl.audit.declared import Assumed, with_more

    given: dict[str, Any] = {"kind": Assumed(f"{kind}, by its numbers") if options.kind == "auto" else kind}
    is_default = options.optimizer == "sgd" and not options.momentum and options.weight_decay == 0
    if kind != "gradient" or not is_default or options.learning_rate or options.local_steps:
        given |= {"optimizer": options.optimizer, "n_steps": options.local_steps, "momentum": options.momentum}
        given |= {"learning_rate": options.learning_rate, "weight_decay": options.weight_decay}
    if options.mode is None:
        given["mode"] = Assumed(f"{_mode_shown(context)}, as the function returns the model")
    if options.batch_size is not None:
        given["batch_size"] = options.batch_size
    if membership is not None:
        given["records"] = len(membership.is_member)
    return {**context, "declared": with_more(context["declared"], **given)}


def _mode_shown(context: Mapping[str, Any]) -> str:
    return next((entry["value"] for entry in context["declared"] if entry["name"] == "mode"), "any")


def _print(result: AuditResult, out: str | None) -> None:
    """Print the verdict, a line for each layer, and where the report is."""
    from sparsedl_fl.wording import escaped

    lines = [f"{result.verdict}: {result.reason}"]
    lines += [f"  {layer.name or '(model)'}: {layer.verdict}: {layer.summary}" for layer in result.layers]
    present = result.labels_present
    if present:
        condition = result.label_signs.condition
        number = f"{len(present)} label{'s' if len(present) != 1 else ''}"
        lines.append(f"{number} read from the update{f' ({condition})' if condition else ''}")
    if result.sentences:
        lines.append(f"text: {result.text.count}{'' if out else ' (in the report of --out, with --show-samples)'}")
    if result.membership is not None:
        lines.append(f"membership: {result.membership}")
    lines.append(str(result.replay) if result.replay else f"not replayed: {result.replay_reason}")
    if out:
        lines.append(f"report: {', '.join(f'{out}/{name}' for name in REPORTS)}")
    print("\n".join(map(escaped, lines)))

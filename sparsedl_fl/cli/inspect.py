"""Say what a model could leak, before any training: a row for each layer, with the largest batch in range."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sparsedl_fl.cli._model import add_model_arguments, example_of, model_of

if TYPE_CHECKING:
    from sparsedl_fl.models import LayerRow

HELP = "what a model could leak: a table of its layers"

COLUMNS = ("layer", "kind", "shape", "is fed", "followed by", "leaks by", "up to a batch of")

ALWAYS = (
    "A batch of one record leaks at every layer with a bias, and a larger one may leak by other attacks.",
    "Every classifier's update shows labels of its batch.",
)
"""Sentences below the table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(options: argparse.Namespace) -> int:
    """Inspect the model."""
    import dataclasses

    from sparsedl_fl.audit.text import reach_of_text
    from sparsedl_fl.models.inspection import inspect_model
    from sparsedl_fl.tracing.tracing import trace_model
    from sparsedl_fl.wording import escaped, pass_example, plain_json

    if options.model is None:
        raise ValueError("MODEL is missing: package.module:function or file.py:function")
    model = model_of(options, options.model, options.weights)
    trace = trace_model(model, example_of(options, model))
    rows, text = inspect_model(model, trace=trace), reach_of_text(model, trace.example)
    if options.json:
        shown = {"failure": trace.failure, "layers": [dataclasses.asdict(row) for row in rows]}
        print(plain_json(shown | {"text": None if text is None else dataclasses.asdict(text)}))
        return 0
    if trace.failure:
        failure = escaped(trace.failure)
        print(f"the model could not be run ({failure}): {pass_example()}; what follows each layer is not known")
    print("\n".join(map(escaped, [*_lines(rows), *([] if text is None else [str(text)])])))
    return 0


def _lines(rows: list[LayerRow]) -> list[str]:
    """Return the table of layers, with sentences on those out of range, and on all, below."""
    from sparsedl_fl.models.reach import LEAKS_BY

    table = [COLUMNS]
    for row in rows:
        shape = " x ".join(map(str, row.shape))
        most = "any" if row.attack == "rows" else str(row.largest_batch or (1 if row.attack else "-"))
        reach = (LEAKS_BY.get(row.attack, row.attack) or "-", most)
        table.append((row.name or "(model)", row.kind, shape, row.feeds, row.behind, *reach))
    widths = [max(len(line[column]) for line in table) for column in range(len(COLUMNS))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in table]
    reasons = [f"  {row.name or '(model)'}: {row.obstacle}" for row in rows if row.obstacle and not row.attack]
    outside = ["", "out of range, which is no reassurance:", *reasons] if reasons else []
    return [*lines, *outside, "", *ALWAYS]

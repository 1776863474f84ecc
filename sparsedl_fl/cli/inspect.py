"""Say what a model could give away, before any training: a row for each layer, with the largest batch in range."""

from __future__ import annotations

import argparse

from sparsedl_fl.cli._model import add_model_arguments, clear_errors, input_of_shape

HELP = "what a model could leak: a table of its layers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_model_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(options: argparse.Namespace) -> int:
    """Look at the model."""
    import dataclasses
    import json

    from sparsedl_fl.audit.files import load_model
    from sparsedl_fl.models import inspect_model, trace_model

    with clear_errors():
        if options.model is None:
            raise ValueError("MODEL is missing: package.module:function or file.py:function")
        model = load_model(options.model, options.weights)
        trace = trace_model(model, input_of_shape(options.input_shape))
        rows = inspect_model(model, trace=trace)
    if options.json:
        print(json.dumps({"failure": trace.failure, "layers": [dataclasses.asdict(row) for row in rows]}, indent=2))
        return 0
    if trace.failure:
        print(f"the model could not be run ({trace.failure}): pass --input-shape; what follows each layer is not known")
    table = [("layer", "kind", "shape", "is fed", "followed by", "leaks by", "up to a batch of")]
    for row in rows:
        shape = " x ".join(map(str, row.shape))
        reach = (row.attack or "-", str(row.largest_batch or "-"))
        table.append((row.name or "(model)", row.kind, shape, row.feeds, row.behind, *reach))
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    reasons = [f"  {row.name or '(model)'}: {row.obstacle}" for row in rows if row.obstacle]
    print("\n".join(["", "out of range:", *reasons]) if reasons else "", end="\n" if reasons else "")
    return 0

"""Recover a batch of photographs from one layer's gradient, and draw the recovered ones below the originals."""

from __future__ import annotations

import argparse

from sparsedl_fl.cli._model import require
from sparsedl_fl.cli._options import SEEDS, whole

HELP = "recover a batch of photographs from one layer's gradient"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--batch-size", type=whole(), default=20, help="number of 32 x 32 x 3 patches (default: 20)")
    parser.add_argument("--width", type=whole(), default=200, help="width of the network (default: 200)")
    parser.add_argument("--seed", type=whole(0, SEEDS), default=0, help="seed of everything (default: 0)")
    parser.add_argument("--output", default="demo.png", help="where the picture goes (default: demo.png)")


def run(options: argparse.Namespace) -> int:
    """Run the demo."""
    require("demo", "matplotlib", "rich")
    # Heavy imports only now, so that --help is quick.
    from sparsedl_fl.demo import run_demo, show

    result = run_demo(options.batch_size, options.width, options.seed, verbose=True)
    show(result, options.output)
    print(f"originals above, recovered below: {options.output}")
    return 0 if result.certified.all() else 3

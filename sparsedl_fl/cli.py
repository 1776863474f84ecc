"""The command line: ``sparsedl-fl demo``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status (0: everything certified, 1: not everything)."""
    options = _parser().parse_args(arguments)
    return options.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sparsedl-fl", description="Audit how much of a client's batch leaks from a federated-learning gradient."
    )
    commands = parser.add_subparsers(required=True, dest="command")
    demo = commands.add_parser("demo", help="recover a batch of photographs from one layer's gradient")
    demo.add_argument("--batch-size", type=int, default=20, help="number of 32 x 32 x 3 patches (default: 20)")
    demo.add_argument("--width", type=int, default=200, help="width of the network (default: 200)")
    demo.add_argument("--seed", type=int, default=0, help="seed of everything (default: 0)")
    demo.add_argument("--output", default="demo.png", help="where the picture goes (default: demo.png)")
    demo.set_defaults(run=_demo)
    return parser


def _demo(options: argparse.Namespace) -> int:
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        raise SystemExit(f"the demo needs {error.name}: pip install 'sparsedl[demo]'") from error
    # Heavy imports only now, so that --help is quick.
    from sparsedl_fl.demo import run_demo, show

    audit = run_demo(options.batch_size, options.width, options.seed, verbose=True)
    show(audit, options.output)
    print(f"originals above, recovered below: {options.output}")
    return 0 if audit.certified.all() else 1

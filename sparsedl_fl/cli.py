"""The command line: ``sparsedl-fl demo`` and ``sparsedl-fl reproduce``."""

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
    _add_reproduce(commands.add_parser("reproduce", help="run a table or figure of the papers again, with ours beside"))
    return parser


def _add_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run a table or figure of the papers; what is on disk already is not run again."
    parser.add_argument("table", nargs="?", metavar="TABLE", help="which one; none lists them all")
    parser.add_argument("--batches", type=int, help="batches of each row (default: the table's, mostly 100)")
    parser.add_argument("--rows", nargs="+", metavar="PATTERN", help="rows, such as 20x200 or '*x200' (default: all)")
    parser.add_argument("--directions", nargs="+", metavar="NAME", help="searches (default: the table's)")
    parser.add_argument("--data", help=".npz, folder or .zip of images, or a folder of these (default: OpenML)")
    parser.add_argument("--device", default="cpu", help="where the papers' searches run: cpu or cuda (default: cpu)")
    parser.add_argument("--jobs", type=int, default=1, help="batches at the same time (default: 1)")
    parser.add_argument("--out", default="results", help="folder of records, tables and figures (default: results)")
    parser.add_argument("--first-seed", type=int, default=1000, help="seed of the first batch (default: 1000)")
    parser.add_argument("--starts", type=int, default=4096, help="budget of SPEAR++, a batch (default: 4096)")
    parser.add_argument("--draws", type=int, default=2_000_000, help="budget of SPEAR, a batch (default: 2000000)")
    parser.add_argument("--seconds", type=float, default=300, help="budget of our search, a batch (default: 300)")
    parser.set_defaults(run=_reproduce)


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


def _reproduce(options: argparse.Namespace) -> int:
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        raise SystemExit(f"reproduce needs {error.name}: pip install 'sparsedl[reproduce]'") from error
    from sparsedl_fl.reproduce import TABLES, Budget, read_records, reproduce, write_figure, write_summary

    if options.table is None:
        for name, table in TABLES.items():
            print(f"{name:16} {table.title}")
        return 0
    try:
        records = reproduce(
            options.table,
            out=options.out,
            data=options.data,
            rows=options.rows,
            methods=options.directions,
            n_batches=options.batches,
            first_seed=options.first_seed,
            n_jobs=options.jobs,
            budget=Budget(options.starts, options.seconds, options.draws, options.device),
            verbose=True,
        )
    except (ValueError, ImportError) as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        print(f"interrupted; the finished batches are in {options.out}, and the same command goes on from there")
        return 130
    written = write_summary(options.table, read_records(options.out), options.out, options.directions)
    print(written.read_text())
    figure = write_figure(options.table, read_records(options.out), options.out)
    print(f"records, table{' and figure' if figure else ''}: {options.out}")
    return 0 if all(record["exact"] for record in records) else 1

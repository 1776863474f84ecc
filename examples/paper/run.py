"""Run a table or figure of the papers, with ours beside; what is on disk already is not run again.

python examples/paper/run.py                                   # what there is
python examples/paper/run.py spearpp-table1 --rows '*x200' --batches 20 --data data --out results
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]  # from wherever it is run

from paper.figures import write_figure  # noqa: E402
from paper.methods import Budget  # noqa: E402
from paper.runner import read_records, reproduce  # noqa: E402
from paper.summary import write_summary  # noqa: E402
from paper.tables import TABLES  # noqa: E402

BAD_USAGE, INCOMPLETE, INTERRUPTED = 2, 3, 130
"""Exit statuses: options are wrong; not every batch came back; stopped by its user, and to be gone on with."""


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python examples/paper/run.py", description=__doc__)
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
    parser.add_argument("--steps", type=int, default=1000, help="budget of breaching, a batch (default: 1000)")
    parser.add_argument("--members", type=int, default=30, help="ensemble of TabLeak, a batch (default: 30)")
    options = parser.parse_args(arguments)
    if options.table not in (None, *TABLES):
        parser.error(f"there is no table {options.table!r}; without one, the command lists them")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the table, and write records, summary and figure."""
    options = options_of(arguments)
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
            budget=Budget(
                options.starts, options.seconds, options.draws, options.device, options.steps, options.members
            ),
            verbose=True,
        )
    except ValueError as error:  # rows, searches or data that are not there
        print(f"run.py: error: {error}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        print(f"interrupted; the finished batches are in {options.out}, and the same command goes on from there")
        return INTERRUPTED
    written = write_summary(options.table, read_records(options.out), options.out, options.directions)
    print(written.read_text())
    figure = write_figure(options.table, read_records(options.out), options.out)
    print(f"records, table{' and figure' if figure else ''}: {options.out}")
    return 0 if all(record["exact"] for record in records) else INCOMPLETE


if __name__ == "__main__":
    sys.exit(main())

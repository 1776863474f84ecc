"""Say where the papers' tables are: they are run from the sources, not from the installed package."""

from __future__ import annotations

import argparse

HELP = "say where the papers' tables are run again"

WHERE = """\
The tables and figures of SPEAR and SPEAR++, with ours next to them, are run from the sources of this package. There:

    pip install '.[reproduce]'
    python examples/paper/run.py                    # lists them
    python examples/paper/run.py spearpp-table1     # runs one

examples/paper/README.md says how each number is made, and holds the results."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name of a table, which is run elsewhere."""
    parser.add_argument("table", nargs="?", metavar="TABLE", help="which one")


def run(options: argparse.Namespace) -> int:
    """Print it; status 2 where a table was named, since none was run."""
    print(WHERE if options.table is None else WHERE.replace("spearpp-table1", options.table))
    return 0 if options.table is None else 2

"""The command: run, compare, show; ablate, ablation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.frontier.ablation import PARTS, ablation_table
from tests.frontier.comparing import compared, load, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 where something was lost, or is newly wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.frontier", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run the problems and write a record")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--only", nargs="+", default=(), metavar="WORD", help="kinds whose name holds one of these")
    running.add_argument("--jobs", type=int, default=2, help="processes at a time, one thread each")
    running.add_argument("--least", action="store_true", help="one seed of each kind")
    comparing = commands.add_parser("compare", help="say what changed between two records")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    showing = commands.add_parser("show", help="print a record as a table")
    showing.add_argument("record", type=Path)
    ablating = commands.add_parser("ablate", help="run what each part serves without it")
    ablating.add_argument("--out", type=Path, required=True)
    ablating.add_argument("--only", nargs="+", default=tuple(PARTS), choices=tuple(PARTS), metavar="PART")
    ablating.add_argument("--seeds", type=int, default=5, help="seeds of a kind at most")
    ablating.add_argument("--besides", nargs="+", default=(), metavar="WORD", help="leave out kinds that hold a word")
    ablating.add_argument("--jobs", type=int, default=2, help="processes at a time, one thread each")
    parts = commands.add_parser("ablation", help="print what each part brings")
    parts.add_argument("record", type=Path, help="with all parts")
    parts.add_argument("ablated", type=Path, nargs="+", help="what ablate wrote")
    options = parser.parse_args(arguments)
    if options.command == "ablate":
        from tests.frontier.running import run, tasks_without

        run(tasks_without(options.only, options.seeds, options.besides), options.out, options.jobs)
        return 0
    if options.command == "ablation":
        ablated = [line for path in options.ablated for line in load(path)[1]]
        print(ablation_table(load(options.record)[1], ablated))
        return 0
    if options.command == "run":
        from tests.frontier.running import run, tasks

        wanted = tasks(options.only, options.least)
        if not wanted:
            parser.error(f"--only: no kind holds any of {', '.join(options.only)}; see tests/frontier/kinds.py")
        print(table(run(wanted, options.out, options.jobs)))
        return 0
    if options.command == "show":
        print(table(load(options.record)[1]))
        return 0
    page, is_held = compared(load(options.before)[1], load(options.after)[1])
    print(page)
    return 0 if is_held else 1


if __name__ == "__main__":
    sys.exit(main())

"""The command line, one file a command: ``sparsedl-fl demo`` and ``sparsedl-fl reproduce``.

A command is a module with ``HELP``, ``add_arguments`` and ``run``, and a place in `COMMANDS`. Nothing heavy is imported
before it runs, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sparsedl_fl.cli import demo, reproduce

__all__ = ["COMMANDS", "main"]

COMMANDS = {"demo": demo, "reproduce": reproduce}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status (0: everything certified, 1: not everything)."""
    parser = argparse.ArgumentParser(
        prog="sparsedl-fl", description="Audit how much of a client's batch leaks from a federated-learning gradient."
    )
    commands = parser.add_subparsers(required=True, dest="command")
    for name, command in COMMANDS.items():
        added = commands.add_parser(name, help=command.HELP, description=command.__doc__)
        command.add_arguments(added)
        added.set_defaults(run=command.run)
    options = parser.parse_args(arguments)
    return options.run(options)

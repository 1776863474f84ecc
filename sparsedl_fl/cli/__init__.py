"""The command line, one file a command: ``sparsedl-fl inspect | audit | ledger | members | sweep | demo | reproduce``.

`COMMANDS` lists them. A new one is a module, whose docstring ``--help`` shows, and an entry there::

    HELP = "count the layers of a model"

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_model_arguments(parser)

    def run(options: argparse.Namespace) -> int:
        print(len(list(model_of(options, options.model, options.weights).modules())))
        return 0

Nothing heavy is imported before it runs, so that ``--help`` is quick. Exit status 1 means a leak, and nothing else;
whatever is wrong with files and options, or inside, is a line on the standard error and status 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sparsedl_fl.cli import audit, inspect, ledger, members, reproduce, show_demo, sweep
from sparsedl_fl.cli._guard import guarded
from sparsedl_fl.cli._options import Parser, read_config

__all__ = ["COMMANDS", "main"]

COMMANDS = {"inspect": inspect, "audit": audit, "ledger": ledger, "members": members, "sweep": sweep,
            "demo": show_demo, "reproduce": reproduce}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status, whose meaning is in each command's help."""
    parser = Parser(
        prog="sparsedl-fl", description="Audit how much of a client's batch leaks from a federated-learning gradient."
    )
    commands = parser.add_subparsers(required=True, dest="command", metavar=" | ".join(COMMANDS))
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for name, command in COMMANDS.items():
        added = commands.add_parser(name, help=command.HELP, description=command.__doc__)
        command.add_arguments(added)
        added.set_defaults(run=command.run)
        if arguments[:1] == [name]:
            read_config(added, arguments, name)
    options = parser.parse_args(arguments)
    return guarded(options)

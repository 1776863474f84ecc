"""Commands as a user runs them: what they print, and with which status they end."""

from types import SimpleNamespace

import pytest

from sparsedl_fl import cli


@pytest.fixture
def run(capsys):
    """Return what runs a command: its exit status and what it printed."""

    def command(*arguments):
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            status = stop.code
        shown = capsys.readouterr()
        return SimpleNamespace(status=status, out=shown.out, err=shown.err)

    return command


@pytest.fixture
def refused(run):
    """Return what runs a command that has to be refused, in one line with status 2."""

    def command(*arguments):
        found = run(*arguments)
        lines = found.err.splitlines()
        assert found.status == 2, (arguments, found)
        assert len(lines) == 1, (arguments, found)
        assert lines[0].startswith("error: "), (arguments, found)
        return lines[0]

    return command

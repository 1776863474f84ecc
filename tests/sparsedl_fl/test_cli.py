"""The command line: one module a command."""

import pytest

from sparsedl_fl import cli


def test_every_command_says_what_it_does(capsys):
    for name, command in cli.COMMANDS.items():
        with pytest.raises(SystemExit) as stop:
            cli.main([name, "--help"])
        assert stop.value.code == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert command.__doc__.split(".")[0].split(",")[0] in shown


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)


def test_no_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 2
    assert "required" in capsys.readouterr().err


def test_reproduce_lists_its_tables(capsys):
    pytest.importorskip("matplotlib")
    assert cli.main(["reproduce"]) == 0
    assert "calibration" in capsys.readouterr().out

"""The command line: one module a command."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from sparsedl_fl import cli
from sparsedl_fl.audit import example


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


@pytest.mark.parametrize(
    ("arguments", "needs", "extra"),
    [
        (["demo"], "matplotlib", "demo"),
        (["audit", "--example", "--out", "report"], "jinja2", "audit"),
        (["audit", "--example", "--out", "report", "--show-samples"], "matplotlib", "audit"),
        (["sweep", "--example", "--out", "report"], "matplotlib", "audit"),
    ],
)
def test_what_is_not_installed_is_named_before_anything_runs(arguments, needs, extra, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sparsedl_fl.cli._model.find_spec", lambda name: None if name == needs else name)
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2  # 1 would say that something was recovered
    assert f"this command needs {needs}: pip install 'sparsedl[{extra}]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_reproduce_says_where_the_tables_are(capsys):
    assert cli.main(["reproduce"]) == 0
    assert "python examples/paper/run.py  " in capsys.readouterr().out
    assert cli.main(["reproduce", "frontier"]) == 2  # nothing was run
    assert "python examples/paper/run.py frontier" in capsys.readouterr().out


def test_inspect_says_what_could_leak(capsys):
    assert cli.main(["inspect", "sparsedl_fl.audit.example:model", "--input-shape", "1", "8", "8"]) == 0
    shown = capsys.readouterr().out
    assert "the model's input" in shown
    assert "its own gradient and the loss" in shown
    assert "A batch of one record leaks" in shown
    assert cli.main(["inspect", "sparsedl_fl.audit.example:model", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"][0]["attack"] == "span"


def test_audit_of_the_example_writes_a_report(capsys, tmp_path):
    assert cli.main(["audit", "--example", "--out", str(tmp_path / "report")]) == 1
    assert capsys.readouterr().out.startswith("RECOVERED: 16 of 16")
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["verdict"] == "RECOVERED"
    assert report["samples"] == []
    assert "<h1>" in (tmp_path / "report" / "report.html").read_text()


def test_audit_of_the_convolutional_example_ends_with_pictures(capsys, tmp_path):
    assert cli.main(["audit", "--example-cnn", "--out", str(tmp_path / "report"), "--show-samples"]) == 1
    assert capsys.readouterr().out.startswith("RECOVERED: 8 of 8 inputs of the model and 8 labels")
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert {sample["kind"] for sample in report["samples"]} == {"inputs of the model"}
    assert (tmp_path / "report" / "report.html").read_text().count("data:image/png") >= 1


@pytest.mark.parametrize(
    ("build", "weights", "update", "batch_size"),
    [
        (example.model, example.WEIGHTS, example.UPDATE, 16),
        (example.convolutional, example.CONVOLUTIONAL_WEIGHTS, example.CONVOLUTIONAL_UPDATE, 8),
    ],
)
def test_the_examples_are_what_make_computes(build, weights, update, batch_size):
    state, gradients = example.make(batch_size, 0, build)
    for path, made in ((weights, state), (update, gradients)):
        shipped = load_file(path)
        assert shipped.keys() == made.keys()
        assert all(torch.allclose(shipped[name], made[name], rtol=1e-3, atol=1e-5) for name in made)


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--fail-on", "recovered"], 1),
        (["--fail-on", "partly", "out-of-range"], 1),  # a leak is a leak
        (["--fail-on", "labels"], 1),
        (["--optimizer", "adam"], 3),
        (
            ["--optimizer", "adam", "--fail-on", "recovered", "partly", "likely", "labels"],
            3,
        ),  # no conclusion is never 0
        (["--optimizer", "RMSprop", "--fail-on", "out-of-range"], 1),
    ],
)
def test_fail_on_only_adds(options, status, capsys):
    assert cli.main(["audit", "--example", *options]) == status


@pytest.mark.parametrize("verdict", ["RECOVERED", "PARTLY", "LIKELY", "NOT RECOVERED", "OUT OF RANGE"])
@pytest.mark.parametrize("labels", [{}, {3: None}])
def test_every_verdict_has_its_status_and_more_may_fail(verdict, labels):
    from types import SimpleNamespace

    from sparsedl_fl.audit import Verdict
    from sparsedl_fl.cli.audit import VERDICTS, _exit_status

    result = SimpleNamespace(verdict=Verdict(verdict), labels_present=labels, membership=None)
    plain = {"NOT RECOVERED": 0, "OUT OF RANGE": 3}.get(verdict, 1)
    assert _exit_status(result, []) == plain
    assert _exit_status(result, ["labels"]) == (1 if labels else plain)
    called = {str(one): name for one in Verdict for name in VERDICTS if name.replace("-", " ") == one.lower()}
    assert len(called) == len(VERDICTS) == len(Verdict)
    for other, name in called.items():
        assert _exit_status(result, [name]) == (1 if other == verdict else plain)


def test_adam_is_out_of_range(capsys):
    assert cli.main(["audit", "--example", "--optimizer", "adam", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["verdict"] == "OUT OF RANGE"


def test_weights_that_change_at_each_call_are_asked_for(capsys):
    from sparsedl_fl.audit import example

    with pytest.raises(SystemExit) as stop:
        cli.main(["audit", "sparsedl_fl.audit.example:model", str(example.UPDATE)])
    assert stop.value.code == 2
    assert "pass --weights" in capsys.readouterr().err


def test_options_from_a_file(capsys, tmp_path):
    config = tmp_path / "audit.toml"
    config.write_text('[audit]\nexample = true\nfail-on = ["partly"]\n[sweep]\nbatches = 1\n')
    assert cli.main(["audit", "--config", str(config)]) == 1
    assert cli.main(["audit", "--config", str(config), "--optimizer", "adam"]) == 3
    config.write_text(
        '[audit]\nexample = true\noptimizer = "adam"\nfail-on = ["out-of-range"]\ninput-shape = [1, 8, 8]\n'
    )
    assert cli.main(["audit", "--config", str(config)]) == 1
    for text in (
        '[audit]\nspeed = "fast"\n', '[audit]\nkind = "letters"\n', "not toml", "audit = 3\n",
        "[audit]\nmomentum = 1\n", "[audit]\nlearning-rate = nan\n", "[audit]\nbatch-size = 0\n",
        "[audit]\nexample = 1\n", "[audit]\ninput-shape = 3\n", "[audit]\nweights = [1]\n", "[audit]\nfail-on = []\n",
    ):  # fmt: skip
        config.write_text(text)
        with pytest.raises(SystemExit) as stop:
            cli.main(["audit", "--config", str(config)])
        assert stop.value.code == 2


def test_sweep_goes_to_a_folder(capsys, tmp_path):
    arguments = ["sweep", "--example", "--only", "secure", "--batches", "1", "--batch-size", "4", "--effort", "2"]
    assert cli.main([*arguments, "--backend", "threading", "--out", str(tmp_path)]) == 0
    assert "clients in a secure sum" in capsys.readouterr().out
    assert {"records.jsonl", "sweep.json", "sweep.md", "sweep.png"} == {path.name for path in tmp_path.iterdir()}
    assert cli.main([*arguments, "--backend", "threading", "--out", str(tmp_path)]) == 0  # over its own results
    (tmp_path / "sweep.md").write_text("my notes")
    with pytest.raises(SystemExit) as stop:
        cli.main([*arguments, "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "sweep.md is there and no report of sparsedl-fl" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "status"), [(["--help"], 0), (["audit", "--nonsense"], 2), (["reproduce"], 0)])
def test_nothing_that_others_warn_of_ends_a_command(arguments, status):
    script = "import sys\nfrom sparsedl_fl.cli import main\nassert 'torch' not in sys.modules\nsys.exit(main())\n"
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == status, found.stderr
    assert "Traceback" not in found.stderr


def test_a_file_may_come_after_options(run, refused):
    model = ("audit", "sparsedl_fl.audit.example:model", "--weights", example.WEIGHTS)
    assert run(*model, example.UPDATE).status == 1
    assert "unrecognized arguments: other.npz" in refused(*model, example.UPDATE, "other.npz")


def test_sweep_leaves_tensors_out(capsys):
    model = ["sweep", "--example", "--batches", "1", "--batch-size", "4", "--effort", "1"]
    assert cli.main([*model, "--exclude", "bias"]) == 0
    shown = capsys.readouterr().out
    assert "| tensors left out | bias | 4 |" in shown
    for pattern, message in (("(", "is no regular expression"), ("conv9", "in none of the names")):
        with pytest.raises(SystemExit) as stop:
            cli.main([*model, "--exclude", pattern])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err

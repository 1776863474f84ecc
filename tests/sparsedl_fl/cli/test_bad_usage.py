"""Whatever is wrong with files and options, or inside, is one line and status 2: 1 is only ever a leak."""

import warnings

import numpy as np
import pytest
import torch

from sparsedl_fl import cli
from sparsedl_fl.audit import example

MODEL = "sparsedl_fl.audit.example:model"
AUDIT = ("audit", MODEL, "--weights", str(example.WEIGHTS))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make(:\n", "SyntaxError"),
        ("raise RuntimeError('first\\nsecond')\n", "cannot be imported: RuntimeError: first"),
        ("import sys; sys.exit(0)\n", "cannot be imported: SystemExit: 0"),
        ("import nothing_of_that_name\n", "ModuleNotFoundError"),
        ("def make(): return 1 / 0\n", "cannot be made, for its function raises: ZeroDivisionError"),
        ("import sys\ndef make(): sys.exit(1)\n", "raises: SystemExit: 1"),
        ("class Own(BaseException): pass\ndef make(): raise Own\n", "raises: Own"),
        ("def make(size): return size\n", "raises: TypeError"),
        ("def make(): return 3\n", "must make a torch.nn.Module, got int"),
        ("from torch import nn\ndef make(): return nn.LazyLinear(3)\n", "lazy layers"),
        ("from torch import nn\ndef make(): return nn.Linear(2, 2, device='meta')\n", "meta device"),
        ("x = '\x1b[31m\u202e'\nraise ValueError(x)\n", r"\x1b[31m\u202e"),
        ("\0", "null bytes"),
        ("", "has no 'make'"),
    ],
)
def test_a_model_file_may_raise_anything(code, message, refused, tmp_path):
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    for command in ("inspect", "sweep"):
        assert message in refused(command, f"{tmp_path}/mine.py:make")
    assert message in refused("audit", f"{tmp_path}/mine.py:make", example.UPDATE, "--weights", example.WEIGHTS)


def test_a_model_that_ends_the_program_when_it_runs_decides_nothing(refused, run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import sys\nimport torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.layer = nn.Linear(3, 4).requires_grad_(False)\n"
        "        self.layer.weight.fill_(1)\n"
        "        self.layer.bias.fill_(1)\n        self.requires_grad_(True)\n\n    def forward(self, x):\n"
        "        sys.exit(0)\n\n\nnet = Net()\n\n\ndef make():\n    return net\n"
    )
    torch.save({"layer.weight": torch.randn(4, 3), "layer.bias": torch.randn(4)}, tmp_path / "x.pt")
    spec = f"{tmp_path}/mine.py:make"
    assert "SystemExit: 0" in refused("audit", spec, tmp_path / "x.pt", "--input-shape", 3)
    assert run("audit", spec, tmp_path / "x.pt").status not in (0, 1, 2)  # nothing was given to run it on


@pytest.mark.parametrize(
    "options",
    [
        "--batch-size 0", "--batch-size -3", "--batch-size x", "--batch-size 1.5", "--learning-rate 0",
        "--learning-rate -1", "--learning-rate nan", "--learning-rate inf", "--local-steps 0", "--momentum 1",
        "--momentum -0.1", "--momentum nan", "--weight-decay -1", "--weight-decay nan", "--weight-decay some",
        "--effort -1", "--effort nan", "--effort inf", "--seconds -1", "--seconds nan", "--seed -1",
        "--seed 4294967296", "--optimizer adm", "--kind letters", "--loss hinge", "--loss math:nothing",
        "--loss math:pi", "--loss no.module:f", "--layers nope", "--input-shape 0", "--input-shape 7",
        "--input-shape 100000 100000",
        "--input-ids 0", "--input-ids 5", "--example-input none.pt", "--fail-on everything", "--nonsense 1",
        "--vocabulary none.txt", "--config none.toml", "--input-shape 64 --input-ids 3", "--eval --train",
        "--kind weights --learning-rate 0.1 --weight-decay 0.1",
    ],
)  # fmt: skip
def test_options_that_make_no_sense_name_themselves(options, refused):
    message = refused("audit", "--example", *options.split())
    assert any(part in message for part in options.split() if part.startswith("--"))
    assert "=" not in message  # options, not arguments of Python


def test_weights_need_a_learning_rate(refused):
    assert "--learning-rate" in refused("audit", "--example", "--kind", "weights")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit"], "MODEL and UPDATE are needed"),
        (["audit", "no.module:f", "x.safetensors"], "cannot be imported"),
        (["audit", "nonsense", "x.safetensors"], "package.module:name"),
        (["inspect"], "MODEL is missing"),
        (["sweep"], "MODEL is needed"),
        (["sweep", "--example", "--only", "nothing"], "no defence"),
        (["sweep", "--example", "--batches", "0"], "--batches"),
        (["sweep", "--example", "--rounds", "-1"], "--rounds"),
        (["sweep", "--example", "--jobs", "0"], "--jobs"),
        (["sweep", "--example", "--backend", "threads"], "--backend"),
        (["sweep", MODEL, "--data", "none.npz"], "there is no file"),
        (["demo", "--batch-size", "0"], "--batch-size"),
    ],
)
def test_commands_say_what_is_missing(arguments, message, refused):
    assert message in refused(*arguments)


def test_files_that_cannot_be_read(refused, tmp_path):
    torch.save({"x": torch.ones(2)}, tmp_path / "strange.pt")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    (tmp_path / "broken.pt").write_bytes((tmp_path / "strange.pt").read_bytes()[:100])
    for name in ("strange.pt", "module.pt", "objects.npz", "broken.pt", "none.pt", "."):
        message = refused(*AUDIT, tmp_path / name)
        assert str(tmp_path) in message
        refused("audit", MODEL, example.UPDATE, "--weights", tmp_path / name)
        refused(*AUDIT, tmp_path / name, "--optimizer", "adam")  # out of range is said of updates that can be read


@pytest.mark.parametrize("command", ["audit", "sweep"])
def test_folders_that_cannot_be_made(command, refused, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "link", "/proc/nothing"):
        assert "--out" in refused(command, "--example", "--out", folder)


def test_what_is_raised_inside_is_an_error_and_no_leak(run, refused, monkeypatch):
    for error in (KeyError("inside"), AssertionError(), RuntimeError("a\nb"), SystemExit(0), RecursionError("deep")):

        def broken(*_, error=error, **__):
            raise error

        monkeypatch.setattr("sparsedl_fl.audit.audit_model", broken)
        message = refused("audit", "--example")
        assert "please report" in message
        assert "SPARSEDL_DEBUG=1" in message
    monkeypatch.setenv("SPARSEDL_DEBUG", "1")
    found = run("audit", "--example")
    assert found.status == 2
    assert "Traceback" in found.err
    monkeypatch.setattr("sparsedl_fl.audit.audit_model", lambda *_, **__: [1] * (1 << 62))
    assert "not enough memory" in run("audit", "--example").err


def test_warnings_are_notes_said_once(run, monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import warnings\nfrom torch import nn\n\n\ndef make():\n    warnings.warn('look\\nout')\n"
        "    warnings.warn('not for you', DeprecationWarning)\n    print('hello')\n    return nn.Linear(3, 2)\n"
    )
    with warnings.catch_warnings():
        found = run("inspect", f"{tmp_path}/mine.py:make", "--json")
    assert found.status == 0
    assert found.err.splitlines() == ["note: look out", "hello"]
    assert found.out.startswith("{")  # what a model prints is no part of it


def test_help_and_the_commands_own_statuses_are_left_alone(run):
    assert run("audit", "--help").status == 0
    assert cli.main(["inspect", MODEL]) == 0


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x": np.ones((40, 7))}, (), "does not run on --data of shape (2, 7)"),
        ({"x": np.ones((40, 64)), "y": np.arange(40)}, (), "--data has labels from 0 to 39, and the model 10 outputs"),
        ({"x": np.ones((40, 64)), "y": np.arange(40) % 10}, ("--loss", "math:sqrt"), "--loss cannot be evaluated"),
        ({"x": np.ones((3, 64)), "y": np.arange(3)}, (), "more records than the 3 there are"),
    ],
)
def test_records_that_a_client_could_not_train_on(arrays, options, message, refused, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    only = ("--only", "number format", "--batches", 1)
    assert message in refused("sweep", MODEL, "--data", tmp_path / "x.npz", *only, *options)


def test_a_sweep_needs_a_row_of_outputs_for_each_record(refused, tmp_path):
    (tmp_path / "mine.py").write_text("from torch import nn\n\n\ndef make():\n    return nn.LSTM(4, 3)\n")
    assert "row of outputs" in refused("sweep", f"{tmp_path}/mine.py:make", "--input-shape", 5, 4)

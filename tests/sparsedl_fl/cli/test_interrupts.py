"""Ctrl-C: what was found is kept and said, nothing half done is trusted, and the status is 130."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from sparsedl_fl import GradientInverter

SWEEP = ("sweep", "--example", "--only", "batch size", "--batches", "1", "--batch-size", "4", "--effort", "1")


@pytest.fixture
def stopped(monkeypatch):
    """Make every search after the first end as with Ctrl-C."""
    fit, fitted = GradientInverter.fit, []

    def stop(self, layer):
        if fitted:
            raise KeyboardInterrupt
        fitted.append(layer)
        return fit(self, layer)

    monkeypatch.setattr(GradientInverter, "fit", stop)


def test_an_interrupted_audit_writes_what_it_has(stopped, run, tmp_path):
    found = run("audit", "--example", "--out", tmp_path / "report", "--show-samples")
    assert found.status == 130
    assert "interrupted" in found.err
    assert json.loads((tmp_path / "report" / "report.json").read_text())["verdict"]
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.html", "report.json"}
    assert stat.S_IMODE((tmp_path / "report" / "report.json").stat().st_mode) == 0o600


def test_an_interrupt_before_the_attack_is_130_too(monkeypatch, run):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("sparsedl_fl.audit.files.load_update", stop)
    found = run("audit", "--example", "--fail-on", "not-recovered")
    assert (found.status, found.err) == (130, "interrupted\n")


def test_an_interrupted_sweep_keeps_whole_audits_alone_and_goes_on(monkeypatch, run, tmp_path):
    from sparsedl_fl.audit.sweeping import running

    audit, calls = running.audit_model, []
    with monkeypatch.context() as patch:

        def half(*arguments, **options):
            calls.append(1)
            if len(calls) == 2:
                patch.setattr(GradientInverter, "fit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            return audit(*arguments, **options)

        patch.setattr(running, "audit_model", half)
        found = run(*SWEEP, "--backend", "threading", "--out", tmp_path)
    assert found.status == 130
    assert "goes on from the records" in found.err
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "sweep.json").exists()


def started(script):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", script], **pipes)


@pytest.mark.slow
def test_a_real_signal_ends_an_audit(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\ndef make():\n"
        "    return nn.Sequential(nn.Linear(800, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))\n"
    )
    script = (
        "import sys, torch\nfrom sparsedl_fl import cli\nfrom sparsedl_fl.audit.files import load_model\n"
        "from sparsedl_fl.simulation import client_gradient\n"
        f"torch.manual_seed(0)\nmodel = load_model('{tmp_path}/mine.py:make')\n"
        f"torch.save(model.state_dict(), '{tmp_path}/w.pt')\n"
        f"torch.save(client_gradient(model, torch.randn(150, 800), torch.arange(150) % 10), '{tmp_path}/u.pt')\n"
        f"print('ready', flush=True)\nsys.exit(cli.main(['audit', '{tmp_path}/mine.py:make', '{tmp_path}/u.pt', "
        f"'--weights', '{tmp_path}/w.pt', '--out', '{tmp_path}/report']))\n"
    )
    with started(script) as run:
        assert run.stdout.readline() == "ready\n"
        time.sleep(5)
        os.kill(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=120)
    assert run.returncode == 130
    assert "Traceback" not in said
    assert (tmp_path / "report" / "report.json").exists()


def test_a_reader_that_goes_away_is_no_leak_and_no_traceback():
    script = "import sys\nfrom sparsedl_fl import cli\nsys.exit(cli.main(['reproduce']))\n"
    with started(script) as run:
        run.stdout.close()
        said = run.stderr.read()
    assert run.returncode == 2
    assert said == ""

"""The three cases of the playbook say what its page says."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "playbook.md").read_text()


@pytest.fixture
def playbook(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "playbook"))
    yield
    for name in ("hospital", "bank", "phone"):
        sys.modules.pop(name, None)


def audited(capsys, name, folder, *options):
    from sparsedl_fl.cli import main

    paths = [f"{ROOT / 'examples' / 'playbook' / name}.py:model", f"{folder}/update.safetensors"]
    status = main(["audit", *paths, "--weights", f"{folder}/before.safetensors", "--loss", "cross_entropy", *options])
    return status, capsys.readouterr().out


@pytest.mark.slow
def test_hospital(playbook, tmp_path, capsys):
    import hospital

    hospital.write(tmp_path, 16)
    status, said = audited(capsys, "hospital", tmp_path, "--input-shape", "3", "32", "32")
    assert status == 1
    assert said.startswith("RECOVERED: 16 of 16 inputs of the model and 16 labels")
    hospital.write(tmp_path, 16, noise=0.001)
    told = "--batch-size", "16", "--noise-level", "0.001"
    status, said = audited(capsys, "hospital", tmp_path, "--input-shape", "3", "32", "32", *told)
    assert status == 1
    assert said.startswith("LIKELY: 16 inputs of the model")


@pytest.mark.filterwarnings("ignore")
def test_bank(playbook, tmp_path, capsys):
    pytest.importorskip("flwr")
    import bank

    checked, rows = bank.main(tmp_path)
    assert checked.is_blocked
    assert len(rows) == bank.N_RECORDS
    amount, age, *words = rows[0]
    assert [round(amount, -2), round(age), *words] in bank.table[: bank.N_RECORDS].tolist()
    assert "RECOVERED 8 of 8 inputs of the model and 8 labels" in PAGE
    assert "held - leak - RECOVERED 8 of 8" in capsys.readouterr().out


@pytest.mark.slow
def test_phone(playbook, tmp_path, capsys):
    import phone

    phone.write(tmp_path, 8)
    status, said = audited(capsys, "phone", tmp_path, "--input-shape", "1", "8", "8")
    assert status == 1
    assert said.startswith("RECOVERED: 8 of 8 inputs of the model and 8 labels recovered at layer '0, 3'")
    phone.write(tmp_path, 64)
    status, said = audited(capsys, "phone", tmp_path, "--input-shape", "1", "8", "8")
    assert status == 3
    assert said.startswith("OUT OF RANGE")

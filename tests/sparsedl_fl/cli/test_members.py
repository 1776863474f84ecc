"""sparsedl-fl members, and records in an audit."""

import json

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from sparsedl_fl.audit.report import schema
from sparsedl_fl.simulation import fully_connected

RECORDS = torch.tensor(load_digits().data[:90] / 16, dtype=torch.float32)

MODEL = """
from sparsedl_fl.simulation import fully_connected

def model():
    return fully_connected(64, width=100, random_state=0)
"""


@pytest.fixture
def files(tmp_path):
    """Write a model, its weights before and after training on the first 20 records, and records."""
    model = fully_connected(64, width=100, random_state=0)
    (tmp_path / "mine.py").write_text(MODEL)
    save_file(model.state_dict(), tmp_path / "before.safetensors")
    steps = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(20):
        steps.zero_grad()
        cross_entropy(model(RECORDS[:20]), torch.arange(20) % 10).backward()
        steps.step()
    save_file(model.state_dict(), tmp_path / "after.safetensors")
    for name, part in {"some": RECORDS[15:60], "none": RECORDS[20:60], "others": RECORDS[60:]}.items():
        np.savez(tmp_path / f"{name}.npz", x=part.numpy())
    return tmp_path


def given(files, records, *more):
    update = ["members", f"{files}/mine.py:model", f"{files}/after.safetensors"]
    return [*update, "--weights", f"{files}/before.safetensors", "--records", f"{files}/{records}.npz", *more]


def test_records_that_were_trained_on_are_status_1(files, run):
    found = run(*given(files, "some"))
    assert found.status == 1
    assert "5 of 45 records were trained on" in found.out
    assert "record 4: trained on, p = " in found.out
    assert "record 5:" not in found.out


def test_none_is_status_0(files, run):
    found = run(*given(files, "none", "--others", f"{files}/others.npz"))
    assert found.status == 0
    assert "0 of 40 records were trained on" in found.out


def test_out_of_range_is_status_3(files, run):
    found = run(*given(files, "none", "--n-trained", "30"))
    assert found.status == 3
    assert "inputs show, of 30" in found.out


def test_the_result_is_written(files, run):
    out = files / "out"
    assert run(*given(files, "some", "--out", out, "--json")).status == 1
    found = json.loads((out / "members.json").read_text())
    assert [row["record"] for row in found["records"] if row["trained_on"]] == list(range(5))
    assert found["n_members"] == 5


def test_what_is_wrong_is_said(files, refused):
    assert "--records" in refused("members", f"{files}/mine.py:model", f"{files}/after.safetensors")
    np.savez(files / "wide.npz", x=np.zeros((3, 7)))
    assert "--records" in refused(*given(files, "wide"))
    assert "--layer 'x'" in refused(*given(files, "some", "--layer", "x"))


def test_an_audit_has_a_chapter_on_records(files, run):
    out = files / "report"
    arguments = given(files, "some", "--learning-rate", "0.05", "--effort", "1", "--out", out)
    found = run("audit", *arguments[1:])
    assert found.status == 1
    assert "membership: 5 of 45 records were trained on" in found.out
    report = json.loads((out / "report.json").read_text())
    jsonschema.validate(report, schema())
    assert report["membership"]["n_members"] == 5
    page = (out / "report.html").read_text()
    assert "Which given records were trained on" in page
    assert "membership of given records neither" not in page

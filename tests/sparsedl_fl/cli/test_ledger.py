"""sparsedl-fl ledger: reports on file, in the order of the rounds."""

import json

import pytest
import torch

from sparsedl_fl.audit import audit_model
from sparsedl_fl.simulation import client_gradient, fully_connected


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Write the reports of two rounds that share a record, with samples and without."""
    folder = tmp_path_factory.mktemp("rounds")
    batch = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    for number, rows in enumerate(([0, 1], [1, 2])):
        model = fully_connected(64, width=100, n_hidden=2, random_state=number)
        audit = audit_model(model, client_gradient(model, batch[rows], torch.arange(2)))
        (folder / f"{number}").mkdir()
        audit.to_json(folder / f"{number}" / "report.json", show_samples=True)
        audit.to_json(folder / f"{number}.json")
    return folder


def test_folders_and_files(reports, run, tmp_path):
    found = run("ledger", reports / "0", reports / "1" / "report.json", "--out", tmp_path / "ledger")
    assert found.status == 1
    assert "4 records certified, 3 different ones" in found.out
    assert {path.name for path in (tmp_path / "ledger").iterdir()} == {"ledger.html", "ledger.json"}
    assert run("ledger", reports / "0", "--out", tmp_path / "ledger").status == 1  # ours, and written again


def test_without_samples_a_range(reports, run):
    found = run("ledger", reports / "0.json", reports / "1.json", "--json")
    assert json.loads(found.out)["totals"]["different"] == {"least": 2, "most": 4}
    assert found.status == 1


def test_bad_files_are_said_in_a_line(reports, refused, tmp_path):
    (tmp_path / "text.json").write_text("no JSON")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "sweep.json").write_text('{"sweep_version": "1.0"}')
    assert "there is no such file" in refused("ledger", tmp_path / "none.json")
    assert "there is no such file" in refused("ledger", tmp_path)
    assert "is no JSON" in refused("ledger", reports / "0.json", tmp_path / "text.json")
    assert "is no report of an audit" in refused("ledger", tmp_path / "list.json")
    assert "is no report of an audit" in refused("ledger", tmp_path / "sweep.json")
    (tmp_path / "ledger.json").write_text('{"mine": 1}')
    assert "no report of sparsedl-fl" in refused("ledger", reports / "0", "--out", tmp_path)
    assert "required" in refused("ledger")


def test_who_took_part_says_whose_a_record_can_be(reports, run, refused, tmp_path):
    said = tmp_path / "who.json"
    said.write_text('[["A", "B"], ["B", "C"]]')
    found = run("ledger", reports / "0", reports / "1", "--participants", said, "--out", tmp_path / "ledger")
    assert "1 of 3 different records can belong to one of the 3 clients alone" in found.out
    assert "1 of 3 different records can" in (tmp_path / "ledger" / "ledger.html").read_text()
    plain = json.loads((tmp_path / "ledger" / "ledger.json").read_text())
    assert plain["clients"]["records_by_number_of_clients"] == {"1": 1, "2": 2}
    assert plain["clients"]["records_of_one"] == {"B": 1}
    said.write_text('[["A", "B"]]')
    assert "participants must be as many" in refused("ledger", reports / "0", reports / "1", "--participants", said)
    said.write_text('{"A": 1}')
    assert "it needs a list with the clients of each round" in refused("ledger", reports / "0", "--participants", said)
    said.write_text('[{"A": 0}]')
    assert "number of records, above zero" in refused("ledger", reports / "0", "--participants", said)
    assert "there is no such file" in refused("ledger", reports / "0", "--participants", tmp_path / "none.json")

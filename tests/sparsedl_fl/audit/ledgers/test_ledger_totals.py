"""The ledger: a row for each round, and totals that count each record once."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from sparsedl_fl.audit import AuditResult, LayerAudit, Verdict, audit_model, ledger
from sparsedl_fl.simulation import client_gradient, fully_connected

BATCH = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))


def audited(rows, seed=0):
    model = fully_connected(64, width=100, n_hidden=2, random_state=seed)
    return audit_model(model, client_gradient(model, BATCH[rows], torch.arange(8)[rows]))


@pytest.fixture(scope="module")
def rounds():
    """Three rounds of a client, each under other weights, of which two share two records."""
    return [audited([0, 1, 2, 3], 0), audited([2, 3, 4, 5], 1), audited([6, 7], 2)]


def test_a_record_counts_once_over_the_rounds(rounds):
    found = ledger(rounds)
    assert [row.n_certified for row in found.rows] == [4, 4, 2]
    assert [row.of_records for row in found.rows][0] == "4 of 4 (inputs of the model)"
    assert (found.n_certified, found.n_different) == (10, (8, 8))
    assert found.exit_status == 1
    assert found.summary == "3 of 3 updates leak something; 10 records certified, 8 different ones"
    assert found.notes == ["each update was attacked by itself: attacks on several rounds together were not run"]


def test_reports_without_samples_give_a_range(rounds):
    shown = [rounds[0].to_dict(show_samples=True), rounds[1].to_dict(), rounds[2].to_dict()]
    found = ledger(shown)
    assert found.n_certified == 10
    assert found.n_different == (4, 10)
    assert "--show-samples" in found.notes[0]
    read = [json.loads(one.to_json(show_samples=True)) for one in rounds]
    assert ledger(read).n_different == (8, 8)


def test_features_are_compared_at_the_same_weights_alone():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        models = [nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 80), nn.ReLU(),
                                nn.Linear(80, 10)).eval() for _ in range(2)]  # fmt: skip
    pictures, labels = BATCH[:3].reshape(3, 1, 8, 8), torch.arange(3)
    one, other = (
        audit_model(m, client_gradient(m, pictures, labels), example=pictures[:1], pictures=False) for m in models
    )
    assert ledger([one, one]).n_different == (3, 3)
    assert "of the same update" in " ".join(ledger([one, one]).notes)
    found = ledger([one, other])
    assert found.n_different == (3, 6)
    assert any("not comparable" in note for note in found.notes)


def test_features_of_several_local_steps_may_repeat(rounds):
    plain = rounds[0].to_dict(show_samples=True)
    layers = [layer | {"feeds": "features"} for layer in plain["layers"]]
    samples = [one | {"kind": "features"} for one in plain["samples"]]
    report = plain | {"layers": layers, "samples": samples, "run": plain["run"] | {"learning_rate": 0.1}}
    found = ledger([report])
    assert found.n_different == (1, 4)
    assert any("more than once" in note for note in found.notes)


def test_texts_and_token_ids(rounds):
    plain = rounds[0].to_dict(show_samples=True)
    nothing = {"n_certified": 0, "verdict": "OUT OF RANGE"}
    report = plain | {"samples": [], "layers": [layer | nothing for layer in plain["layers"]], "n_tokens": 3}
    text = {"n_sentences": 1, "sentences": [{"tokens": [1, 2]}]}
    other = report | {"tokens": [2, 3, 4], "text": text | {"sentences": [{"tokens": [2, 3]}]}}
    report |= {"tokens": [1, 2, 3], "text": text}
    found = ledger([report, other, other])
    assert (found.texts, found.tokens) == ((2, 2), (4, 4))
    hidden = other | {"samples_shown": False, "tokens": [], "text": text | {"sentences": [{"tokens": []}]}}
    found = ledger([report, hidden])
    assert (found.texts, found.tokens) == ((1, 2), (3, 6))


def test_no_conclusion_is_no_reassurance(rounds):
    nothing = AuditResult((LayerAudit("a", None, "why"),), context=rounds[0].context)
    found = ledger([nothing])
    assert found.exit_status == 3
    assert "1 of 1 audits have no conclusion; that is no reassurance" in found.notes
    assert ledger([nothing, rounds[2]]).exit_status == 1
    cut = ledger([replace(nothing, was_interrupted=True)])
    assert any("cut short" in note for note in cut.notes)
    resisted = nothing.to_dict() | {"verdict": str(Verdict.NOT_RECOVERED)}
    assert ledger([resisted]).exit_status == 0
    assert ledger([resisted, nothing]).exit_status == 3


def test_table_page_and_json(rounds, tmp_path):
    found = ledger([rounds[0], rounds[2]], ["a|b", "<i>c</i>"])
    assert found.to_table().startswith("| round | verdict |")
    assert "a/b" in found.to_table()
    page = found.to_html(tmp_path / "ledger.html")
    assert "<i>c" not in page
    assert "<script" not in page
    assert "http" not in page
    assert page.count('class="verdict RECOVERED"') == 2
    plain = json.loads(found.to_json(tmp_path / "ledger.json"))
    assert plain["totals"]["different"] == {"least": 6, "most": 6}
    assert "values" not in found.to_json()  # what was recovered stays out
    assert plain == json.loads((tmp_path / "ledger.json").read_text())
    assert "6 different ones" in repr(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": "3.0"}, "has schema version 3.0"),
        ({"verdict": "FINE"}, "'FINE' is not a valid Verdict"),
        ({"batch_size": -1}, "-1 is no count"),
        ({"samples": [{"values": ["a"], "error": 0.1, "layer": "0", "kind": "features"}]}, "no whole report"),
        ({"samples": [{"values": [1.0], "error": -1, "layer": "0", "kind": "features"}]}, "no numbers with errors"),
        ({"samples": [{"values": [1.0], "layer": "0", "kind": "features"}]}, "'error' is missing"),
        ({"layers": [1]}, "no whole report"),
        ({"run": None}, "no whole report"),
    ],
)
def test_what_is_no_report_is_refused(rounds, change, message):
    with pytest.raises(ValueError, match=message) as found:
        ledger([rounds[2].to_dict(show_samples=True) | change], ["mine.json"])
    assert str(found.value).startswith("mine.json ")


def test_arguments_that_make_no_sense(rounds):
    with pytest.raises(ValueError, match="names must be as many"):
        ledger(rounds, ["a"])
    with pytest.raises(ValueError, match="an audit or more"):
        ledger([])
    with pytest.raises(ValueError, match="is no report of an audit"):
        ledger([{"sweep_version": "1.0"}])

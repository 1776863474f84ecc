"""Over a part of the bank: nothing certified is wrong, no green verdict is false, nothing raises.

The whole of it, and the table: ``python -m tests.hostile.bank``.
"""

import json

import pytest
import torch

from tests.hostile.bank import Case, cases, main, run_case
from tests.hostile.clients import CLIENTS
from tests.hostile.networks import NETWORKS
from tests.hostile.wires import WIRES

QUICK = [
    Case("perceptron", "one step", "float32 weights"),
    Case("perceptron", "beyond half", "gradient"),
    Case("batch norm, training", "one step", "gradient"),
    Case("batch norm, evaluation", "duplicates", "gradient"),
    Case("LeNet", "one step", "NaN in a tensor"),
    Case("group norm, pooling", "beyond half", "gradient"),
    Case("transformer", "Adam", "gradient"),
    Case("BERT", "padding", "small noise"),
    Case("LSTM", "beyond half", "gradient"),
    Case("regression", "beyond half", "gradient"),
    Case("LoRA", "one step", "gradient"),
    Case("vision transformer", "one step", "gradient"),
    Case("zero head", "one class", "gradient"),
    Case("BERT", "one class", "top tenth"),
    Case("tied language model", "one step", "top half"),
    Case("regression", "one record", "gradient"),
    Case("tanh", "one step", "int8"),
]

SLOW = [
    Case("transformer", "padding", "gradient"),
    Case("perceptron", "several steps", "float16 weights"),
    Case("perceptron", "one step", "int8"),
    Case("perceptron, digits", "weight decay", "gradient"),
    Case("perceptron, digits", "one step", "small noise"),
    Case("dropout", "duplicates", "gradient"),
    Case("dropout", "one step", "without the head"),
    Case("VGG, dropout", "one step", "gradient"),
    Case("frozen backbone", "one step", "float32 weights"),
    Case("GELU", "one step", "percentile privacy"),
    Case("tied language model", "one step", "gradient"),
    Case("autoencoder", "Adam", "gradient"),
    Case("multi-label", "one step", "int8"),
]


@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)], ids=lambda case: case.name
)
def test_an_audit_neither_lies_nor_reassures_falsely(case):
    record = run_case(case)
    assert not record["traceback"], record["traceback"]
    assert not record["refusal"], record["refusal"]
    assert record["n_wrong"] == 0
    assert record["n_wrong_labels"] == record["n_wrong_tokens"] == 0
    assert not record["is_false_green"], record


def test_the_bank_is_large_and_holds_every_kind():
    found = cases()
    assert len(found) == len(set(found)) >= 150
    for names, kind in ((NETWORKS, "network"), (CLIENTS, "client"), (WIRES, "wire")):
        assert {getattr(case, kind) for case in found} == set(names)
    assert len(NETWORKS) >= 15
    assert {*QUICK, *SLOW} <= set(found)


def test_a_case_is_the_same_whenever_it_is_made():
    case = Case("VGG, dropout", "several steps", "int8")
    (one, first), (two, second) = case.made(), case.made()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert all(torch.equal(first.gradients[name], second.gradients[name]) for name in first.gradients)
    relative = Case("VGG, dropout", "several steps", "int8", seed=1).made()[1]
    assert not torch.equal(relative.gradients["7.weight"], first.gradients["7.weight"])


def test_the_command_keeps_what_it_has_and_goes_on(tmp_path, capsys):
    arguments = ["--only", "logistic", "one record", "--out", str(tmp_path / "bank.md")]
    assert main(arguments) == 0
    lines = (tmp_path / "bank.jsonl").read_text().splitlines()
    assert "logistic regression" in (tmp_path / "bank.md").read_text()
    (tmp_path / "bank.jsonl").write_text(json.dumps(json.loads(lines[0]) | {"verdict": "KEPT"}) + "\n")
    main(arguments)
    assert "KEPT" in (tmp_path / "bank.md").read_text()
    assert len((tmp_path / "bank.jsonl").read_text().splitlines()) == len(lines)
    capsys.readouterr()

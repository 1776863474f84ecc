"""The risk statement: every entry is true of the audit that it is of."""

import json
import re
from copy import deepcopy
from html import unescape

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl_fl import GradientInverter, cli
from sparsedl_fl.audit import AuditResult, LayerAudit, Verdict, audit_model
from sparsedl_fl.audit.report import schema
from sparsedl_fl.audit.report.statement import NO_PRIOR, OF_ALL, statement
from sparsedl_fl.directions import DictionaryDirections, PriorDirections
from sparsedl_fl.federation import check_update
from sparsedl_fl.simulation import client_gradient, dp_sgd_gradient, fedavg_update, fully_connected

MODEL = fully_connected(64, width=100, random_state=0)
BATCH, LABELS = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)), torch.arange(4)


def said(result):
    """Return the statement of a result, after checking it against the schema, with what was declared by name."""
    report = json.loads(result.to_json())
    jsonschema.validate(report, schema())
    page = unescape(result.to_html())
    for text in report["statement"]["not_looked_at"]:
        assert text in page
    found = report["statement"]
    return found["measured"], {one["name"]: one for one in found["declared"]}, found["not_looked_at"]


@pytest.fixture(scope="module")
def plain():
    return said(audit_model(MODEL, client_gradient(MODEL, BATCH, LABELS), max_effort=3))


def test_records_of_a_fully_connected_network(plain):
    measured, declared, open_ = plain
    first = measured[0]
    assert first["layer"] == "0"
    assert first["by"] == "its own gradient and the next layer's"
    assert first["outcome"] == "RECOVERED: 4 of 4 inputs of the model"
    assert first["budget"].startswith("at most effort 3")
    assert [one["by"] for one in measured[1:4]] == ["forward from layer '0'"] * 3
    assert all(one["budget"] == "none: no search" for one in measured[1:4])
    assert any("replayed" in one["outcome"] for one in measured)
    assert declared["max_effort"]["value"] == "3"
    assert declared["loss"] == {
        "name": "loss", "what": "loss", "value": None,
        "assumed": "cross-entropy was assumed where an attack needs a loss",
    }  # fmt: skip
    assert not {"optimizer", "learning_rate", "momentum", "records"} & set(declared)  # of one gradient
    assert not any(text.startswith("layer") for text in open_)
    assert any("no records were given" in text for text in open_)
    assert {*OF_ALL, NO_PRIOR} <= set(open_)
    assert not any(word in text for text in open_ for word in ("text", "buffer", "run again"))  # it has none of these


def test_what_is_declared_is_said_with_its_value():
    inverter = GradientInverter(batch_size=4, noise_level=0.5, random_state=0)
    audit = audit_model(MODEL, client_gradient(MODEL, BATCH, LABELS), inverter, layers=[1], loss="mse", example=BATCH,
                        max_seconds=2, peel=False, pictures=False)  # fmt: skip
    measured, declared, open_ = said(audit)
    values = {name: one["value"] for name, one in declared.items()}
    assert values == {
        "loss": "mse", "batch_size": "4", "noise_level": "0.5", "mode": "training", "example": "64", "layers": "2",
        "max_effort": None, "max_seconds": "2", "pictures": "no", "peel": "no",
    }  # fmt: skip
    assert {one["layer"] for one in measured} <= {"2", ""}
    assert "layers other than those that were asked for (2)" in open_
    assert "whether the client, run again, sends the same: it was switched off (peel=False)" in open_


def test_another_attack_has_its_name():
    inverter = GradientInverter(DictionaryDirections(), random_state=0)
    measured, _, open_ = said(audit_model(MODEL, client_gradient(MODEL, BATCH, LABELS), inverter, layers=[0]))
    assert measured[0]["by"] == "DictionaryDirections, which the caller chose"
    assert NO_PRIOR in open_
    prior = GradientInverter(PriorDirections(inputs=BATCH.numpy()), random_state=0)
    _, _, open_ = said(audit_model(MODEL, client_gradient(MODEL, BATCH, LABELS), prior, layers=[0]))
    assert NO_PRIOR not in open_  # the caller gave one


def test_a_convolutional_network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 80),
                              nn.ReLU(), nn.Linear(80, 60), nn.ReLU(), nn.Linear(60, 10)).eval()  # fmt: skip
    gradient = client_gradient(model, BATCH.reshape(4, 1, 8, 8), LABELS)
    measured, declared, open_ = said(audit_model(model, gradient, example=torch.zeros(1, 1, 8, 8), pictures=False))
    assert any(one["layer"] == "4" and "4 of 4 features" in one["outcome"] for one in measured)
    assert declared["mode"]["value"] == "evaluation"
    assert declared["example"]["value"] == "1 x 8 x 8"
    layers = [text for text in open_ if text.startswith("layer")]
    named = set(re.findall(r"'(.+?)'", " ".join(text.split(":")[0] for text in layers)))
    assert {"0", "1"} <= named
    assert not named & {"4", "6", "8"}  # these were attacked, or reached
    assert any(text.startswith("buffers of the model (2)") for text in open_)


class Text(nn.Module):
    """An embedding, a layer behind its mean, and a head."""

    def __init__(self):
        super().__init__()
        self.tokens, self.hidden, self.head = nn.Embedding(200, 32), nn.Linear(32, 40), nn.Linear(40, 4)

    def forward(self, ids):
        return self.head(torch.relu(self.hidden(self.tokens(ids).mean(dim=1))))


def test_a_text_model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Text()
    ids = torch.randint(200, (3, 6), generator=torch.Generator().manual_seed(0))
    gradient = client_gradient(model, ids, torch.arange(3))
    measured, _, open_ = said(audit_model(model, gradient, example=ids[:1]))
    rows = next(one for one in measured if one["layer"] == "tokens")
    assert rows["by"] == "rows of an embedding's gradient"
    assert rows["outcome"] == f"{len(ids.unique())} token ids"
    assert any(one["by"].startswith("tokens in their order") for one in measured)  # looked for, and not there
    assert not any("texts with their tokens" in text for text in open_)
    measured, _, open_ = said(audit_model(model, gradient, example=ids[:1], max_effort=0))
    assert not any(one["by"].startswith("tokens in their order") for one in measured)
    assert "texts with their tokens in order: not attacked: the effort of 0 was spent before" in open_


def test_several_local_steps():
    before, after = fedavg_update(MODEL, BATCH, LABELS, learning_rate=0.05, n_epochs=3)
    result = check_update(MODEL, before, after, learning_rate=0.05, batch_size=4, momentum=0.0)
    measured, declared, open_ = said(result)
    assert declared["learning_rate"]["value"] == "0.05"
    assert declared["n_steps"] == {
        "name": "n_steps", "what": "local steps", "value": None, "assumed": "several were assumed",
    }  # fmt: skip
    assert declared["optimizer"]["value"] == "sgd"
    assert declared["batch_size"]["value"] == "4"
    assert declared["kind"]["value"] == "weights after local training"
    assert "whether the client, run again, sends the same: several local steps" in open_
    assert measured[0]["outcome"].startswith(str(result["0"].verdict))


SMALL = fully_connected(64, width=100, n_hidden=1, random_state=0)


def adam(n_steps):
    trained = deepcopy(SMALL)
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
    for _ in range(n_steps):
        optimizer.zero_grad()
        cross_entropy(trained(BATCH), LABELS).backward()
        optimizer.step()
    return trained.state_dict()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_step_of_adam():
    how = {"learning_rate": 0.01, "optimizer": "adam", "n_steps": 1}
    result = check_update(SMALL, None, adam(1), **how, example=BATCH[:1], max_effort=5)
    measured, declared, open_ = said(result)
    assert any(text.startswith("layer '2': no gradient of low rank fits") for text in open_)
    assert not any("not sent" in text for text in open_)  # it was sent, and could not be fitted
    assert "Gradients that were not sent" not in result.to_html()
    assert {name: declared[name]["value"] for name in how} == {
        "learning_rate": "0.01", "optimizer": "adam", "n_steps": "1",
    }  # fmt: skip
    assert declared["batch_size"]["value"] is None  # found, not given
    assert declared["weight_decay"]["value"] == "0.0"
    assert any(one["by"] == "the update itself" and "one step of adam" in one["outcome"] for one in measured)


def test_out_of_range():
    how = {"learning_rate": 0.01, "optimizer": "adam", "n_steps": 3}
    result = check_update(SMALL, None, adam(3), **how)
    measured, declared, open_ = said(result)
    assert result.verdict is Verdict.OUT_OF_RANGE
    assert measured == []
    assert declared["n_steps"]["value"] == "3"
    assert open_[0].startswith("layers '0', '2': optimizer='adam' is out of range")
    assert "Nothing: no attack ran." in result.to_html()


def test_noise():
    noisy = dp_sgd_gradient(MODEL, BATCH, LABELS, clipping=1.0, noise_std=0.1, random_state=0)
    inverter = GradientInverter(batch_size=4, noise_level=0.1, random_state=0)
    result = audit_model(MODEL, noisy, inverter, max_effort=2)
    measured, declared, _ = said(result)
    assert not result.verdict.is_leak
    assert declared["noise_level"]["value"] == "0.1"
    attacked = [one for one in measured if one["layer"]]
    assert attacked
    for one in attacked:
        layer = result[one["layer"]]
        start = "OUT OF RANGE, no conclusion: " if layer.verdict is Verdict.OUT_OF_RANGE else "NOT RECOVERED: "
        assert one["outcome"].startswith(start)


def test_an_interrupt_is_said():
    def stop(line):
        if "'2'" in line:
            raise KeyboardInterrupt

    result = audit_model(MODEL, client_gradient(MODEL, BATCH, LABELS), report=stop)
    measured, _, open_ = said(result)
    assert measured[0]["layer"] == "0"
    assert any(text.startswith("layers '2', '4', '6': interrupted before its turn") for text in open_)


def test_a_result_without_facts_of_its_run():
    assert statement(AuditResult((LayerAudit("a", None, "why"),)))["declared"] == []


@pytest.fixture
def files(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from sparsedl_fl.simulation import fully_connected\n\n"
        "def model():\n    return fully_connected(64, width=100, random_state=0)\n"
    )
    trained = fully_connected(64, width=100, random_state=0)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(trained(BATCH), LABELS).backward()
        optimizer.step()
    save_file(MODEL.state_dict(), tmp_path / "before.safetensors")
    save_file(trained.state_dict(), tmp_path / "after.safetensors")
    save_file({n: t.contiguous() for n, t in client_gradient(MODEL, BATCH, LABELS).items()}, tmp_path / "g.safetensors")
    np.savez(tmp_path / "records.npz", x=BATCH.numpy())
    return tmp_path


def on_command_line(files, capsys, *arguments):
    cli.main(["audit", f"{files}/mine.py:model", *map(str, arguments), "--weights", f"{files}/before.safetensors",
              "--json"])  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    jsonschema.validate(report, schema())
    found = report["statement"]
    return found["measured"], {one["name"]: one for one in found["declared"]}, found["not_looked_at"]


def test_options_of_the_command_line(files, capsys):
    options = ["--learning-rate", 0.05, "--local-steps", 2, "--batch-size", 4, "--effort", 2, "--input-shape", 64,
               "--eval", "--records", files / "records.npz"]  # fmt: skip
    measured, declared, open_ = on_command_line(files, capsys, files / "after.safetensors", *options)
    values = {name: one["value"] for name, one in declared.items()}
    assert values == {
        "kind": None, "loss": None, "optimizer": "sgd", "n_steps": "2", "learning_rate": "0.05", "momentum": "0.0",
        "weight_decay": "0.0", "batch_size": "4", "noise_level": None, "mode": "evaluation", "example": "64",
        "layers": None, "records": "4", "max_effort": "2.0", "max_seconds": None, "pictures": None,
    }  # fmt: skip
    assert declared["kind"]["assumed"] == "weights, by its numbers"
    assert any("records were trained on" in one["outcome"] for one in measured)
    assert not any("no records were given" in text for text in open_)


def test_a_gradient_on_the_command_line(files, capsys):
    _, declared, _ = on_command_line(files, capsys, files / "g.safetensors", "--effort", 2)
    assert declared["kind"]["assumed"] == "gradient, by its numbers"
    assert declared["mode"]["assumed"] == "training, as the function returns the model"
    assert not {"optimizer", "learning_rate", "n_steps"} & set(declared)


def test_a_gradient_that_was_not_sent():
    gradient = client_gradient(SMALL, BATCH, LABELS)
    gradient["2.weight"] = torch.full_like(gradient["2.weight"], torch.nan)
    with pytest.warns(UserWarning, match="NaN"):
        result = audit_model(SMALL, gradient, max_effort=2)
    _, _, open_ = said(result)
    assert "gradients that were not sent, or had NaN or infinity: 2.weight" in open_
    assert "Gradients that were not sent" in result.to_html()

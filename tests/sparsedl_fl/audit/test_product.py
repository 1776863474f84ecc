"""The audit as people use it: the order of attacks, backward propagation, replay, verdicts, the report."""

import json
import re
from dataclasses import replace
from html import unescape

import jsonschema
import numpy as np
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

from sparsedl_fl import GradientInverter
from sparsedl_fl.audit import AuditResult, LayerAudit, Verdict, audit_model, example
from sparsedl_fl.audit.last_layer import LabelSigns
from sparsedl_fl.audit.report import SECTIONS, as_html, schema
from sparsedl_fl.directions import ActivationDirections
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.models.reach import LEAKS_BY
from sparsedl_fl.simulation import client_gradient


@pytest.fixture(scope="module")
def digits():
    return example.records()


@pytest.fixture(scope="module")
def shipped():
    from sparsedl_fl.audit.files import load_model, load_update

    model = load_model("sparsedl_fl.audit.example:model", example.WEIGHTS)
    sent = load_update(model, example.UPDATE)
    return audit_model(model, sent.gradients, example=torch.zeros(1, 1, 8, 8))


def net(*sizes, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Flatten()]
        for n, m in zip(sizes[:-2], sizes[1:-1], strict=True):
            layers += [nn.Linear(n, m), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(*sizes[-2:]))


def test_attacks_where_there_is_most_room_and_peels(cifar):
    _, inputs, labels, _ = cifar.client(70, 10, 0)
    model = net(3072, 80, 400, 60, 10)
    audit = audit_model(model, client_gradient(model, inputs, labels))
    sources = ["backward from layer '3'", "attacked", "forward from layer '3'", "attacked"]
    assert [layer.source for layer in audit.layers] == sources
    assert audit.verdict is Verdict.RECOVERED
    assert audit.best.name == "1"
    assert match_batches(inputs, audit["1"].batch.inputs).squared_errors.max() < 1e-8
    assert audit.replay.n_matching >= 6
    assert sorted(audit.labels) == sorted(labels.tolist())


def test_the_shipped_example_is_recovered_replayed_and_labelled(shipped, digits):
    state, gradients = example.make()
    order = np.array([s.label for s in shipped.samples])
    assert shipped.verdict is Verdict.RECOVERED
    assert len(order) == 16
    assert (order >= 0).all()
    assert shipped.replay.is_match
    values = np.stack([sample.values for sample in shipped.samples])
    distances = np.abs(values[:, None] - digits[0].flatten(1).double().numpy()).max(axis=2)
    assert distances.min(axis=1).max() < 1e-5
    np.testing.assert_array_equal(digits[1].numpy()[distances.argmin(axis=1)], order)


def test_a_replay_sees_another_loss(digits):
    inputs, labels = digits[0][:8], digits[1][:8]
    model = net(64, 100, 100, 10)
    gradients = client_gradient(model, inputs, labels)
    gradients["5.weight"] = gradients["5.weight"] * 1.01  # a penalty on the head that nobody told of
    audit = audit_model(model, gradients)
    assert audit["1"].verdict is Verdict.RECOVERED
    assert audit.replay is not None
    assert not audit.replay.is_match


def test_equal_inputs_weigh_twice_in_the_replay(digits):
    inputs, labels = digits[0][[0, 1, 2, 3, 3]], digits[1][[0, 1, 2, 3, 3]]
    model = net(64, 100, 100, 10)
    audit = audit_model(model, client_gradient(model, inputs, labels))
    np.testing.assert_allclose(np.sort(audit.replay.weights), [0.2, 0.2, 0.2, 0.4], rtol=1e-3)
    assert audit.replay.is_match


def test_verdicts():
    nothing = AuditResult((LayerAudit("a", None, "a convolution"),))
    assert nothing.verdict is Verdict.OUT_OF_RANGE
    assert nothing.verdict.exit_status == 3
    assert "a convolution" in nothing.reason
    assert nothing.samples == ()
    assert len(nothing.labels) == 0
    assert {str(verdict): verdict.exit_status for verdict in Verdict} == {
        "RECOVERED": 1, "PARTLY": 1, "LIKELY": 1, "OUT OF RANGE": 3, "NOT RECOVERED": 0,
    }  # fmt: skip
    assert not any("safe" in verdict.meaning.lower() for verdict in Verdict)


def test_nothing_recovered_is_said_as_what_it_is(digits):
    model = net(64, 160, 10)
    sent, generator = client_gradient(model, digits[0][:20], digits[1][:20]), torch.Generator().manual_seed(0)
    gradients = {name: t + 0.5 * t.std() * torch.randn(t.shape, generator=generator) for name, t in sent.items()}
    weak = GradientInverter(ActivationDirections(patience=1), batch_size=20, random_state=0)
    audit = audit_model(model, gradients, weak, example=torch.zeros(1, 1, 8, 8), peel=False)
    assert audit.verdict is Verdict.NOT_RECOVERED
    assert audit.samples == ()
    assert "Other attacks" in audit.to_html()


def test_an_interrupt_keeps_what_was_found(digits, monkeypatch):
    model = net(64, 100, 100, 10)
    gradients = client_gradient(model, digits[0][:6], digits[1][:6])
    calls = []

    def stop(line):
        calls.append(line)
        if len(calls) > 1:
            raise KeyboardInterrupt

    audit = audit_model(model, gradients, report=stop, peel=False)
    assert audit["1"].verdict is Verdict.RECOVERED
    assert "interrupted" in audit["3"].reason


def test_json_follows_the_schema_and_redacts(shipped, tmp_path):
    for shown in (False, True):
        report = json.loads(shipped.to_json(tmp_path / "report.json", show_samples=shown))
        jsonschema.validate(report, schema())
        assert len(report["samples"]) == (16 if shown else 0)
        assert json.loads((tmp_path / "report.json").read_text()) == report
    assert report["verdict"] == "RECOVERED"
    assert report["replay"]["n_matching"] == 6
    assert len(report["run"]["model_sha256"]) == 64


def test_the_schema_refuses_another_verdict(shipped):
    report = json.loads(shipped.to_json())
    report["verdict"] = "SAFE"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, schema())


def test_the_page_is_self_contained_and_says_the_verdict_first(shipped):
    page = shipped.to_html()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "data:image" not in page  # redacted
    assert page.index("RECOVERED") < page.index("<nav")
    assert all(f'id="{name}"' in page and heading in page for name, heading in SECTIONS.items())
    assert page.count("data:image/png") == 0
    assert shipped.to_html(show_samples=True).count("data:image/png") == 16


def test_what_the_model_is_called_cannot_break_the_page(shipped):
    layer = LayerAudit("<script>alert(1)</script>", None, "<b>why</b>")
    page = AuditResult((layer,), context=shipped.context).to_html()
    assert "<script>" not in page
    assert "<b>why" not in AuditResult((layer,))._repr_html_()


def test_table_rows_are_decoded():
    rng, n = np.random.default_rng(0), 40
    words = [rng.choice(["red", "green", "blue"], n), rng.choice(["Bern", "Graz", "Linz", "Ulm"], n)]
    table = np.column_stack([*words, rng.integers(20, 80, n), rng.integers(100, 200, n)]).astype(object)
    table[:, 2:] = table[:, 2:].astype(float)
    encoder = ColumnTransformer(
        [("words", OneHotEncoder(), [0, 1]), ("numbers", StandardScaler(), [2, 3])], sparse_threshold=0
    )
    inputs = torch.tensor(encoder.fit_transform(table), dtype=torch.float32)[:4]
    model = net(inputs.shape[1], 60, 60, 5)
    audit = audit_model(model, client_gradient(model, inputs, torch.arange(4)))
    assert audit["1"].verdict is Verdict.RECOVERED
    page = audit.to_html(show_samples=True, decoder=encoder)
    rows = re.findall(r"<tr><td>(\w+)</td><td>(\w+)</td><td>([\d.]+)</td><td>([\d.]+)</td>", page)
    shown = {(colour, town, round(float(age), 3), round(float(size), 3)) for colour, town, age, size in rows}
    assert shown == {tuple(row) for row in table[:4]}


def test_images_from_a_decoder_of_ones_own(shipped):
    page = as_html(shipped, show_samples=True, decoder=lambda values: values.reshape(-1, 8, 8))
    assert page.count("data:image/png") == 16
    with pytest.raises(ValueError, match="decoder must return"):
        as_html(shipped, show_samples=True, decoder=lambda values: values)


def test_notebook_and_picture(shipped):
    assert "<table>" in shipped._repr_html_()
    assert "RECOVERED" in repr(shipped)
    axes = shipped.plot()
    assert len(axes.patches) == 6


def test_plain_words_of_what_is_likely_of_labels_and_of_what_was_sent(shipped):
    page = shipped.to_html()
    assert "Taken as the gradient of one step." in page
    assert {layer.row.attack for layer in shipped.layers} <= set(LEAKS_BY)
    assert all(LEAKS_BY[layer.row.attack] in unescape(page) for layer in shipped.layers)
    # Labels that are certain say that there are as many records at least, and estimates for fewer are left out.
    signs = LabelSigns({1: None, 2: None, 3: None}, {1: 1}, True, "certain: one step of cross-entropy on hard labels")
    nothing = AuditResult((LayerAudit("1", None, "why"),), context=shipped.context, label_signs=signs)
    assert nothing.to_dict(show_samples=True)["labels_estimated"] == {}
    assert "at least 3" in nothing.to_html()
    assert "no reassurance" in nothing.to_html()
    assert "personal data where the batch was" not in nothing.to_html()  # nothing is left out where nothing came back
    adam = replace(nothing, replay_reason="Adam", context={**shipped.context, "attack": "none"})
    assert "An update that is no sum of gradients" in adam.to_html()

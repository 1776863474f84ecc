"""Opacus: the audit sees what leaves the optimiser, and the accountant goes on counting."""

import signal
import warnings

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn

from sparsedl_fl.audit import Verdict
from sparsedl_fl.federation import LeakWarning
from sparsedl_fl.federation.opacus import audit_steps

pytestmark = pytest.mark.filterwarnings("ignore")


def private(maker, digits, sigma, clipping=1e3):
    model = maker()
    data = torch.utils.data.TensorDataset(digits[0][:64], digits[1][:64])
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05), data_loader=loader,
        noise_multiplier=sigma, max_grad_norm=clipping, poisson_sampling=False,
    )  # fmt: skip
    return engine, model, optimizer, loader


def run(model, optimizer, loader, n_steps):
    for (x, y), _ in zip(loader, range(n_steps), strict=False):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.slow
def test_steps_are_audited_and_counted(maker, digits, tmp_path):
    engine, model, optimizer, loader = private(maker, digits, 1.0, 1.0)
    audits = audit_steps(optimizer, model, accountant=engine.accountant, every=2, max_effort=1, out=tmp_path)
    run(model, optimizer, loader, 3)
    assert not audits.errors
    assert list(audits.results) == [1, 3]
    assert engine.accountant.history[0][2] == 3
    result = audits.results[3]
    assert result.verdict is not Verdict.RECOVERED
    statement = result.context["dp"]
    assert statement["noise_multiplier"] == 1.0
    assert statement["steps"] == 3
    assert statement["epsilon"] == pytest.approx(engine.get_epsilon(1e-5))
    page = (tmp_path / "step-00003.html").read_text()
    assert "unit of privacy: record" in page


def test_without_noise_the_hook_sees_the_leak(maker, digits):
    _, model, optimizer, loader = private(maker, digits, 0.0)
    audits = audit_steps(optimizer, model)
    run(model, optimizer, loader, 1)
    assert audits.results[1].verdict is Verdict.RECOVERED
    assert audits.results[1].context["dp"]["epsilon"] is None
    audits.detach(optimizer)
    run(model, optimizer, loader, 1)
    assert audits.n_steps == 1


def test_an_error_inside_does_not_break_a_training(maker, digits, monkeypatch):
    engine, model, optimizer, loader = private(maker, digits, 1.0)
    audits = audit_steps(optimizer, model)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        monkeypatch.setattr("sparsedl_fl.federation.opacus.audit_model", lambda *_, **__: 1 / 0)
        run(model, optimizer, loader, 1)
    assert "ZeroDivisionError" in audits.errors[1]
    assert any(w.category is LeakWarning for w in said)
    assert len(engine.accountant) == 1


def test_an_interrupt_ends_the_training_before_the_step(maker, digits, monkeypatch):
    _, model, optimizer, loader = private(maker, digits, 1.0)
    audits = audit_steps(optimizer, model)
    monkeypatch.setattr("sparsedl_fl.inverter.GradientInverter.fit", lambda *_: signal.raise_signal(signal.SIGINT))
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(KeyboardInterrupt):
        run(model, optimizer, loader, 1)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    assert audits.errors[1].startswith("interrupted")


def test_a_report_that_cannot_be_written_is_told(maker, digits, tmp_path):
    _, model, optimizer, loader = private(maker, digits, 0.0)
    audits = audit_steps(optimizer, model, out=tmp_path / "reports")
    (tmp_path / "reports").write_text("no folder")
    run(model, optimizer, loader, 1)
    assert audits.results[1].verdict is Verdict.RECOVERED
    assert "Error" in audits.errors[1]


@pytest.mark.parametrize(
    ("name", "value"), [("loss", "nonsense"), ("every", 0), ("max_effort", 0), ("example", "no tensor"), ("out", 3)]
)
def test_slips_are_refused_at_once(maker, digits, name, value):
    _, model, optimizer, _ = private(maker, digits, 0.0)
    with pytest.raises(ValueError, match=name):
        audit_steps(optimizer, model, **{name: value})


def test_what_is_no_private_optimiser_is_refused(maker):
    model = maker()
    with pytest.raises(TypeError, match="must be an opacus DPOptimizer"):
        audit_steps(torch.optim.SGD(model.parameters(), lr=0.1), model)

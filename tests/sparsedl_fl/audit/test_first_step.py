"""Tests of audits of one step of an adaptive optimiser."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import GradientInverter
from sparsedl_fl.audit import Verdict
from sparsedl_fl.audit.first_step import audit_first_step, is_first_step
from sparsedl_fl.federation import check_update

OPTIMIZERS = {
    "adam": (torch.optim.Adam, 1e-2, 0.0),
    "adamw": (torch.optim.AdamW, 1e-2, 0.01),
    "adamax": (torch.optim.Adamax, 1e-2, 0.0),
    "rmsprop": (torch.optim.RMSprop, 1e-2, 0.0),
}


def _client(optimizer: str, seed: int = 0, n_steps: int = 1, *, decay: float | None = None):
    """Return a model of 100 units, the weights after steps on four records of 64 numbers, and these records."""
    kind, rate, own_decay = OPTIMIZERS[optimizer]
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(4, 64, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 40), nn.ReLU(), nn.Linear(40, 10))
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    steps = kind(model.parameters(), lr=rate, weight_decay=own_decay if decay is None else decay)
    for _ in range(n_steps):
        steps.zero_grad()
        nn.functional.cross_entropy(model(batch), torch.arange(4)).backward()
        steps.step()
    after = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(before)
    return model, after, batch


def _audited(optimizer: str, seed: int = 0, batch_size: int | None = None):
    model, after, batch = _client(optimizer, seed)
    inverter = GradientInverter(batch_size=batch_size, random_state=0)
    _, rate, decay = OPTIMIZERS[optimizer]
    return audit_first_step(model, after, rate, optimizer, inverter, weight_decay=decay, example=batch[:1]), batch


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_step_gives_its_batch_away(optimizer):
    audit, batch = _audited(optimizer)
    assert audit.verdict is Verdict.RECOVERED
    found = audit["0"].samples
    errors = [np.sqrt(np.mean((batch.numpy() - sample.values) ** 2, axis=1)).min() for sample in found]
    assert len(found) == 4
    assert max(errors) < 0.05
    assert all(error < 3 * sample.error for error, sample in zip(errors, found, strict=True))
    assert f"one step of {optimizer}" in audit.notes[0]
    assert "of rank 4" in audit.notes[0]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("batch_size", [3, 6])
def test_a_wrong_batch_size_does_no_harm(batch_size):
    audit, _ = _audited("adam", batch_size=batch_size)
    assert audit.batch_size == 4


def test_two_steps_are_out_of_range():
    model, after, batch = _client("adam", n_steps=2)
    audit = check_update(model, None, after, learning_rate=1e-2, optimizer="adam", example=batch[:1])
    assert audit.verdict is Verdict.OUT_OF_RANGE
    assert "several local steps" in audit.reason
    assert not is_first_step("adam", 2)


@pytest.mark.parametrize(("rate", "decay"), [(1.01e-2, 0.0), (1e-2, 0.1)])
def test_another_rate_or_decay_fits_nothing(rate, decay):
    model, after, batch = _client("adam")
    client = {"weight_decay": decay, "inverter": GradientInverter(random_state=0), "example": batch[:1]}
    audit = audit_first_step(model, after, rate, "adam", **client)
    assert audit.verdict is Verdict.OUT_OF_RANGE
    assert "another rate or weight decay" in audit.reason


def test_half_precision_shows_too_little():
    model, after, batch = _client("adam")
    halved = {name: tensor.bfloat16() for name, tensor in after.items()}
    audit = check_update(model, None, halved, learning_rate=1e-2, n_steps=1, optimizer="adam", example=batch[:1])
    assert audit.verdict is Verdict.OUT_OF_RANGE


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_step_may_be_sent_as_a_difference():
    model, after, batch = _client("adam")
    moved = {name: after[name] - tensor for name, tensor in model.state_dict().items()}
    client = {"learning_rate": 1e-2, "n_steps": 1, "optimizer": "adam", "example": batch[:1]}
    audit = check_update(model, None, moved, is_difference=True, **client)
    assert audit.verdict is Verdict.RECOVERED


def test_spoilt_weights_are_named():
    model, after, batch = _client("adam")
    after["2.weight"][0, 0] = torch.nan
    inverter = GradientInverter(random_state=0)
    audit = audit_first_step(model, after, 1e-2, "adam", inverter, example=batch[:1])
    assert audit.verdict is Verdict.OUT_OF_RANGE
    assert "NaN or infinity in '2.weight'" in audit.reason

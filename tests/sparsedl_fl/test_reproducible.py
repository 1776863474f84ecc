"""Two runs with one seed give the same numbers, whatever else the machine does."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.audit import audit_model
from sparsedl_fl.federation.checking import check_update
from sparsedl_fl.simulation import client_gradient, fedavg_update, fully_connected

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def network(activation, n_hidden, m=40, n=50):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hidden = [nn.Linear(n, m), activation()] + [nn.Linear(m, m), activation()] * (n_hidden - 1)
        return nn.Sequential(*hidden, nn.Linear(m, 10))


def batch_of(b, n=50):
    return torch.randn(b, n, generator=torch.Generator().manual_seed(0)), torch.arange(b) % 10


@pytest.fixture
def slow_machine(monkeypatch):
    """A clock on which a thousand seconds pass between two looks at it."""
    ticks = itertools.count(0.0, 1000.0)
    for name in ("monotonic", "perf_counter", "process_time", "time"):
        monkeypatch.setattr(f"time.{name}", lambda: next(ticks))


def numbers(audit):
    """Return all that an audit has found, bit by bit."""
    found = {}
    for layer in audit.layers:
        known = layer.inverter
        arrays = () if known is None else (known.inputs_, known.uncertainty_, known.labels_)
        starts = None if known is None else (known.n_starts_, known.status_)
        found[layer.name] = (str(layer.verdict), layer.reason, starts, *(array.tobytes() for array in arrays))
    return found


PROBLEMS = [(nn.ReLU, 1, 4), (nn.ReLU, 3, 18), (nn.GELU, 1, 19), (nn.Hardtanh, 2, 12)]
"""From one that comes back at once to some that do not."""


@pytest.fixture(params=PROBLEMS, ids=str)
def update(request):
    activation, n_hidden, b = request.param
    model = network(activation, n_hidden)
    return model, *fedavg_update(model, *batch_of(b), learning_rate=0.1)


def checked(model, before, after, **given):
    return numbers(check_update(model, before, after, learning_rate=0.1, n_steps=1, **given))


def test_a_check_has_the_same_numbers_on_any_machine(update, slow_machine, request):
    slow = checked(*update, max_effort=1.0)
    request.getfixturevalue("monkeypatch").undo()
    junk = [torch.full((size,), size) for size in range(1, 400, 7)]
    del junk[::2]
    assert checked(*update, max_effort=1.0) == slow


def test_a_cap_of_seconds_that_is_hit_is_said(slow_machine):
    model = network(nn.ReLU, 1)
    audit = audit_model(model, client_gradient(model, *batch_of(18)), layers=[0], max_seconds=5)
    assert "cap of seconds was reached" in audit.layers[0].reason
    assert not audit.is_complete


def test_effort_that_is_spent_is_said_and_ends_at_the_same_start():
    model = network(nn.ReLU, 1)
    gradient = client_gradient(model, *batch_of(18))
    audits = [audit_model(model, gradient, max_effort=0.02) for _ in range(2)]
    assert numbers(audits[0]) == numbers(audits[1])
    assert "the effort of 0.02 is spent" in audits[0].layers[0].reason
    n_starts, n_round, price = audits[0].layers[0].inverter.n_starts_, 64, 18 * 40 * 2.5e-7
    assert 0.02 <= n_starts * price < 0.02 + n_round * price
    later = [layer.reason for layer in audits[0].layers[1:]]
    assert all("was spent before" in reason or "certified" in reason for reason in later)


def test_searches_near_half_of_the_width_are_the_same_bit_for_bit():
    batch, labels = batch_of(47, n=300)
    model = fully_connected(300, width=100, random_state=0)
    given, found, kept = LayerGradient.from_model(model, client_gradient(model, batch, labels)), [], []
    for size in range(2):
        kept.append(np.arange(1000.0 + 137 * size))
        found.append(GradientInverter(random_state=0).fit(given).inputs_.tobytes())
    assert len(set(found)) == 1

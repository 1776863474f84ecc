"""A small model on real digits, and clients that train it."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl.audit import example

RATE = 0.05


def make_model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return example.model()


class Counting(nn.Module):
    """The same behind a normalisation with an integer counter among its buffers."""

    def __init__(self):
        super().__init__()
        self.body = make_model()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.body(x)


@pytest.fixture(scope="session")
def digits():
    return example.records()


@pytest.fixture
def train(digits):
    def run(model, seed=0, n=8, steps=1, optimizer=None):
        part = np.random.default_rng(seed).choice(len(digits[0]), n, replace=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE) if optimizer is None else optimizer
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(digits[0][part]), digits[1][part]).backward()
            optimizer.step()
        return part

    return run


@pytest.fixture
def maker():
    return make_model


@pytest.fixture
def counting():
    return Counting


@pytest.fixture
def flower_task(monkeypatch):
    """Flower's messages want to know which task they come from."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Told:
    """What an audit might return."""

    best, replay, likely, tokens = None, None, (), ()

    def __init__(self, verdict, is_complete=True, is_interrupted=False, missing=None):
        self.verdict, self.is_complete, self.is_interrupted = verdict, is_complete, is_interrupted
        self.context, self.reason = {"missing": missing}, "0 of 8 inputs"

    def to_json(self, path):
        path.write_text("{}")

    to_html = to_json


@pytest.fixture
def audit_says(monkeypatch):
    """Let every audit end with what is given, or raise it; return the calls."""

    def put(what, **state):
        calls = []

        def check(*arguments, **options):
            calls.append(arguments)
            if isinstance(what, BaseException):
                raise what
            return Told(what, **state)

        monkeypatch.setattr("sparsedl_fl.federation.outcome.check_update", check)
        return calls

    return put

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

"""A batch of one record is the weight gradient over the bias gradient."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl import GradientInverter
from sparsedl_fl.audit import Verdict, audit_model
from sparsedl_fl.simulation import client_gradient

MODELS = {
    "two classes": lambda: nn.Sequential(nn.Linear(50, 2)),
    "one logit": lambda: nn.Sequential(nn.Linear(50, 1)),
    "ten classes": lambda: nn.Sequential(nn.Linear(50, 10)),
    "normalised": lambda: nn.Sequential(nn.Linear(50, 20), nn.LayerNorm(20), nn.ReLU(), nn.Linear(20, 4)),
    "tanh": lambda: nn.Sequential(nn.Linear(50, 20), nn.Tanh(), nn.Linear(20, 2)),
    "relu": lambda: nn.Sequential(nn.Linear(50, 30), nn.ReLU(), nn.Linear(30, 2)),
}


def binary(outputs, labels):
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.float())


def client(name, b):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(b)
        model, x = MODELS[name](), 3 * torch.randn(b, 50)
    labels = torch.arange(b) % 2
    loss = binary if name == "one logit" else functional.cross_entropy
    return model, x, client_gradient(model, x, labels, loss)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("told", [None, 1])
def test_it_comes_back_behind_any_layer(name, told):
    model, x, gradients = client(name, 1)
    audit = audit_model(model, gradients, GradientInverter(batch_size=told, random_state=0))
    assert audit.verdict is Verdict.RECOVERED
    assert audit.best.name == "0"
    assert np.abs(audit.samples[0].values - x[0].double().numpy()).max() < 1e-5


@pytest.mark.parametrize("name", ["two classes", "one logit"])
def test_a_mean_of_several_is_certified_by_nothing(name):
    model, _, gradients = client(name, 4)
    audit = audit_model(model, gradients)
    assert audit.verdict is Verdict.OUT_OF_RANGE
    assert "mean of the inputs" in audit.reason
    assert audit.samples == ()


@pytest.mark.parametrize("n_classes", [2, 10])
def test_a_head_of_zeros_says_nothing_of_how_many_records_there_are(n_classes):
    model, x = nn.Sequential(nn.Linear(50, n_classes)), torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    audit = audit_model(model, client_gradient(model, x, torch.ones(4, dtype=torch.long)), example=x[:1])
    assert audit.samples == ()
    assert audit.verdict is Verdict.OUT_OF_RANGE


def test_one_row_that_a_wire_left_is_no_record():
    model, _, gradients = client("ten classes", 4)
    row = gradients["0.weight"].abs().sum(dim=1).argmax()
    kept = torch.arange(10) == row
    cut = {"0.weight": gradients["0.weight"] * kept[:, None], "0.bias": gradients["0.bias"] * kept}
    assert audit_model(model, cut).samples == ()


def test_a_loss_that_is_declared_contradicts_a_batch_size_of_one():
    model, _, gradients = client("two classes", 4)
    told = GradientInverter(batch_size=1, random_state=0)
    assert audit_model(model, gradients, told, loss="cross_entropy").samples == ()


def test_noise_is_an_error_of_its_size():
    model, x, gradients = client("ten classes", 1)
    generator = torch.Generator().manual_seed(0)
    ratios = []
    for _ in range(20):
        noisy = {name: t + 1e-3 * torch.randn(t.shape, generator=generator) for name, t in gradients.items()}
        audit = audit_model(model, noisy, GradientInverter(batch_size=1, random_state=0))
        sample = audit.samples[0]
        ratios.append(np.sqrt(np.mean((sample.values - x[0].double().numpy()) ** 2)) / sample.error)
    assert 0.5 < np.median(ratios) < 2
    assert max(ratios) < 5

"""Layers whose bias has no gradient: the next layer's gradient tells the scale of their inputs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl.activations import GELU, LeakyReLU, ReLU, ReLU6
from sparsedl_fl.audit import Verdict, audit_model
from sparsedl_fl.audit.example import records
from sparsedl_fl.propagate.scales import NoScale, hides_scale, next_gradient
from sparsedl_fl.simulation import client_gradient


def client(make, *, bias=True, size=1.0, batch=8, seed=0):
    """Return a model whose first biases are frozen, records, and a gradient without these."""
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 120, bias=bias), make(), nn.Linear(120, 100, bias=bias), make(), nn.Linear(100, 10)]
    model = nn.Sequential(*layers)
    for layer in (model[0], model[2]):
        if bias:
            nn.init.normal_(layer.bias, std=0.1 * size)
    digits, labels = records()
    pick = np.random.default_rng(seed).choice(len(digits), batch, replace=False)
    inputs = digits[pick].flatten(1)
    sent = client_gradient(model, inputs, labels[pick])
    for layer in (model[0], model[2]):
        if bias:
            layer.bias.requires_grad_(False)
    return model, inputs.double().numpy(), {name: sent[name] for name in sent if name not in ("0.bias", "2.bias")}


def errors_of(layer, inputs):
    """Return the errors of certified inputs over those expected."""
    found, certified = layer.batch.inputs, layer.batch.certified
    away = np.sqrt(np.mean((found[certified][:, None] - inputs) ** 2, axis=2)).min(axis=1)
    return away / layer.batch.errors[certified]


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (nn.GELU, 1),
        (nn.ReLU, 8),
        (nn.GELU, 8),
        (nn.Tanh, 8),
        pytest.param(nn.ReLU, 1, marks=pytest.mark.slow),
        pytest.param(nn.ReLU, 20, marks=pytest.mark.slow),
        pytest.param(nn.Tanh, 20, marks=pytest.mark.slow),
    ],
)
def test_a_frozen_bias_hides_no_input(make, batch):
    model, inputs, gradients = client(make, batch=batch)
    layer = audit_model(model, gradients)["0"]
    assert layer.n_certified == batch, layer.reason
    assert errors_of(layer, inputs).max() < 3


@pytest.mark.parametrize("make", [nn.GELU, nn.SiLU])
def test_a_smooth_activation_needs_no_bias_at_all(make):
    model, inputs, gradients = client(make, bias=False)
    layer = audit_model(model, gradients)["0"]
    assert layer.n_certified == 8, layer.reason
    assert errors_of(layer, inputs).max() < 3


def test_without_any_bias_relu_shows_no_scale():
    model, _, gradients = client(nn.ReLU, bias=False)
    layer = audit_model(model, gradients)["0"]
    assert (layer.verdict, layer.n_certified) == (Verdict.OUT_OF_RANGE, 0)
    assert "it has no bias" in layer.reason


@pytest.mark.parametrize("size", [1e-1, 1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_smaller_the_biases_the_larger_the_errors(size, seed):
    model, inputs, gradients = client(nn.ReLU, size=size, seed=seed)
    layer = audit_model(model, gradients)["0"]
    if layer.n_certified:
        assert errors_of(layer, inputs).max() < 3
    assert layer.n_certified or size < 1e-2


def test_of_several_local_steps_the_scale_is_not_searched_for():
    model, _, gradients = client(nn.ReLU)
    layer = audit_model(model, gradients, learning_rate=0.1)["0"]
    assert layer.verdict is Verdict.OUT_OF_RANGE
    assert "local steps" in layer.reason


def test_activations_proportional_to_their_input_hide_the_scale():
    assert hides_scale(ReLU(), None)
    assert hides_scale(LeakyReLU(0.2), np.zeros(3))
    assert not hides_scale(LeakyReLU(0.2), np.ones(3))
    assert not hides_scale(ReLU6(), None)
    assert not hides_scale(GELU(), None)


@pytest.mark.parametrize("layers", [(), (SimpleNamespace(weight_grad=None),)], ids=["none behind", "not sent"])
def test_without_the_next_gradient_there_is_no_scale(layers):
    """A filter that zeroes the lowest percentile may leave neither a bias gradient nor the next layer's."""
    with pytest.raises(NoScale, match="neither a bias gradient was sent nor the next layer's gradient"):
        next_gradient(SimpleNamespace(layers=layers))

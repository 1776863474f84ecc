"""Every activation with a flat part gives the batch away, one that is hardly ever flat does not, and both are said."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.activations import Hardtanh, Threshold
from sparsedl_fl.simulation import client_gradient


def attack(module, activation, scale=1.0, has_next=True, seed=0):
    """Attack a batch of 16 at a width of 120, with weights scaled."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(150, 120), module, nn.Linear(120, 60), nn.ReLU(), nn.Linear(60, 10))
        batch = torch.randn(16, 150)
    with torch.no_grad():
        model[0].weight.mul_(scale)
    gradient = client_gradient(model, batch, torch.arange(16) % 10)
    given = replace(LayerGradient.from_model(model, gradient, example=batch), activation=activation)
    given = given if has_next else replace(given, next_weight_grad=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        inverter = GradientInverter(random_state=0).fit(given)
    squares = np.mean((batch.double().numpy()[None] - inverter.inputs_[:, None]) ** 2, axis=2)
    return inverter, np.sqrt(squares.min(axis=1))


@pytest.mark.parametrize("has_next", [True, False])
@pytest.mark.parametrize(
    ("module", "activation", "scale"),
    [
        (nn.ReLU6(), "relu6", 1.0),
        (nn.ReLU6(), "relu6", 8.0),  # many units above six
        pytest.param(nn.Hardtanh(), "hardtanh", 4.0, marks=pytest.mark.slow),
        pytest.param(nn.Hardtanh(-0.2, 3.0), Hardtanh(-0.2, 3.0), 1.0, marks=pytest.mark.slow),
        (nn.Threshold(0.2, 0.0), Threshold(0.2, 0.0), 1.0),
        pytest.param(nn.Threshold(-0.3, 0.1), Threshold(-0.3, 0.1), 1.0, marks=pytest.mark.slow),
    ],
    ids=lambda value: repr(value).replace(" ", ""),
)
def test_the_batch_comes_back(module, activation, scale, has_next):
    inverter, errors = attack(module, activation, scale, has_next)
    assert inverter.recovered_.all()
    assert errors.max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_where_units_are_hardly_ever_off_the_next_layer_helps(seed):
    inverter, errors = attack(nn.Hardtanh(), "hardtanh", seed=seed)
    assert inverter.recovered_.all()
    assert np.all(errors < np.maximum(1e-3, 10 * inverter.uncertainty_))
    assert not attack(nn.Hardtanh(), "hardtanh", has_next=False, seed=seed)[0].recovered_.any()


def test_another_threshold_than_declared_certifies_nothing_wrong():
    inverter, errors = attack(nn.Threshold(0.8, 0.0), Threshold(0.0, 0.0))
    wrong = inverter.recovered_ & (errors > np.maximum(1e-3, 10 * inverter.uncertainty_))
    assert not wrong.any()

"""Records of few numbers, more of them than numbers each, behind networks of two and three hidden layers."""

import pytest
import torch
from torch import nn

from sparsedl_fl import LayerGradient
from sparsedl_fl.simulation import client_gradient


def records(n_records, n_features=6, seed=0):
    return torch.randn(n_records, n_features, generator=torch.Generator().manual_seed(seed))


def network(n_features=6, width=100, behind=60, activation=nn.ReLU, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(n_features, width), activation(), nn.Linear(width, behind), activation()]
        return nn.Sequential(*layers, nn.Linear(behind, 2))


@pytest.fixture
def many_samples():
    """Return what draws a problem: inputs, labels, the model and the gradient of its first layer."""

    def draw(n_records=24, activation=nn.ReLU, inputs=None, **sizes):
        model = network(activation=activation, **sizes)
        inputs = records(n_records, model[0].in_features) if inputs is None else inputs
        labels = torch.arange(len(inputs)) % 2
        given = LayerGradient.from_model(model, client_gradient(model, inputs, labels), "0", example=inputs[:2])
        return inputs, labels, model, given

    return draw

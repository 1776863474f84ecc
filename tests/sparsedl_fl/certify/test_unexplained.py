"""Later layers whose gradients are of another batch certify none of it."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.directions import ActivationDirections
from sparsedl_fl.metrics import are_wrong
from sparsedl_fl.simulation import client_gradient

N_CLASSES = 10


def client(share, seed, *, batch_size=5):
    """The gradient of a batch, with later layers' gradients of mixtures of its inputs, and the batch."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(80, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, N_CLASSES)
    )  # fmt: skip
    batch, labels = torch.randn(batch_size, 80), torch.randint(N_CLASSES, (batch_size,))
    gradients = client_gradient(model, batch, labels)
    mixed = client_gradient(model, (1 - share) * batch + share * batch.roll(1, dims=0), labels)
    sent = {name: gradients[name] if name.startswith("0.") else mixed[name] for name in gradients}
    return LayerGradient.from_model(model, sent, "0"), batch.numpy()


def inverted(given):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return GradientInverter(ActivationDirections(patience=8), random_state=0).fit(given)


@pytest.mark.parametrize("share", [0.5, 0.2, 0.05])
@pytest.mark.parametrize("seed", range(4))
def test_means_of_which_later_gradients_are_are_not_certified(share, seed):
    given, batch = client(share, seed)
    inverter = inverted(given)
    certified = inverter.recovered_
    assert not are_wrong(batch, inverter.inputs_[certified], inverter.uncertainty_[certified]).any()


@pytest.mark.parametrize("seed", range(4))
def test_an_honest_batch_stays_certified(seed):
    given, batch = client(0.0, seed, batch_size=36)
    inverter = inverted(given)
    assert inverter.recovered_.all()
    errors = np.sqrt(np.mean((batch[:, None] - inverter.inputs_[None]) ** 2, axis=2)).min(axis=1)
    assert errors.max() < 1e-3

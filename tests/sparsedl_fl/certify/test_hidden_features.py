"""Tests of features without a gradient: zero, or masked by the client."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient

N_FEATURES = 300


def _inverted(seed: int, masked: int, wrong: float = 0.0, n_dead: int = 0) -> tuple[GradientInverter, np.ndarray]:
    """Return the inverter of six records behind 100 units, the first features without a gradient; and true errors."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    batch = torch.randn(6, N_FEATURES, generator=generator)
    batch[:, N_FEATURES - n_dead :] = 0
    model = nn.Sequential(nn.Linear(N_FEATURES, 100), nn.ReLU(), nn.Linear(100, 10))
    nn.functional.cross_entropy(model(batch), torch.arange(6)).backward()
    gradient = {name: parameter.grad for name, parameter in model.named_parameters()}
    gradient["0.weight"][:, :masked] = 0
    with torch.no_grad():
        model[0].weight *= 1 + wrong * torch.randn(100, N_FEATURES, generator=generator)
    inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, gradient))
    distances = np.linalg.norm(inverter.inputs_[:, None] - batch.numpy(), axis=2) / np.sqrt(N_FEATURES)
    return inverter, distances.min(axis=1)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("masked", [3, 15])
@pytest.mark.parametrize("seed", range(5))
def test_masked_features_count_as_errors(seed, masked):
    inverter, errors = _inverted(seed, masked)
    certified = inverter.recovered_
    assert np.all(errors[certified] < 3 * inverter.uncertainty_[certified])
    assert certified.any()
    assert np.all(inverter.uncertainty_[certified] < 1)


@pytest.mark.parametrize("seed", range(3))
def test_features_that_are_zero_cost_nothing(seed):
    inverter, errors = _inverted(seed, 0, n_dead=100)
    assert inverter.recovered_.all()
    assert errors.max() < 1e-5
    assert inverter.uncertainty_.max() < 1e-6
    assert "100 features have no gradient and count as zero" in inverter.status_


def test_without_such_features_nothing_is_said():
    inverter, _ = _inverted(0, 0, wrong=0.01)
    assert "no gradient" not in inverter.status_
    assert inverter.uncertainty_.max() < 1e-6

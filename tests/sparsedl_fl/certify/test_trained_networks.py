"""Records behind trained networks: gradients of sizes over seven decades, the weakest of them at rounding."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient

PIXELS, CLASSES = load_digits(return_X_y=True)
PIXELS, CLASSES = torch.tensor(PIXELS / 16, dtype=torch.float32), torch.tensor(CLASSES)


def _inverted(seed: int, b: int, n_steps: int, rate: float) -> tuple[GradientInverter, np.ndarray]:
    """Return the inverter of digits behind a network trained on others, and how far each input is from a digit."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 120), nn.ReLU(), nn.Linear(120, 120), nn.ReLU(), nn.Linear(120, 10))
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n_steps):
        index = torch.randint(1000, (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(PIXELS[index]), CLASSES[index]).backward()
        optimizer.step()
    optimizer.zero_grad()
    index = 1000 + torch.randperm(700, generator=generator)[:b]
    nn.functional.cross_entropy(model(PIXELS[index]), CLASSES[index]).backward()
    gradient = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, gradient))
    return inverter, torch.cdist(torch.tensor(inverter.inputs_), PIXELS[index].double()).amin(dim=1).numpy() / 8


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("seed", "least"), [(0, 18), (2, 14), (4, 18)])
def test_digits_behind_a_trained_network_are_certified(seed, least):
    inverter, errors = _inverted(seed, 24, 200, 0.1)
    certified = inverter.recovered_
    assert certified.sum() >= least
    assert np.all(errors[certified] <= 3 * inverter.uncertainty_[certified])


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("seed", [3, 4, 6])
def test_samples_too_weak_to_count_add_to_the_errors(seed):
    inverter, errors = _inverted(seed, 16, 300, 0.2)
    certified = inverter.recovered_
    assert 5 <= certified.sum() <= inverter.batch_size_ < 16
    assert np.all(errors[certified] <= 3 * inverter.uncertainty_[certified])

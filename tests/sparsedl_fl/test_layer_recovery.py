"""One more input that the bias gradient shows: taken where the batch is whole with it, and not where it is noise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.lowrank.factorization import factorize, with_one_more_by_bias
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import client_gradient

B, M, N = 14, 100, 64


def draw(seed):
    """Return a layer's gradient and the batch: its second record is a copy, brighter by 2 %, that switches one unit."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(N, M), nn.ReLU(), nn.Linear(M, 2))
    batch = torch.rand((B, N), generator=generator)
    batch[1] = 1.02 * batch[0]
    with torch.no_grad():  # a unit that the copy alone activates, and of which little is sent back
        model[0].weight[7] *= torch.sign(batch[0] @ model[0].weight[7])
        model[0].bias[7] = -1.01 * (batch[0] @ model[0].weight[7])
        model[2].weight[:, 7] *= 0.03
    assert (model[0](batch[1]) > 0)[7]
    assert not (model[0](batch[0]) > 0)[7]
    given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(B) % 2), "0")
    return given, batch.double().numpy()


@pytest.fixture(scope="module")
def scaled_copy():
    return draw(0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_copy_that_differs_at_one_unit_comes_back_with_all_others():
    """Four of ten are whole; of the others one column is missing then, and they come back without that record."""
    n_whole = 0
    for seed in range(10):
        given, batch = draw(seed)
        assert factorize(given).batch_size == B - 1
        inverter = GradientInverter(random_state=0).fit(given)
        certified = inverter.recovered_
        n_whole += inverter.batch_size_ == B and certified.all()
        errors = np.sqrt(np.mean((inverter.inputs_[:, None] - batch) ** 2, axis=2)).min(axis=1)
        assert (errors[certified] <= 3 * inverter.uncertainty_[certified]).all()
    assert n_whole >= 4


def test_noise_of_the_bias_gradient_is_no_input(scaled_copy):
    """In half precision it lies as far outside the column space; all are certified, with errors that allow for it."""
    alone = np.delete(scaled_copy[1], 1, axis=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(N, M), nn.ReLU(), nn.Linear(M, 2))
    inputs = torch.from_numpy(alone).float()
    whole = LayerGradient.from_model(model, client_gradient(model, inputs, torch.arange(B - 1) % 2), "0")
    rounded = replace(whole, bias_grad=whole.bias_grad.astype(np.float16).astype(np.float32))
    assert with_one_more_by_bias(rounded, factorize(rounded)) is not None
    inverter = GradientInverter(random_state=0).fit(rounded)
    match = match_batches(alone, inverter.inputs_)
    assert inverter.batch_size_ == B - 1
    assert inverter.recovered_.all()
    assert (np.sqrt(match.squared_errors) / inverter.uncertainty_[match.order]).max() < 5


def test_a_bias_gradient_within_its_noise_asks_for_nothing(scaled_copy):
    given, _ = scaled_copy
    factors = factorize(given)
    assert with_one_more_by_bias(given, replace(factors, bias_excess=3.9)) is None
    assert with_one_more_by_bias(given, factors) is not None
    assert with_one_more_by_bias(with_one_more_by_bias(given, factors), factors) is None

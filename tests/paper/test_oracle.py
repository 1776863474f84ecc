"""The last fits told the true batch, beside which a search is measured."""

import numpy as np
import pytest
import torch
from torch import nn

from paper.oracle import ToldTheBatch
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.simulation import client_gradient, fully_connected

B = 12


@pytest.fixture(scope="module", params=[nn.ReLU, nn.GELU, nn.LeakyReLU])
def setting(request):
    inputs = torch.randn((B, 60), generator=torch.Generator().manual_seed(0))
    model = fully_connected(60, width=80, random_state=0)
    for index in range(1, len(model), 2):
        model[index] = request.param()
    return inputs, LayerGradient.from_model(model, client_gradient(model, inputs, torch.arange(B) % 10))


def errors(inputs, inverter):
    true = inputs.double().numpy()
    return np.sqrt(np.mean((true[None] - inverter.inputs_[:, None]) ** 2, axis=2)).min(axis=1)


def test_searches_for_nothing_and_is_at_most_as_far_off_as_a_search(setting):
    inputs, given = setting
    oracle = GradientInverter(ToldTheBatch(inputs=inputs), random_state=0).fit(given)
    search = GradientInverter(random_state=0).fit(given)
    assert oracle.n_starts_ == 0
    assert oracle.recovered_.all()
    assert errors(inputs, oracle).max() < 1e-5
    assert np.median(errors(inputs, search)) > 0.5 * np.median(errors(inputs, oracle))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_another_number_of_inputs_is_no_help(setting):
    inputs, given = setting
    inverter = GradientInverter(ToldTheBatch(inputs=inputs[:-1]), random_state=0).fit(given)
    assert inverter.n_starts_ > 0

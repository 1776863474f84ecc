"""All columns at once from the gradient alone: which it finds, which it leaves out, and where it is of use."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions import ActivationDirections
from sparsedl_fl.search import DictionaryDescent, SampleCoordinates
from sparsedl_fl.simulation import client_gradient, fully_connected

BATCH, WIDTH = 10, 200


@pytest.fixture(scope="module")
def setting():
    """Return what the server sees, the coordinates of its problem, the true columns and the batch."""
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn((BATCH, 60), generator=generator), torch.arange(BATCH) % 5
    model = fully_connected(60, width=WIDTH, n_hidden=2, n_classes=5, random_state=0)
    sent = client_gradient(model, inputs, labels)
    given = LayerGradient(model[0].weight.detach(), model[0].bias.detach(), sent["0.weight"], sent["0.bias"])
    problem = LayerProblem.of(given)
    whitened = inputs.double().numpy() @ problem.factors.right.T / problem.factors.singular_values
    columns = normalize(torch.from_numpy(np.linalg.inv(whitened).T.copy()), dim=1)
    return given, SampleCoordinates.of_problem(problem), columns, inputs


def test_its_directions_are_near_columns_and_distinct(setting):
    _, coordinates, columns, _ = setting
    directions = DictionaryDescent().run(coordinates, torch.Generator().manual_seed(0))
    cosines = (directions @ columns.T).abs()
    assert len(directions) >= BATCH // 2
    assert (cosines.amax(dim=1) > 0.99).double().mean() > 0.9
    assert len(cosines.argmax(dim=1).unique()) == len(directions)


def test_columns_that_are_known_do_not_come_again(setting):
    _, coordinates, columns, _ = setting
    known = coordinates.deflated_by(columns[:6])
    directions = DictionaryDescent().run(known, torch.Generator().manual_seed(0))
    assert len(directions) > 0
    assert (directions @ columns[:6].T).abs().max() < 0.95
    assert ((directions @ columns[6:].T).abs().amax(dim=1) > 0.99).any()


def test_directions_without_zeros_beyond_chance_are_left_out(setting):
    _, coordinates, _, _ = setting
    noise = torch.linalg.qr(torch.randn((WIDTH, BATCH), generator=torch.Generator().manual_seed(1)).double())[0]
    dense = SampleCoordinates.of(
        WIDTH**0.5 * noise, coordinates.forward, coordinates.activation, coordinates.scale, coordinates.sizes
    )
    assert len(DictionaryDescent().run(dense, torch.Generator().manual_seed(0))) == 0


def test_it_is_of_use_where_outputs_are_many(setting):
    given, *_ = setting
    test = LayerProblem.of(given).factors.zero_test
    assert DictionaryDescent().lacks(test) == ""
    assert "21 outputs" in DictionaryDescent(least_outputs=21).lacks(test)
    noisy = replace(test, noise_level=1e6 * test.noise_level)
    assert "noise widens them" in DictionaryDescent().lacks(noisy)
    without = ActivationDirections(dictionary=DictionaryDescent(least_outputs=21))
    here, there = (GradientInverter(strategy, random_state=0).fit(given) for strategy in (None, without))
    assert here.recovered_.all()
    assert there.recovered_.all()
    assert here.n_starts_ < there.n_starts_

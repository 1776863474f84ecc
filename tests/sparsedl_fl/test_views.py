"""The span with its noise, and the column from the next layer's weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from sparsedl_fl import LayerGradient
from sparsedl_fl.activations import ReLU
from sparsedl_fl.problem import LayerProblem
from sparsedl_fl.simulation import client_gradient, fully_connected
from sparsedl_fl.views import ActivationSpan, ColumnView


def activations(b=6, m=50, seed=0):
    return np.maximum(np.random.default_rng(seed).standard_normal((b, m)), 0)


class TestActivationSpan:
    def test_tolerance_follows_what_an_input_left_of_a_gradient(self):
        rng, Y = np.random.default_rng(1), activations()
        sizes = np.array([1, 1, 1, 1, 1, 1e-5])
        gradient = (rng.standard_normal((40, 6)) * sizes) @ Y + 1e-8 * rng.standard_normal((40, 50))
        span = ActivationSpan.of(gradient, 6, ReLU())
        tolerances = span.tolerances_of(torch.from_numpy(Y))
        assert (tolerances[:5] < tolerances[5]).all()
        assert (span.distances_of(torch.from_numpy(Y)) <= tolerances).all()

    def test_a_singular_value_in_the_noise_does_not_take_the_others_with_it(self):
        rng, Y = np.random.default_rng(2), activations()
        sizes = np.array([1, 1, 1, 1, 1, 1e-12])
        gradient = (rng.standard_normal((40, 6)) * sizes) @ Y + 1e-8 * rng.standard_normal((40, 50))
        span = ActivationSpan.of(gradient, 6, ReLU())
        inside = span.distances_of(torch.from_numpy(Y)) <= span.tolerances_of(torch.from_numpy(Y))
        assert inside.tolist() == [True] * 5 + [False]

    def test_noise_as_large_as_the_gradient_leaves_no_span(self):
        rng = np.random.default_rng(3)
        assert ActivationSpan.of(rng.standard_normal((40, 50)), 6, ReLU()) is None


@pytest.fixture(scope="module")
def client():
    inputs = torch.randn(7, 30, generator=torch.Generator().manual_seed(0))
    model = fully_connected(30, width=60, random_state=0)
    return inputs, model, LayerGradient.from_model(model, client_gradient(model, inputs, torch.arange(7)))


class TestColumnView:
    def test_every_column_comes_from_its_pre_activations(self, client):
        inputs, _, given = client
        problem = LayerProblem.of(given)
        p = inputs.double().numpy() @ problem.factors.right.T / problem.factors.singular_values
        columns, is_only = problem.column.columns(ReLU().derivative(torch.from_numpy(p) @ problem.regressors().T))
        true = normalize(torch.linalg.inv(torch.from_numpy(p)).T, dim=1)
        assert is_only.all()
        assert ((columns * true).sum(dim=1).abs() > 1 - 1e-8).all()

    def test_of_a_wrong_pattern_no_column_is_the_only_one(self, client):
        problem = LayerProblem.of(client[2])
        slopes = (torch.rand((5, 60), generator=torch.Generator().manual_seed(4)) > 0.5).double()
        assert not problem.column.columns(slopes)[1].any()

    def test_there_is_none_without_weights_or_for_an_update(self, client):
        given = client[2]
        assert LayerProblem.of(replace(given, next_weight=None)).column is None
        update = replace(given, learning_rate=0.1)
        assert ColumnView.of(update, LayerProblem.of(given).factors, LayerProblem.of(given).span) is None


def test_next_weights_of_another_shape_are_named(client):
    with pytest.raises(ValueError, match="next_weight must have shape"):
        replace(client[2], next_weight=np.ones((60, 59)))
    with pytest.raises(ValueError, match="next_weight must have the shape of next_weight_grad"):
        replace(client[2], next_weight=np.ones((59, 60)))

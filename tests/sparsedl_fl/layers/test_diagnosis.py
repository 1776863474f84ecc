"""A hopeless problem ends soon, with the reason that is there to see."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.simulation import WIRES, client_gradient, fully_connected


@pytest.fixture
def problem():
    batch = torch.randn(12, 300, generator=torch.Generator().manual_seed(0))
    model = fully_connected(300, width=120, random_state=0)
    return model, client_gradient(model, batch, torch.arange(12) % 10)


def sent(problem, wire):
    model, gradients = problem
    return LayerGradient.from_model(model, {name: WIRES[wire](value) for name, value in gradients.items()})


def test_signs_are_seen(problem):
    with pytest.raises(
        ValueError, match=r"one size: was the optimiser Adam .one step of it., or were signs alone sent"
    ):
        GradientInverter().fit(sent(problem, "sign"))


def test_sparsified_updates_are_seen(problem):
    with pytest.warns(UserWarning, match="50% of the entries are exactly zero, all over: the update was sparsified"):
        inverter = GradientInverter(random_state=0).fit(sent(problem, "top half"))
    assert not inverter.recovered_.any()


def test_an_activation_without_zeros_is_refused_at_once():
    model = nn.Sequential(nn.Linear(30, 40), nn.GELU(), nn.Linear(40, 3))
    gradients = client_gradient(model, torch.randn(4, 30), torch.arange(4) % 3)
    given = replace(LayerGradient.from_model(model, gradients), rest=None)
    with pytest.raises(ValueError, match="of shape .3, 40., does not show the activations of 4 inputs"):
        GradientInverter().fit(given)
    with pytest.raises(ValueError, match="gelu follows the layer, whose derivative is nowhere zero: an attack by"):
        GradientInverter().fit(replace(given, next_weight_grad=None))


def test_a_head_is_seen():
    model = fully_connected(50, width=60, random_state=0)
    batch = torch.randn(16, 50, generator=torch.Generator().manual_seed(0))
    given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(16) % 10), "6")
    with pytest.warns(ConvergenceWarning, match="The rank is 9, one less than the 10 outputs.*classifier's head"):
        GradientInverter(random_state=0).fit(given)


@pytest.mark.parametrize("use_next", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_batch_beyond_the_limit_ends_after_two_rounds(use_next):
    batch = torch.randn(65, 300, generator=torch.Generator().manual_seed(0))
    model = fully_connected(300, width=120, random_state=0)
    given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(65) % 10))
    given = (
        replace(given, head=None) if use_next else replace(given, next_weight_grad=None)
    )  # with a head it comes back
    with pytest.warns(ConvergenceWarning, match="do not determine the batch"):
        inverter = GradientInverter(random_state=0).fit(given)
    assert inverter.n_starts_ <= 4 * 2 * 64
    assert "nothing new in 2 rounds" in inverter.status_


def test_more_inputs_than_the_layer_has_are_said():
    model = nn.Sequential(nn.Linear(20, 100), nn.ReLU(), nn.Linear(100, 3))
    batch = torch.randn(40, 20, generator=torch.Generator().manual_seed(0))
    given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(40) % 3))
    with pytest.warns(UserWarning, match="(do not show the batch size|batch size is uncertain)"):
        inverter = GradientInverter(random_state=0).fit(given)
    assert not inverter.recovered_.any()


def test_gradients_of_any_scale_are_taken(problem):
    model, gradients = problem
    expected = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, gradients))
    for scale in (1e-38, 1e38):
        scaled = {name: value.double() * scale for name, value in gradients.items()}
        inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, scaled))
        assert inverter.recovered_.all()
        assert abs(inverter.preactivation_gradients_).max() == pytest.approx(
            scale * abs(expected.preactivation_gradients_).max(), rel=1e-3
        )


def test_a_noise_level_that_the_gradient_contradicts_is_said(problem):
    model, gradients = problem
    with pytest.warns(UserWarning, match="noise_level is too .*: the gradient differs from rank 12 by"):
        GradientInverter(noise_level=1e-3, random_state=0).fit(LayerGradient.from_model(model, gradients))
    with pytest.raises(ValueError, match="noise_level must be a non-negative number or None, got 'x'"):
        GradientInverter(noise_level="x").fit(LayerGradient.from_model(model, gradients))


def test_duplicates_in_a_batch_size_that_is_told_are_said():
    batch = torch.randn(6, 100, generator=torch.Generator().manual_seed(0))
    model = fully_connected(100, width=80, random_state=0)
    twice = torch.cat([batch, batch[:2]])
    given = LayerGradient.from_model(model, client_gradient(model, twice, torch.arange(8)))
    with pytest.warns(UserWarning, match="batch_size=8, but only 6 inputs show above"):
        inverter = GradientInverter(batch_size=8, random_state=0).fit(given)
    assert inverter.recovered_.all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GradientInverter(random_state=0).fit(given)


def test_weights_that_are_not_those_of_the_gradient_are_named(cifar):
    _, inputs, labels, model = cifar.client(10, 200, 0)
    given = LayerGradient.from_model(model, client_gradient(model, inputs, labels))
    other = np.random.default_rng(0).permuted(given.weight, axis=1)
    with pytest.warns(ConvergenceWarning, match="not the weights at which the gradient was taken"):
        GradientInverter(random_state=0).fit(replace(given, weight=other, next_weight_grad=None))

"""The scale of the inputs rests on the bias gradient: where that is on another scale, nothing is certified."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.certify.bias_scale import doubt_in_scale
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.simulation import client_gradient, fully_connected


def fitted(given):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GradientInverter(random_state=0).fit(given)


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.3, 3.0])
def test_tensors_clipped_one_by_one_are_seen(cifar, factor):
    _, inputs, labels, model = cifar.client(12, 100, 0)
    given = replace(LayerGradient.from_model(model, client_gradient(model, inputs, labels)), next_weight_grad=None)
    assert fitted(given).recovered_.all()
    scaled = fitted(replace(given, weight_grad=factor * given.weight_grad))
    assert not scaled.recovered_.any()


def small_client(n_inputs=20, width=200, batch_size=12):
    """Inputs so small that biases say a lot of their scale."""
    model = fully_connected(n_inputs, width=width, random_state=0)
    inputs = 0.3 * torch.randn(batch_size, n_inputs, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(batch_size) % 10
    given = LayerGradient.from_model(model, client_gradient(model, inputs, labels))
    return replace(given, next_weight_grad=None), inputs.double().numpy()


@pytest.mark.parametrize("factor", [0.97, 0.995, 1.01, 1.06])
def test_a_scale_that_is_a_little_off_is_an_error(factor):
    given, _ = small_client()
    exact, scaled = fitted(given), fitted(replace(given, weight_grad=factor * given.weight_grad))
    off = abs(1 / factor - 1) * np.sqrt(np.mean(scaled.inputs_**2, axis=1))
    assert scaled.recovered_.all()
    assert (scaled.uncertainty_ > 0.5 * off).all()
    assert (scaled.uncertainty_ < 2 * off).all()
    assert (exact.uncertainty_ < 1e-3 * off.min()).all()


@pytest.mark.parametrize("factor", [0.98, 1.03])
def test_the_span_of_the_next_layer_tells_a_scale_that_the_pattern_does_not(cifar, factor):
    _, inputs, labels, model = cifar.client(12, 100, 0)
    given = LayerGradient.from_model(model, client_gradient(model, inputs, labels))
    exact, scaled = fitted(given), fitted(replace(given, weight_grad=factor * given.weight_grad))
    off = abs(1 / factor - 1) * np.sqrt(np.mean(scaled.inputs_**2, axis=1))
    assert scaled.recovered_.all()
    assert (scaled.uncertainty_ > 0.9 * off).all()
    assert (exact.uncertainty_ < 1e-3 * off.min()).all()
    problem = LayerProblem.of(replace(given, weight_grad=factor * given.weight_grad))
    z = given.preactivations(factor * inputs.double().numpy())
    assert doubt_in_scale(problem, z, z > 0, np.zeros_like(z)) == pytest.approx(max(factor, 1 / factor) - 1, rel=1e-2)


@pytest.mark.parametrize("factor", [0.999, 0.98, 1.03, 1.5])
def test_the_span_tells_the_scale_where_there_is_no_pattern_at_all(cifar, factor):
    _, inputs, labels, model = cifar.client(12, 100, 0)
    for index in range(1, len(model), 2):
        model[index] = nn.LeakyReLU(0.2)
    given = LayerGradient.from_model(model, client_gradient(model, inputs, labels))
    problem, true = LayerProblem.of(given), inputs.double().numpy()
    z = given.preactivations(factor * true)
    assert doubt_in_scale(problem, z, z > 0, np.zeros_like(z)) == pytest.approx(max(factor, 1 / factor) - 1, rel=1e-2)
    z = given.preactivations(true)
    assert doubt_in_scale(problem, z, z > 0, np.zeros_like(z)) == 0


@pytest.mark.parametrize("n_contradicting", [0, 1, 2])
def test_units_on_the_wrong_side_put_the_scale_in_doubt_by_what_takes_them_to_the_other(n_contradicting):
    given, inputs = small_client()
    z = given.preactivations(inputs)
    nearest = np.argsort(np.abs(z), axis=None)[:n_contradicting]
    has_gradient = z > 0
    has_gradient.flat[nearest] = ~has_gradient.flat[nearest]
    problem, linear = LayerProblem.of(given), z - given.bias[:, None].astype(float)
    doubt = doubt_in_scale(problem, z, has_gradient, np.zeros_like(z))
    assert doubt <= 1.3 * max(1e-4, np.abs(z / linear).flat[nearest].max(initial=0.0))
    assert doubt_in_scale(problem, z, has_gradient, np.full_like(z, 0.1)) == 0


def test_both_scaled_alike_is_no_matter(cifar):
    _, inputs, labels, model = cifar.client(12, 100, 0)
    given = LayerGradient.from_model(model, client_gradient(model, inputs, labels))
    scaled = replace(given, weight_grad=3 * given.weight_grad, bias_grad=3 * given.bias_grad, next_weight_grad=None)
    assert fitted(scaled).recovered_.all()


def test_stale_weights_take_nothing_back(cifar):
    _, inputs, labels, model = cifar.client(12, 100, 0)
    given = LayerGradient.from_model(model, client_gradient(model, inputs, labels))
    noise = 1e-2 * np.random.default_rng(0).standard_normal(given.shape) * np.abs(given.weight).mean()
    assert fitted(replace(given, weight=given.weight + noise, next_weight_grad=None)).recovered_.mean() > 0.9

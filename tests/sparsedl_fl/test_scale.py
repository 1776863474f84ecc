"""The scale of the inputs rests on the bias gradient: where that is on another scale, nothing is certified."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.simulation import client_gradient


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

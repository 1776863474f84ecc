"""Backward to a layer whose inputs are linearly dependent: exact where it says so, and silent where something lies."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl.audit import audit_model
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.propagate.backward import propagate_back
from sparsedl_fl.simulation import client_gradient
from tests.sparsedl_fl.propagate.test_backward import known_behind, network

B = 24


def batch_of(kind, seed):
    rng = np.random.default_rng(seed)
    if kind == "few features":
        numbers = rng.standard_normal((B, 12))
    elif kind == "few dimensions":
        numbers = rng.standard_normal((B, 10)) @ rng.standard_normal((10, 60)) / 3
    else:  # one row is a mixture of two others, and one the middle of two
        numbers = rng.standard_normal((B, 60))
        numbers[0], numbers[1] = 1.5 * numbers[2] - numbers[3], (numbers[4] + numbers[5]) / 2
    return torch.tensor(numbers, dtype=torch.float32)


def known_batch(kind, activation, seed):
    inputs, labels = batch_of(kind, seed), torch.arange(B) % 10
    given, before, known = known_behind(network((inputs.shape[1], 80, 150, 40), activation, seed), inputs, labels)
    return inputs, known, given.weight, before


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.LeakyReLU])
@pytest.mark.parametrize("kind", ["few features", "few dimensions", "mixtures"])
def test_dependent_inputs_come_back_as_exactly_as_they_say(kind, activation):
    for seed in range(3):
        inputs, known, weight, before = known_batch(kind, activation, seed)
        found = propagate_back(known, weight, before)
        errors = np.sqrt(match_batches(inputs, found.inputs).squared_errors)
        assert found.is_whole
        assert errors.max() < 1e-3
        assert np.all(errors < 5 * found.errors)
        assert np.median(errors / found.errors) > 0.05


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.LeakyReLU])
@pytest.mark.parametrize("lie", ["columns", "mixed", "weights", "gradient", "scale", "bias", "order"])
def test_what_does_not_belong_together_is_not_certified(lie, activation):
    for seed, size in enumerate((1e-3, 1e-2, 0.1)):
        inputs, known, weight, before = known_batch("few features", activation, seed)
        rng, columns = np.random.default_rng(seed), known.gradients
        if lie == "columns":
            noise = rng.standard_normal(columns.shape)
            known = replace(known, gradients=columns + size * np.abs(columns).mean() * noise)
        if lie == "mixed":
            known = replace(known, gradients=columns + size * np.roll(columns, 1, axis=1))
        if lie == "weights":
            weight = weight + size * np.abs(weight).mean() * rng.standard_normal(weight.shape)
        if lie == "gradient":
            before = replace(before, weight_grad=known_batch("few features", activation, seed + 9)[3].weight_grad)
        if lie == "scale":
            before = replace(before, weight_grad=before.weight_grad * np.float32(1 + size))
        if lie == "bias":
            before = replace(before, bias_grad=before.bias_grad[::-1].copy())
        if lie == "order":
            known = replace(known, inputs=known.inputs[::-1])
        with contextlib.suppress(ValueError):
            found = propagate_back(known, weight, before)
            match = match_batches(inputs, found.inputs)
            right = np.sqrt(match.squared_errors) < 5 * found.errors[match.order]
            assert np.all(right | ~found.certified[match.order])
            assert lie == "scale" or size < 1e-2 or not found.certified.any()


def test_an_activation_that_is_not_monotone_is_left_alone():
    _, known, weight, before = known_batch("few features", nn.GELU, 0)
    with pytest.raises(ValueError, match="gelu do not say where"):
        propagate_back(known, weight, before)


def test_an_audit_goes_from_the_layer_before_the_head_to_dependent_rows():
    rng = np.random.default_rng(0)
    inputs = torch.tensor(rng.standard_normal((30, 20)) @ rng.standard_normal((20, 60)) / 4, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(60, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 4))
    gradients = client_gradient(model, inputs, torch.arange(30) % 4)
    audit = audit_model(model, gradients, layers=["2", "0"], max_effort=50.0)
    first = audit["0"]
    assert first.verdict == "RECOVERED"
    errors = np.sqrt(match_batches(inputs, first.batch.inputs).squared_errors)
    assert errors.max() < 1e-4

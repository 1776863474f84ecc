"""From one whole layer to the others: exact where it says so, and silent where the model is not what it seems."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.demo import natural_patches
from sparsedl_fl.directions import KnownInputs
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.propagate.backward import KnownBatch, propagate_back
from sparsedl_fl.propagate.forward import propagate_forward
from sparsedl_fl.simulation import client_gradient


def network(sizes, activation, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = []
        for n, m in zip(sizes[:-1], sizes[1:], strict=True):
            layers += [nn.Linear(n, m), activation()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))


def client(cifar, sizes, activation, b, seed):
    _, inputs, labels, _ = cifar.client(b, 10, seed)
    model = network((inputs.shape[1], *sizes), activation, seed)
    return model, inputs, labels, client_gradient(model, inputs, labels)


def whole(model, gradients, layer):
    given = LayerGradient.from_model(model, gradients, layer)
    known = KnownBatch.of(GradientInverter(random_state=0).fit(given))
    assert known.is_whole
    return given, known


def known_behind(model, inputs, labels):
    """The second layer, the first one, and the batch of the second as a search would find it."""
    gradients = client_gradient(model, inputs, labels)
    with torch.no_grad():
        fed = model[:2](inputs).numpy()
    given, before = (LayerGradient.from_model(model, gradients, layer) for layer in (1, 0))
    known = KnownBatch.of(GradientInverter(KnownInputs(inputs=fed), random_state=0).fit(given))
    assert known.is_whole
    return given, before, known


def errors_of(true, batch):
    match = match_batches(true, batch.inputs)
    return np.sqrt(match.squared_errors), batch.errors[match.order], match.order


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Tanh, nn.LeakyReLU])
def test_the_layer_before_comes_back_as_exactly_as_it_says(cifar, activation):
    model, inputs, labels, gradients = client(cifar, (60, 200, 40), activation, 24, 0)
    given, known = whole(model, gradients, 1)
    found = propagate_back(known, given.weight, LayerGradient.from_model(model, gradients, 0))
    errors, expected, order = errors_of(inputs, found)
    assert found.is_whole
    assert errors.max() < 1e-4
    assert np.mean(errors < 4 * expected) > 0.9
    assert np.all(errors < 10 * expected)
    assert np.median(errors / expected) > 0.2
    np.testing.assert_array_equal(found.labels[order], labels)


def test_a_batch_nearly_as_large_as_the_layer_before_comes_back(cifar):
    model, inputs, _, gradients = client(cifar, (60, 300, 40), nn.ReLU, 56, 1)
    given, known = whole(model, gradients, 1)
    found = propagate_back(known, given.weight, LayerGradient.from_model(model, gradients, 0))
    errors, expected, _ = errors_of(inputs, found)
    assert found.is_whole
    assert np.all(errors < 5 * expected)


def test_only_a_whole_batch_is_propagated(cifar):
    model, _, _, gradients = client(cifar, (60, 100), nn.ReLU, 8, 0)
    given, known = whole(model, gradients, 1)
    partly = KnownBatch(known.inputs, known.gradients, known.errors, known.certified & False, known.labels)
    with pytest.raises(ValueError, match="whole batch"):
        propagate_back(partly, given.weight, LayerGradient.from_model(model, gradients, 0))


@pytest.mark.parametrize("lie", ["columns", "weights", "gradient", "order"])
def test_what_does_not_belong_together_is_not_certified(cifar, lie):
    model, _, _, gradients = client(cifar, (60, 100), nn.ReLU, 12, 2)
    given, known = whole(model, gradients, 1)
    weight, before, rng = given.weight, LayerGradient.from_model(model, gradients, 0), np.random.default_rng(0)
    if lie == "columns":  # a path around the layer adds to what comes back
        known = KnownBatch(known.inputs, known.gradients + 0.05 * rng.standard_normal(known.gradients.shape) *
                           np.abs(known.gradients).mean(), known.errors, known.certified, known.labels)  # fmt: skip
    if lie == "weights":
        weight = weight + 0.05 * rng.standard_normal(weight.shape) * np.abs(weight).mean()
    if lie == "gradient":
        other = client(cifar, (60, 100), nn.ReLU, 12, 3)
        before = LayerGradient.from_model(model, other[3], 0)
    if lie == "order":
        known = KnownBatch(known.inputs[::-1], known.gradients, known.errors, known.certified, known.labels)
    with contextlib.suppress(ValueError):  # no basis
        assert not propagate_back(known, weight, before).certified.any()


def test_layers_behind_are_held_against_their_gradient(cifar):
    model, inputs, _, gradients = client(cifar, (100, 60), nn.ReLU, 12, 4)
    _, known = whole(model, gradients, 0)
    with torch.no_grad():
        fed = model[:2].double()(torch.as_tensor(known.inputs)).numpy()
    model.float()
    behind = LayerGradient.from_model(model, gradients, 1)
    drawn = fed + 1e-8 * np.random.default_rng(0).standard_normal((3, *fed.shape))
    assert propagate_forward(known, fed, drawn, behind).is_whole
    dropped = fed * (np.random.default_rng(0).random(fed.shape) > 0.5)
    assert not propagate_forward(known, dropped, dropped + 0 * drawn, behind).certified.any()


KINDS = ("photographs", "centred photographs", "alike", "numbers")


def batch_of(kind, b, rng):
    if "photographs" in kind:
        patches, mean, std = natural_patches(b, int(rng.integers(2**31)))
        patches = (patches - mean) / std if kind.startswith("centred") else patches
        return torch.tensor(patches[:, ::2, ::2].reshape(b, -1), dtype=torch.float32)
    numbers = rng.standard_normal((b, 150))
    return torch.tensor(rng.standard_normal(150) + 0.3 * numbers if kind == "alike" else numbers, dtype=torch.float32)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Tanh, nn.LeakyReLU])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_wrong_is_certified_however_little_is_off(kind, activation):
    """Where inputs have much in common a column that holds some of another one lies in the column space, nearly."""
    rng = np.random.default_rng(KINDS.index(kind))
    inputs, labels = batch_of(kind, 12, rng), torch.arange(12) % 10
    given, before, known = known_behind(network((inputs.shape[1], 100, 200, 40), activation), inputs, labels)
    honest = propagate_back(known, given.weight, before)
    assert honest.is_whole
    assert np.all(errors_of(inputs, honest)[0] < 10 * errors_of(inputs, honest)[1])
    for size in (1e-3, 1e-2, 2e-2, 5e-2, 0.1):
        columns, weight = known.gradients.copy(), given.weight
        mixed = columns.copy()
        mixed[:, 0] += size * columns[:, 1]
        rough = columns + size * np.abs(columns).mean() * rng.standard_normal(columns.shape)
        other = weight + size * np.abs(weight).mean() * rng.standard_normal(weight.shape)
        for gradient, used in ((mixed, weight), (rough, weight), (columns, other)):
            lying = KnownBatch(known.inputs, gradient, known.errors, known.certified, known.labels)
            with contextlib.suppress(ValueError):  # no basis
                found = propagate_back(lying, used, before)
                errors, expected, order = errors_of(inputs, found)
                assert np.all((errors < 5 * expected) | ~found.certified[order])
                assert size < 1e-2 or not found.certified.any()

"""Rough ends are taken to where their own zeros lead, where the weights of a step were stored."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl.linalg import normalized
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.search import InputZeros, SampleCoordinates
from sparsedl_fl.search.knowledge import Knowledge

LAYER = "7"


def network(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip


def client(cifar, batch_size, seed):
    """Return a LeNet, pictures, the features in front of its first linear layer, and the gradient."""
    pixels, _, labels, _ = cifar.client(batch_size, 10, seed)
    pictures = torch.tensor(2 * pixels - 1, dtype=torch.float32).reshape(batch_size, 3, 32, 32)
    model = network(seed)
    loss = nn.functional.cross_entropy(model(pictures), labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    named = dict(zip(dict(model.named_parameters()), gradients, strict=True))
    return model, pictures, model[:7](pictures).detach().double().numpy(), named


def stored(model, gradients, rate):
    """Return what a server makes of the weights that a client sends in single precision."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {name: (weight - (weight - rate * gradients[name])) / rate for name, weight in weights.items()}


def layer_of(model, pictures, gradients):
    return LayerGradient.from_model(model, gradients, layer=LAYER, example=pictures[:1])


@pytest.fixture(scope="module")
def setting(cifar):
    """Return the problem of an update, and the ``p`` of the batch as unit rows."""
    model, pictures, features, gradients = client(cifar, 12, 0)
    problem = LayerProblem.of(layer_of(model, pictures, stored(model, gradients, 0.01)))
    factors = problem.factors
    rows = torch.from_numpy(features @ factors.right.T / factors.singular_values)
    return problem, normalized(rows, dim=1)


def test_an_end_beside_an_input_comes_to_it(setting):
    problem, inputs = setting
    coordinates = SampleCoordinates.of_problem(problem)
    knowledge = Knowledge(problem.factors.zero_test, coordinates, surely_off=0.01, own_product=0.03)
    generator = torch.Generator().manual_seed(0)
    beside = normalized(inputs * coordinates.sizes, dim=1)
    noise = torch.randn(beside.shape, generator=generator, dtype=torch.float64)
    minimisers = normalized((beside + 0.01 * normalized(noise, dim=1)) / coordinates.sizes, dim=1)
    found, rest = InputZeros().run(problem.zeros_of_inputs, knowledge, minimisers, generator)
    within = normalized(found * coordinates.sizes, dim=1)
    cosines = (within @ beside.T).abs().amax(dim=1)
    assert len(found) >= 10
    assert len(found) + len(rest) <= len(minimisers)
    assert (1 - cosines**2).clamp(min=0).sqrt().max() < 2e-3


def test_nothing_comes_of_mixtures(setting):
    problem, inputs = setting
    coordinates = SampleCoordinates.of_problem(problem)
    knowledge = Knowledge(problem.factors.zero_test, coordinates, surely_off=0.01, own_product=0.03)
    generator = torch.Generator().manual_seed(0)
    mixtures = normalized(inputs[:6] - 0.7 * inputs[6:], dim=1)
    found, _ = InputZeros().run(problem.zeros_of_inputs, knowledge, mixtures, generator)
    within, true = (normalized(rows * coordinates.sizes, dim=1) for rows in (found, inputs))
    assert ((within @ true.T).abs().amax(dim=1) > 0.999).all()
    assert len(InputZeros().columns(knowledge, mixtures)) == 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("batch_size", "rate"), [(16, 0.01), (24, 0.01)])
def test_a_whole_batch_comes_back_from_stored_weights(cifar, batch_size, rate):
    model, pictures, features, gradients = client(cifar, batch_size, 1)
    inverter = GradientInverter(random_state=0)
    inverter.fit(layer_of(model, pictures, stored(model, gradients, rate)))
    assert inverter.batch_size_ == batch_size
    assert inverter.recovered_.sum() >= batch_size - 1
    match = match_batches(features, inverter.inputs_)
    errors = np.sqrt(match.squared_errors) / inverter.uncertainty_[match.order]
    certified = inverter.recovered_[match.order]
    assert errors[certified].max() < 5
    assert np.median(errors[certified]) > 0.1


def test_a_plain_gradient_is_searched_as_ever(cifar):
    model, pictures, _, gradients = client(cifar, 8, 0)
    assert not LayerProblem.of(layer_of(model, pictures, gradients)).is_stored

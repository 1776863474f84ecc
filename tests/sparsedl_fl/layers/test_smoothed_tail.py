"""Functions with kinks as their means over Gaussian changes, and what a search finds by them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.layers.layer_gradient import RestOfNetwork
from sparsedl_fl.layers.smoothed_tail import SMOOTHED, Smoothing
from sparsedl_fl.simulation import client_gradient

MODULES = {
    "relu": nn.ReLU(),
    "leaky_relu": nn.LeakyReLU(0.2),
    "prelu": nn.PReLU(init=0.3),
    "hardtanh": nn.Hardtanh(-0.5, 1.5),
    "relu6": nn.ReLU6(),
    "elu": nn.ELU(0.7),
    "selu": nn.SELU(),
    "celu": nn.CELU(0.6),
}


def network(activation, n_hidden=2, n_inputs=60, width=80, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = [n_inputs, *[width] * n_hidden]
        layers = [part for a, b in zip(sizes[:-1], sizes[1:], strict=True) for part in (nn.Linear(a, b), activation())]
        return nn.Sequential(*layers, nn.Linear(width, 10))


def test_every_function_has_a_module_here():
    assert set(MODULES) == set(SMOOTHED)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("deviation", [0.1, 0.7, 2.0])
def test_mean_is_that_over_gaussian_changes(name, deviation):
    module, z = MODULES[name].double(), torch.linspace(-4, 7, 23, dtype=torch.float64)
    # The trapezoidal rule, as many nodes as a kink needs.
    nodes = torch.linspace(-9, 9, 200001, dtype=torch.float64)
    density = (-nodes.square() / 2).exp()
    expected = torch.stack([(module(value + deviation * nodes) * density).sum() / density.sum() for value in z])
    with Smoothing([deviation]):
        found = module(z)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


def test_functions_are_smoothed_by_whatever_name_they_are_called():
    z = torch.linspace(-2, 2, 9)
    expected = SMOOTHED["relu"](z, 0.5)
    for call in (functional.relu, torch.relu, torch.Tensor.relu, nn.ReLU(inplace=True)):
        with Smoothing([0.5]):
            torch.testing.assert_close(call(z.clone()), expected)


def test_slopes_of_each_channel_are_kept():
    module = nn.PReLU(3)
    module.weight.data = torch.tensor([0.1, 0.5, 1.0])
    z = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    with Smoothing([1e-4]):
        torch.testing.assert_close(module(z), functional.prelu(z, module.weight), atol=1e-3, rtol=0)


def test_calls_take_their_turn_and_those_beyond_are_as_they_were():
    z = torch.linspace(-2, 2, 9)
    with Smoothing([0.0, 0.5]):
        first, second, third = (functional.relu(z) for _ in range(3))
    assert torch.equal(first, functional.relu(z))
    assert torch.equal(third, first)
    torch.testing.assert_close(second, SMOOTHED["relu"](z, 0.5))


def test_far_from_kinks_nothing_changes_and_no_derivative_is_lost():
    z = torch.tensor([-80.0, -30.0, 30.0, 80.0], requires_grad=True)
    for name, module in MODULES.items():
        module = module.float()
        with Smoothing([0.01]):
            found = module(z)
        torch.testing.assert_close(found, module(z), rtol=1e-5, atol=1e-5)
        (slopes,) = torch.autograd.grad(found.sum(), z, create_graph=True)
        (curvature,) = torch.autograd.grad(slopes.sum(), z, materialize_grads=True)
        assert slopes.isfinite().all(), name
        assert curvature.isfinite().all(), name


def test_rest_is_smoothed_in_place_of_its_kinks_alone():
    rest = RestOfNetwork(network(nn.SELU))
    z = torch.randn(20, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spreads = rest.spreads(z)
    assert len(spreads) == 2
    assert min(spreads) > 0
    assert RestOfNetwork(network(nn.GELU)).spreads(z) == ()
    before = rest.outputs(z)
    smoothed = rest.smoothed(spreads)
    assert not torch.allclose(smoothed.outputs(z), before, rtol=1e-2)
    assert torch.equal(rest.outputs(z), before)
    torch.testing.assert_close(rest.smoothed([1e-9, 1e-9]).outputs(z), before)


def test_one_layer_of_a_network_with_kinks_gives_its_batch():
    """Without smoothing no start of any round ends at an input."""
    model = network(nn.SELU)
    generator = torch.Generator().manual_seed(3)
    inputs, labels = 1.5 * torch.randn((8, 60), generator=generator), torch.arange(8) % 10
    given = LayerGradient.from_model(model, client_gradient(model, inputs, labels))
    given = replace(given, next_weight_grad=None, next_weight=None, behind=())
    inverter = GradientInverter(random_state=0).fit(given)
    assert inverter.recovered_.all(), inverter.status_
    distances = np.sqrt(((inverter.inputs_[:, None] - inputs.double().numpy()[None]) ** 2).mean(axis=2))
    assert sorted(distances.argmin(axis=1)) == list(range(8))
    assert (distances.min(axis=1) < 10 * inverter.uncertainty_).all()
    np.testing.assert_array_equal(inverter.labels_, labels.numpy()[distances.argmin(axis=1)])

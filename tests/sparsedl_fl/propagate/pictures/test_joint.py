"""What features leave open comes back by the gradients of the front, which are proved by those held out."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl.propagate.pictures import Front
from sparsedl_fl.propagate.pictures.given import ROUNDING, Given
from sparsedl_fl.propagate.pictures.joint import joint_result
from sparsedl_fl.propagate.pictures.slopes import GivenSlopes, SeenKinks
from tests.sparsedl_fl.propagate.pictures.networks import client, front, pictures

SHAPE = (1, 6, 6)


def problem(seed=0, *, scale=1.0):
    """Two pictures of 36 numbers with fewer active features, and a start that is near them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = front(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 3, padding=1), nn.ReLU(),
            features=54,
        ).double()  # fmt: skip
    x = pictures(2, seed, side=6)
    features, back, gradients = client(model, "6", x)
    gradients = {name: scale * tensor for name, tensor in gradients.items()}
    one = Front(model, "6", SHAPE)
    given = Given.of(one, features, np.zeros(2), None, back, gradients, 1e-6, ROUNDING)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return one, given, x.flatten(1), (x + 0.03 * noise).flatten(1)


def test_pictures_come_back_with_errors_and_proof():
    one, given, x, near = problem()
    assert int((given.features > 0).sum(dim=1).min()) < one.n_pixels
    found = joint_result(one, given, near, max_rounds=40)
    off = (found.fit.pictures - x).square().mean(dim=1).sqrt()
    assert found.is_proved
    assert (off < 1e-5).all()
    assert (off <= 3 * found.errors).all()
    assert {"0.weight", "3.weight"} <= set(found.replay.deviations)
    assert found.n_equations < given.n_gradients


def test_gradients_of_another_scale_prove_nothing():
    one, given, _, near = problem(scale=1.1)
    assert not joint_result(one, given, near, max_rounds=2).is_proved


def test_too_few_rounds_prove_nothing():
    one, given, _, near = problem()
    found = joint_result(one, given, near, max_rounds=1)
    assert not found.is_proved
    assert found.errors.isinf().all()


LAYERS = {
    "ReLU": nn.ReLU(),
    "LeakyReLU": nn.LeakyReLU(0.2),
    "PReLU": nn.PReLU(init=0.3),
    "Hardtanh": nn.Hardtanh(-0.5, 1.0),
    "ReLU6": nn.ReLU6(),
    "pooling": nn.MaxPool2d(3, stride=2, padding=1),
    "pooling of one axis": nn.Sequential(nn.Flatten(2), nn.MaxPool1d(2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_true_slopes_are_the_true_derivative(name):
    layer = LAYERS[name].double()
    z = 2 * torch.randn((2, 3, 6, 6), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = SeenKinks()
    with seen:
        true = layer(z)
    point = z.clone().requires_grad_()
    with GivenSlopes([call.slopes for call in seen.calls]):
        found = layer(point)
    torch.testing.assert_close(found, true)
    weights = torch.randn(true.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (slopes,) = torch.autograd.grad(found, point, weights)
    exact = z.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(layer(exact), exact, weights)
    torch.testing.assert_close(slopes, wanted)


def test_margins_show_which_units_may_switch():
    z = torch.tensor([[-1.0, 0.01, 0.5, -0.02]], dtype=torch.float64)
    with SeenKinks() as seen:
        functional.relu(z)
        functional.max_pool1d(z[:, None], 2)
    relu, pool = seen.calls
    assert relu.near(0.1).tolist() == [[False, True, False, True]]
    assert not pool.near(0.1).any()
    assert pool.near(0.6)[0, 0].tolist() == [[False, False], [True, True]]

"""A gradient that is the difference of stored weights shows it, and no other does."""

import numpy as np
import pytest
import torch

from sparsedl_fl import LayerGradient
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.layers.stored_weights import step_of_stored_weights
from sparsedl_fl.simulation import WIRES, client_gradient, fedavg_update, fully_connected


@pytest.fixture(scope="module")
def client():
    model = fully_connected(80, width=60, random_state=0)
    batch = torch.randn(6, 80, generator=torch.Generator().manual_seed(0))
    return model, batch, client_gradient(model, batch, torch.arange(6))


def stored(weight, gradient, rate):
    """Return what a server makes of the weights that a client sends, all in the precision of the weights."""
    after = weight - (rate * gradient).to(weight.dtype)
    return (weight - after).float() / rate


@pytest.mark.parametrize("rate", [1e-4, 3e-3, 0.1, 1.0])
@pytest.mark.parametrize("name", ["0.weight", "2.weight"])
def test_the_rate_is_read_off(client, rate, name):
    model, _, gradients = client
    weight = dict(model.named_parameters())[name].detach()
    update = stored(weight, gradients[name], rate)
    assert step_of_stored_weights(weight.numpy(), update.numpy()) == pytest.approx(1 / rate, rel=1e-5)
    scaled = np.ldexp(update.numpy(), 7)  # as a gradient in range is
    assert step_of_stored_weights(weight.numpy(), scaled) == pytest.approx(128 / rate, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_show_it_as_well(client, dtype):
    model, _, gradients = client
    weight = model[0].weight.detach().to(dtype)
    update = stored(weight, gradients["0.weight"], 0.1)
    step = step_of_stored_weights(weight.float().numpy(), update.numpy())
    assert step == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize("name", WIRES)
def test_no_coarse_format_is_taken_for_it(client, name):
    model, _, gradients = client
    coarse = WIRES[name](gradients["0.weight"]).float()
    assert step_of_stored_weights(model[0].weight.detach().numpy(), coarse.numpy()) is None


def test_no_other_gradient_is_taken_for_it(client):
    model, batch, gradients = client
    weight = model[0].weight.detach().numpy()
    gradient = gradients["0.weight"].numpy()
    noise = np.random.default_rng(0).standard_normal(gradient.shape).astype(np.float32)
    assert step_of_stored_weights(weight, gradient) is None
    assert step_of_stored_weights(weight, gradient + 1e-4 * noise) is None
    assert step_of_stored_weights(weight, gradient / np.float32(3)) is None
    one_hot = torch.eye(80)[:6]
    of_one_hot = client_gradient(model, one_hot, torch.arange(6))["0.weight"].numpy()
    assert step_of_stored_weights(weight, of_one_hot) is None
    assert step_of_stored_weights(weight, np.zeros_like(weight)) is None
    assert step_of_stored_weights(weight.astype(float) / 3, gradient) is None  # too exact to show any rounding


def test_only_one_step_counts(client):
    model, batch, _ = client
    before, after = fedavg_update(model, batch, torch.arange(6), learning_rate=0.1, n_epochs=2)
    assert not LayerProblem.of(LayerGradient.from_update(before, after, 0.1)).is_stored
    before, after = fedavg_update(model, batch, torch.arange(6), learning_rate=0.1, n_epochs=1)
    assert LayerProblem.of(LayerGradient.from_update(before, after, 0.1, n_steps=1)).is_stored

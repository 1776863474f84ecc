"""What a server reads off weights after local training."""

from copy import deepcopy

import pytest
import torch

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.layers.updates import gradients_of_update, kept_share


def trained(cifar, n_steps, **options):
    _, inputs, labels, model = cifar.client(10, 200, 0)
    before = deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **options)
    for _ in range(n_steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return before, model.state_dict()


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 1e-3), (0.9, 1e-3), (0.9, 5e-2)])
def test_momentum_and_weight_decay_are_no_matter(cifar, momentum, decay, told):
    before, after = trained(cifar, 4, momentum=momentum, weight_decay=decay)
    given = LayerGradient.from_update(before, after, 0.01, n_steps=4, momentum=momentum,
                                      weight_decay=decay if told else None)  # fmt: skip
    inverter = GradientInverter(random_state=0).fit(given)
    assert inverter.batch_size_ == 10
    assert inverter.recovered_.all()


def test_decay_is_that_of_torch():
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.2)
    for _ in range(5):
        optimizer.zero_grad()
        (weight * 0).sum().backward()
        optimizer.step()
    assert weight[0].item() == pytest.approx(kept_share(0.1, 5, 0.9, 0.2), abs=1e-12)


def test_what_cannot_be_undone_is_said(cifar):
    before, after = trained(cifar, 1)
    with pytest.raises(ValueError, match="out of range"):
        gradients_of_update(before, after, 0.01, optimizer="adam")
    with pytest.raises(ValueError, match="n_steps is needed"):
        gradients_of_update(before, after, 0.01, weight_decay=0.1)
    noise = {name: torch.randn_like(tensor) for name, tensor in before.items()}
    with pytest.raises(ValueError, match="cannot be found by the rank"):
        gradients_of_update(before, noise, 0.01, weight_decay=None)


def test_counters_and_wrappers(cifar):
    before, after = trained(cifar, 1)
    counted = {f"module.{name}": tensor for name, tensor in after.items()} | {"module.counter": torch.tensor(1)}
    found = gradients_of_update(before | {"counter": torch.tensor(0)}, counted, 0.01)
    assert set(found) == set(before)


def test_one_step_is_a_gradient(cifar):
    before, after = trained(cifar, 1)
    assert not LayerGradient.from_update(before, after, 0.01, n_steps=1).is_update
    assert LayerGradient.from_update(before, after, 0.01).is_update

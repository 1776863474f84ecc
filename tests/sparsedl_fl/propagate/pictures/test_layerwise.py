"""Pictures led back through convolutions without pooling, by one linear system a layer."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl.propagate.pictures import Front, recover_pictures
from sparsedl_fl.propagate.pictures.given import Given
from sparsedl_fl.propagate.pictures.joint import held_out_entries
from sparsedl_fl.propagate.pictures.layerwise import pictures_by_layers


def chain(activation, *, has_bias=True, last=24):
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=has_bias), activation),
        *(nn.Conv2d(16, last, 3, padding=1, bias=has_bias), activation),
        *(nn.Flatten(), nn.Linear(last * 36, 5)),
    )


def client(model, b, seed=0, side=12):
    """Return pictures, their features, the gradients at these, and those of the model, all in double precision."""
    torch.manual_seed(seed)
    pictures = torch.rand((b, 1, side, side), dtype=torch.float64)
    model.double()
    features = model[:-1](pictures)
    loss = nn.functional.cross_entropy(model[-1](features), torch.arange(b) % 5)
    (sent_back,) = torch.autograd.grad(loss, features, retain_graph=True)
    gradients = dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
    )
    return pictures, features.detach().numpy(), sent_back.numpy(), gradients


def led_back(model, client):
    pictures, features, sent_back, gradients = client
    front = Front(model, str(len(model) - 1), tuple(pictures.shape[1:]))
    given = Given.of(front, features, np.zeros(len(features)), None, sent_back, gradients, 1e-12, 1e-12)
    return pictures_by_layers(front, given, held_out_entries(front, given))


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.2), nn.Identity()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize(("b", "has_bias"), [(1, True), (2, True), (1, False)])
def test_a_batch_comes_back_exactly(activation, b, has_bias):
    torch.manual_seed(1)
    model = chain(activation, has_bias=has_bias)
    given = client(model, b)
    found = led_back(model, given)
    assert np.abs(found.numpy().reshape(given[0].shape) - given[0].numpy()).max() < 1e-6


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 6, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(6 * 36, 5)),
        nn.Sequential(nn.Conv2d(1, 6, 3, 1, 1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5)),
        nn.Sequential(
            nn.Conv2d(1, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5)
        ).eval(),
        nn.Sequential(nn.ReLU(), nn.Conv2d(1, 6, 3, 2, 1), nn.Flatten(), nn.Linear(6 * 36, 5)),
    ],
    ids=["GELU", "pooling", "norm", "ReLU first"],
)
def test_other_fronts_are_none_of_its_business(model):
    assert led_back(model, client(model, 2)) is None


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 6, 3, 2, 1), nn.Conv2d(6, 6, 3, 1, 1)

    def forward(self, x):
        x = torch.relu(self.one(x))
        return (x + torch.relu(self.two(x))).flatten(1)


def test_a_sum_is_no_chain():
    model = nn.Sequential(Residual(), nn.Linear(6 * 36, 5))
    assert led_back(model, client(model, 1)) is None


def test_pictures_that_were_led_back_are_certified_by_what_was_held_out():
    torch.manual_seed(1)
    model = chain(nn.LeakyReLU(0.2), last=4)  # as many features as numbers of a picture: none is left over to prove it
    pictures, features, sent_back, gradients = client(model, 1)
    given = {"sent_back": sent_back, "gradients": gradients, "noise": 1e-9, "rounding": 1e-9}
    found = recover_pictures(model, "5", features, 1e-9 * np.ones(1), (1, 12, 12), **given)
    assert found.certified.all(), found.status
    assert "held out" in found.status[0]
    off = np.sqrt(np.mean((found.pictures - pictures.numpy()) ** 2))
    assert off < 3 * found.errors[0]


@pytest.mark.slow
def test_a_gradient_of_another_scale_certifies_no_exact_picture():
    torch.manual_seed(1)
    model = chain(nn.LeakyReLU(0.2), last=4)
    _, features, sent_back, gradients = client(model, 1)
    wrong = {name: 1.01 * tensor if name == "0.weight" else tensor for name, tensor in gradients.items()}
    given = {"sent_back": sent_back, "gradients": wrong, "noise": 1e-9, "rounding": 1e-9}
    assert not recover_pictures(model, "5", features, 1e-9 * np.ones(1), (1, 12, 12), **given).certified.any()

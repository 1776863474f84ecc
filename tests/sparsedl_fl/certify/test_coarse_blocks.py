"""Half-precision gradients of layers that no activation follows and that are no head: residual and LayerNorm blocks."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.activations import Identity
from sparsedl_fl.simulation import client_gradient

N, M, BATCH = 40, 96, 8


class Residual(nn.Module):
    """A linear layer, and a block that is added to what it returns."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(N, M), nn.Linear(M, M), nn.Linear(M, 10)

    def forward(self, x):
        z = self.first(x)
        return self.head(z + self.second(nn.functional.gelu(z)))


class Normalised(nn.Module):
    """A linear layer with layer normalisation behind it."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(N, M), nn.LayerNorm(M), nn.Linear(M, M)
        self.head = nn.Linear(M, 10)

    def forward(self, x):
        return self.head(nn.functional.gelu(self.second(self.norm(self.first(x)))))


def attack(block, seed, wire, layer="first"):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = block()
    generator = torch.Generator().manual_seed(seed)
    batch, labels = torch.randn(BATCH, N, generator=generator), torch.randint(10, (BATCH,), generator=generator)
    sent = {name: tensor.to(wire) for name, tensor in client_gradient(model, batch, labels).items()}
    given = LayerGradient.from_model(model, sent, layer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return given, GradientInverter(random_state=0).fit(given), batch.double().numpy()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("block", [Residual, Normalised])
def test_of_a_block_half_precision_certifies_what_single_precision_does(block, seed):
    for wire, largest in ((torch.float32, 1e-5), (torch.float16, 5e-3)):
        given, inverter, batch = attack(block, seed, wire)
        assert given.activation == Identity()
        assert not given.tail.is_of_head
        errors = np.sqrt(np.mean((inverter.inputs_[:, None] - batch) ** 2, axis=2)).min(axis=1)
        assert inverter.recovered_.all()
        assert (errors < 10 * inverter.uncertainty_).all()
        assert inverter.uncertainty_.max() < largest


def test_of_a_head_rounding_hides_still_and_nothing_is_certified():
    given, inverter, _ = attack(Residual, 0, torch.float16, "head")
    assert given.tail.is_of_head
    assert not inverter.recovered_.any()

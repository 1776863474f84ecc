"""Any activation: batches behind activations without zeros, and beyond half the width."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.activations import GELU, Elementwise, Identity, PReLU
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.search import Descent, SampleCoordinates
from sparsedl_fl.search.columns_and_forward_pass import ScaledForward
from sparsedl_fl.search.natural_coordinates import NaturalCoordinates
from sparsedl_fl.simulation import WIRES, client_gradient

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class Snake(nn.Module):
    """An activation that the package does not know."""

    def forward(self, z):
        return z + torch.sin(z).square()


def network(activation, sizes, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = []
        for size_in, size_out in zip(sizes[:-1], sizes[1:], strict=True):
            layers += [nn.Linear(size_in, size_out), activation()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))


def client(activation, b, seed, sizes=(100, 120, 120, 120), scale=1.5):
    """A batch, and what the server sees of the first layer of three."""
    model = network(activation, sizes, seed)
    batch = scale * torch.randn((b, sizes[0]), generator=torch.Generator().manual_seed(seed))
    given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(b) % 10))
    return batch.double().numpy(), given


def errors(true, recovered):
    return np.sqrt(((true[:, None] - recovered[None]) ** 2).mean(axis=2)).min(axis=0)


KINDS = [nn.GELU, nn.SiLU, nn.ELU, nn.SELU, nn.CELU, nn.Mish, nn.Hardswish, nn.Softplus, nn.Tanh, nn.Sigmoid]
KINDS += [nn.LeakyReLU, nn.PReLU, lambda: nn.LeakyReLU(0.2), lambda: nn.GELU("tanh")]


@pytest.mark.parametrize("activation", KINDS, ids=lambda activation: repr(activation()))
def test_batches_come_back_behind_any_activation(activation):
    true, given = client(activation, 12, seed=1)
    inverter = GradientInverter(random_state=0).fit(given)
    assert inverter.recovered_.all()
    assert set(inverter.evidence_) <= {"rest of the network", "span of the next layer"}
    error = errors(true, inverter.inputs_)
    assert (error < 10 * inverter.uncertainty_).all()
    assert error.max() < 1e-2


def test_a_function_of_ones_own_is_part_of_the_rest_or_declared():
    true, given = client(Snake, 10, seed=0)
    assert given.activation == Identity()
    assert GradientInverter(random_state=0).fit(given).recovered_.all()
    model = network(Snake, (100, 120, 120, 120), 0)
    batch = torch.tensor(true, dtype=torch.float32)
    gradients = client_gradient(model, batch, torch.arange(10))
    weight, bias = (tensor.detach() for tensor in model[0].parameters())
    given = LayerGradient(
        weight, bias, gradients["0.weight"], gradients["0.bias"],
        next_weight_grad=gradients["2.weight"], next_weight=model[2].weight,
        activation=Elementwise(Snake()),
    )  # fmt: skip
    inverter = GradientInverter(random_state=0).fit(given)
    assert inverter.recovered_.all()
    assert errors(true, inverter.inputs_).max() < 1e-4


@pytest.mark.parametrize("seed", range(2))
def test_spans_behind_reach_beyond_half_the_width(seed):
    true, given = client(nn.GELU, 44, seed, sizes=(100, 80, 80, 80))
    inverter = GradientInverter(random_state=seed).fit(given)
    assert inverter.recovered_.all()
    assert (errors(true, inverter.inputs_) < 10 * inverter.uncertainty_).all()
    alone = GradientInverter(random_state=seed).fit(replace(given, behind=(), rest=None))
    assert not alone.recovered_.any()


@pytest.mark.parametrize("wire", ["bfloat16", "int8", "int8 by row"])
@pytest.mark.parametrize("activation", [nn.GELU, nn.Tanh, lambda: nn.LeakyReLU(0.2)], ids=lambda made: repr(made()))
def test_small_batches_come_back_from_coarse_numbers(activation, wire):
    model = network(activation, (100, 200, 200), 0)
    batch = 1.5 * torch.randn((6, 100), generator=torch.Generator().manual_seed(0))
    gradients = client_gradient(model, batch, torch.arange(6))
    given = LayerGradient.from_model(model, {name: WIRES[wire](gradient) for name, gradient in gradients.items()})
    inverter = GradientInverter(random_state=0).fit(given)
    assert inverter.recovered_.all()
    ratios = errors(batch.double().numpy(), inverter.inputs_) / inverter.uncertainty_
    assert 0.2 < np.median(ratios) < 3
    assert ratios.max() < 10


@pytest.mark.parametrize(("real", "declared"), [(nn.GELU, "silu"), (nn.SiLU, GELU("tanh")), (nn.Tanh, "softplus")])
def test_another_activation_than_declared_certifies_nothing_wrong(real, declared):
    true, given = client(real, 8, seed=3)
    inverter = GradientInverter(random_state=0).fit(replace(given, activation=declared))
    error = errors(true, inverter.inputs_)[inverter.recovered_]
    assert (error <= np.maximum(1e-3 * 1.5, 10 * inverter.uncertainty_[inverter.recovered_])).all()


def test_slopes_of_ones_own_for_each_unit():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(60, 90), nn.PReLU(90), nn.Linear(90, 90), nn.ReLU(), nn.Linear(90, 10))
        with torch.no_grad():
            model[1].weight.uniform_(0.05, 0.4)
        batch = torch.randn(8, 60)
    given = LayerGradient.from_model(model, client_gradient(model, batch, torch.arange(8)))
    assert isinstance(given.activation, PReLU)
    inverter = GradientInverter(random_state=0).fit(given)
    assert inverter.recovered_.all()
    assert errors(batch.double().numpy(), inverter.inputs_).max() < 1e-4


class TestDescent:
    @pytest.fixture
    def setting(self):
        true, given = client(nn.GELU, 20, seed=0)
        problem = LayerProblem.of(given)
        samples = torch.from_numpy(true @ problem.factors.right.T / problem.factors.singular_values)
        coordinates = SampleCoordinates.of_problem(problem)
        natural = NaturalCoordinates.of(
            ScaledForward.of(coordinates), problem.subspaces, torch.Generator().manual_seed(0), 2
        )
        return problem, coordinates, samples, natural

    def test_every_input_has_its_coordinates(self, setting):
        problem, coordinates, samples, natural = setting
        v = natural.coordinates(samples)
        torch.testing.assert_close(natural.inputs(v), samples, atol=1e-4, rtol=1e-4)
        z = samples @ coordinates.forward.T
        torch.testing.assert_close(natural.preactivations(v), z, atol=1e-4, rtol=1e-4)

    def test_ends_are_inputs_and_true_ones_stay(self, setting):
        problem, coordinates, samples, natural = setting
        minimisers, is_determined = Descent().run(coordinates, problem.subspaces, 32, torch.Generator().manual_seed(0))
        overlaps = (
            nn.functional.normalize(minimisers * coordinates.sizes)
            @ nn.functional.normalize(samples * coordinates.sizes).T
        )
        assert len(minimisers) >= 5
        assert is_determined.all()
        assert (overlaps.amax(dim=1) > 1 - 1e-6).all()
        assert problem.subspaces.at(samples @ coordinates.forward.T).is_proof.all()
        wrong = samples + 0.1 * samples.std() * torch.randn(samples.shape, dtype=samples.dtype)
        assert not problem.subspaces.at(wrong @ coordinates.forward.T).is_inside.any()

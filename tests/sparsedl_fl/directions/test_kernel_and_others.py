import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions import DictionaryDirections, KernelDirections, PriorDirections
from sparsedl_fl.directions.kernel import draw_kernels, draw_overdetermined_kernels
from sparsedl_fl.metrics import match_batches, psnr
from sparsedl_fl.simulation import client_gradient
from sparsedl_fl.theory import expected_samples


def test_kernels_vanish_on_the_rows_drawn():
    observations = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernels = draw_kernels(observations, torch.arange(40)[None], 50, torch.Generator().manual_seed(1))
    torch.testing.assert_close(kernels.norm(dim=1), torch.ones(50, dtype=torch.float64))
    assert (((kernels @ observations.T).abs() < 1e-10).sum(dim=1) == 5).all()


def test_singular_draws_are_dropped():
    observations = torch.zeros(20, 4, dtype=torch.float64)
    observations[:2] = torch.eye(4, dtype=torch.float64)[:2]
    assert len(draw_kernels(observations, torch.arange(20)[None], 30, torch.Generator().manual_seed(0))) == 0


def test_spear_recovers_every_batch_in_as_many_draws_as_the_lemma_says(cifar):
    draws = []
    for seed in range(10):
        pixels, layer_gradient = cifar.problem(10, 400, seed)
        directions = KernelDirections(draws_per_batch=512)
        inverter = GradientInverter(directions, random_state=seed).fit(layer_gradient)
        assert inverter.recovered_.all()
        assert psnr(pixels, cifar.pixels(inverter.inputs_)).min() > 90
        draws.append(inverter.n_starts_)
    assert 0.5 < np.median(draws) / expected_samples(10) < 2


def test_a_spent_budget_is_said(small_problem):
    _, model, gradient = small_problem
    layer_gradient = LayerGradient.from_model(model, gradient)
    directions = KernelDirections(max_draws=5, draws_per_batch=2)
    candidates = directions.propose(LayerProblem.of(layer_gradient), random_state=0)
    assert candidates.n_starts == 5
    assert candidates.status == "the budget of 5 draws is spent"


@pytest.mark.parametrize("parameters", [{"max_draws": 0}, {"draws_per_batch": -1}, {"false_rejection": 1.0}])
def test_bad_parameters_are_named(parameters, small_problem):
    _, model, gradient = small_problem
    layer_gradient = LayerGradient.from_model(model, gradient)
    with pytest.raises(ValueError, match="max_draws and draws_per_batch must be positive and false_rejection in"):
        KernelDirections(**parameters).propose(LayerProblem.of(layer_gradient))


def test_draws_stay_within_their_sets():
    observations = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sets = torch.stack([torch.arange(10), torch.arange(20, 30)])
    kernels = draw_kernels(observations, sets, 8, torch.Generator().manual_seed(1))
    is_zero = (kernels @ observations.T).abs() < 1e-10
    assert is_zero[0::2, :10].sum(dim=1).eq(5).all()
    assert is_zero[1::2, 20:30].sum(dim=1).eq(5).all()


def test_overdetermined_kernels_are_the_columns_under_noise():
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((60, 4)) * (rng.uniform(size=(60, 4)) < 0.5)
    mixing = rng.standard_normal((4, 4))
    observations = torch.from_numpy(codes @ mixing + 1e-5 * rng.standard_normal((60, 4)))
    kernels = draw_overdetermined_kernels(observations, torch.arange(60)[None], 500, torch.Generator().manual_seed(0))
    assert len(kernels) < 500
    true = np.linalg.inv(mixing)
    cosines = np.abs(kernels.numpy() @ true / np.linalg.norm(true, axis=0))
    assert (cosines.max(axis=0) > 1 - 1e-6).all()


@pytest.mark.parametrize("noise_std", [5e-6, 5e-5])
def test_spear_works_under_dp_noise(cifar, noise_std):
    pixels, layer_gradient = cifar.private_problem(8, 400, seed=0, clipping=2.0, noise_std=noise_std)
    inverter = GradientInverter(KernelDirections(max_draws=100_000), batch_size=8, random_state=0).fit(layer_gradient)
    assert inverter.recovered_.all()
    assert psnr(pixels, cifar.pixels(inverter.inputs_)).mean() > 40


def test_a_rough_prior_replaces_millions_of_draws(cifar):
    pixels, layer_gradient = cifar.problem(30, 400, 0)
    rough = cifar.inputs(pixels) + np.random.default_rng(0).standard_normal(pixels.shape)
    directions = PriorDirections(inputs=rough, max_draws=100_000)
    inverter = GradientInverter(directions, random_state=0).fit(layer_gradient)
    assert inverter.recovered_.all()
    assert inverter.n_starts_ < expected_samples(30) / 1e4


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "inputs must be an approximate reconstruction of shape .n_samples, 60., got None"),
        ({"inputs": np.ones((4, 3))}, r"inputs must be finite and of shape \(n_samples, 60\), got shape \(4, 3\)"),
        ({"inputs": np.ones((4, 60)), "rows_per_sample": 0}, "rows_per_sample must be at least 1, got 0"),
        ({"inputs": np.ones((4, 60)), "device": "abacus"}, "device must name a torch device"),
    ],
)
def test_bad_priors_are_named(parameters, message, small_problem):
    _, model, gradient = small_problem
    layer_gradient = LayerGradient.from_model(model, gradient)
    with pytest.raises(ValueError, match=message):
        PriorDirections(**parameters).propose(LayerProblem.of(layer_gradient))


class TestSides:
    """A batch of half the layer's width behind another ReLU: hopeless from its gradients, easy from its inputs."""

    @pytest.fixture
    def deep(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(100, 400), nn.ReLU(), nn.Linear(400, 60), nn.ReLU(), nn.Linear(60, 10))
        batch = torch.randn(30, 100)
        gradient = client_gradient(model, batch, torch.arange(30) % 10)
        return model[1](model[0](batch)).detach().numpy(), LayerGradient.from_model(model, gradient, 1)

    @pytest.mark.parametrize("sparsity", ["auto", "input"])
    def test_input_sparsity_recovers_it(self, deep, sparsity):
        true, layer_gradient = deep
        inverter = GradientInverter(DictionaryDirections(sparsity=sparsity), random_state=0).fit(layer_gradient)
        assert inverter.recovered_.all()
        assert match_batches(true, inverter.inputs_).squared_errors.max() < 1e-8

    def test_gradient_sparsity_alone_does_not(self, deep):
        directions = DictionaryDirections(sparsity="gradient")
        with pytest.warns(ConvergenceWarning, match="0 of 30 inputs certified"):
            inverter = GradientInverter(directions, random_state=0).fit(deep[1])
        assert not inverter.recovered_.any()

    def test_another_word_is_refused(self, deep):
        with pytest.raises(ValueError, match="sparsity must be one of .*, got 'both'"):
            GradientInverter(DictionaryDirections(sparsity="both")).fit(deep[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_on_cuda(small_problem):
    _, model, gradient = small_problem
    layer_gradient = LayerGradient.from_model(model, gradient)
    directions = KernelDirections(device="cuda")
    assert GradientInverter(directions, random_state=0).fit(layer_gradient).recovered_.all()

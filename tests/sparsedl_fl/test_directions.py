import numpy as np
import pytest
import torch

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.directions import KernelDirections
from sparsedl_fl.directions.kernel import draw_kernels
from sparsedl_fl.lowrank import factorize
from sparsedl_fl.metrics import psnr
from sparsedl_fl.theory import expected_samples


def test_kernels_vanish_on_the_rows_drawn():
    observations = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernels = draw_kernels(observations, 50, torch.Generator().manual_seed(1))
    torch.testing.assert_close(kernels.norm(dim=1), torch.ones(50, dtype=torch.float64))
    assert (((kernels @ observations.T).abs() < 1e-10).sum(dim=1) == 5).all()


def test_singular_draws_are_dropped():
    observations = torch.zeros(20, 4, dtype=torch.float64)
    observations[:2] = torch.eye(4, dtype=torch.float64)[:2]
    assert len(draw_kernels(observations, 30, torch.Generator().manual_seed(0))) == 0


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
    candidates = directions.propose(layer_gradient, factorize(layer_gradient), random_state=0)
    assert candidates.n_starts == 5
    assert candidates.status == "the budget of 5 draws is spent"


@pytest.mark.parametrize("parameters", [{"max_draws": 0}, {"draws_per_batch": -1}, {"false_rejection": 1.0}])
def test_bad_parameters_are_named(parameters, small_problem):
    _, model, gradient = small_problem
    layer_gradient = LayerGradient.from_model(model, gradient)
    with pytest.raises(ValueError, match="max_draws and draws_per_batch must be positive and false_rejection in"):
        KernelDirections(**parameters).propose(layer_gradient, factorize(layer_gradient))

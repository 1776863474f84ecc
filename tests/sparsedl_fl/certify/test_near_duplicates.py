"""Inputs that the gradient cannot tell apart come back as one, and its uncertainty says so."""

import warnings

import numpy as np
import torch

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.simulation import WIRES, client_gradient, fully_connected


def attack(batch_size, distance, seed, wire="float16"):
    """Attack a batch whose last input is so far (relative to its size) from the first, of one label."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn((batch_size, 300), generator=generator)
    inputs[-1] = inputs[0] + distance * torch.randn(300, generator=generator) if distance else inputs[-1]
    labels = torch.arange(batch_size) % 10
    labels[-1] = labels[0] if distance else labels[-1]
    model = fully_connected(300, width=100, random_state=seed)
    gradients = client_gradient(model, inputs, labels)
    if wire:
        gradients = {name: WIRES[wire](value) for name, value in gradients.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        inverter = GradientInverter(random_state=seed).fit(LayerGradient.from_model(model, gradients))
    errors = np.sqrt(np.mean((inputs.double().numpy()[:, None] - inverter.inputs_[None]) ** 2, axis=2))
    return inverter, errors


def test_the_mean_of_two_that_the_gradient_cannot_tell_apart_is_uncertain():
    n_pairs = 0
    for seed in range(8):
        inverter, errors = attack(6, 0.006, seed)
        index = errors[0].argmin()
        if inverter.batch_size_ == 5 and inverter.recovered_[index]:
            n_pairs += 1
            assert errors[0, index] > 2e-3, "the pair should come back as its mean"
            assert errors[0, index] < 10 * inverter.uncertainty_[index]
            assert inverter.resolution_[index] > errors[0, index]
    assert n_pairs > 4


def test_an_input_by_itself_is_seldom_taken_for_a_pair():
    ratios = []
    for seed in range(8):
        inverter, errors = attack(6, 0, seed)
        assert inverter.recovered_.all()
        ratios.extend(errors.min(axis=1) / inverter.uncertainty_[errors.argmin(axis=1)])
    assert np.mean(np.array(ratios) < 1 / 3) < 0.1


def test_a_pair_that_the_gradient_tells_apart_comes_back_as_two():
    inverter, errors = attack(6, 0.3, 0, wire="")
    assert inverter.batch_size_ == 6
    assert errors.min(axis=1).max() < 1e-3

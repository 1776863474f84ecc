"""No input is certified that is wrong: random problems inside and far outside what can be recovered."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from sparsedl import SparseDictionaryRecovery
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.directions import ActivationDirections, DictionaryDirections
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import client_gradient

N_INPUTS = 80
TWISTS = ["none", "none", "duplicates", "nearly equal", "wrong weights", "zero gradient", "uncentred", "no next layer"]
ACTIVATIONS = [nn.ReLU, nn.ReLU, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.Sigmoid, nn.Tanh]


def random_problem(seed):
    """Return the true inputs, the layer's gradient, and what was done to it."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    width = int(rng.choice([40, 60, 100]))
    batch_size = int(rng.integers(1, width // 2 + 5))
    twist, activation = str(rng.choice(TWISTS)), ACTIVATIONS[rng.integers(len(ACTIVATIONS))]
    batch = torch.randn(batch_size, N_INPUTS, generator=generator)
    if twist == "uncentred":
        batch = torch.rand(batch_size, N_INPUTS, generator=generator)
    if twist == "duplicates":
        batch[batch_size // 2 :] = batch[: batch_size - batch_size // 2].clone()
    if twist == "nearly equal":
        batch[-1] = batch[0] + 1e-4 * batch[-1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(N_INPUTS, width), activation(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )
    weights = torch.ones(batch_size)
    if twist == "zero gradient" and batch_size > 1:
        weights[0] = 0

    def loss(outputs, labels):
        return (weights * nn.functional.cross_entropy(outputs, labels, reduction="none")).mean()

    gradient = client_gradient(model, batch, torch.arange(batch_size) % 10, loss)
    if twist == "wrong weights":
        with torch.no_grad():
            model[0].weight += 0.3 * torch.randn(model[0].weight.shape, generator=generator) / N_INPUTS**0.5
    given = LayerGradient.from_model(model, gradient)
    if twist == "no next layer":
        given = LayerGradient(given.weight, given.bias, given.weight_grad, given.bias_grad)
    return batch.numpy(), given, f"seed {seed}: {activation.__name__}, b={batch_size}, m={width}, {twist}"


def worst_certified(seed):
    """Attack a problem; return the PSNR of its worst certified input and how many are certified."""
    batch, given, what = random_problem(seed)
    fallback = DictionaryDirections(SparseDictionaryRecovery(max_rounds=3))
    search = ActivationDirections(patience=8, fallback=fallback)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (ConvergenceWarning, UserWarning))
        try:
            inverter = GradientInverter(search, random_state=seed).fit(given)
        except ValueError as error:
            if any(reason in str(error) for reason in ("as large as the layer", "column space", "is all zeros")):
                return np.inf, 0
            raise ValueError(what) from error
    certified = inverter.inputs_[inverter.recovered_]
    if not len(certified):
        return np.inf, 0
    errors = match_batches(certified, batch).squared_errors
    return 10 * np.log10(np.ptp(batch) ** 2 / errors.max()), len(certified)


@pytest.mark.parametrize("seeds", [range(0, 15), range(15, 30)], ids=["0-14", "15-29"])
def test_nothing_wrong_is_certified(seeds):
    results = {seed: worst_certified(seed) for seed in seeds}
    assert all(quality > 60 for quality, _ in results.values()), results
    assert sum(count for _, count in results.values()) > 30


@pytest.mark.benchmark
def test_nothing_wrong_is_certified_in_two_hundred_problems():
    results = {seed: worst_certified(seed) for seed in range(200)}
    counts = [count for _, count in results.values()]
    print(f"\n{sum(counts)} inputs certified in {np.count_nonzero(counts)} of 200 problems")
    assert all(quality > 60 for quality, _ in results.values()), results

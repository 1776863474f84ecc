"""Layers without a flat part: true inputs are likely under noise, mixtures of them are not."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sparsedl_fl import LayerGradient
from sparsedl_fl.audit.likely import EXPECTED, log_chances_of_mixtures, smooth_candidates

B = 5


def noisy_layer(activation, noise, seed=0):
    """Return a layer of a perceptron with noise on each entry, relative, and what it was fed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(40, 60), activation(), nn.Linear(60, 30), activation(), nn.Linear(30, 10))
        x = torch.randn(B, 40)
        found = torch.autograd.grad(cross_entropy(model(x), torch.arange(B)), list(model.parameters()))
        found = [tensor + noise * tensor.square().mean().sqrt() * torch.randn_like(tensor) for tensor in found]
    names = dict(model.named_parameters())
    gradients = dict(zip(names, found, strict=True))
    return LayerGradient.from_model(model, gradients, "0", example=torch.zeros_like(x)), x.double().numpy()


def fitted(inputs, *, n_starts=64):
    """Return what is read of an inverter that has found these and certified none."""
    return SimpleNamespace(
        inputs_=inputs, batch_size_=len(inputs), batch_size=len(inputs), noise_level=None, n_starts_=n_starts,
        recovered_=np.zeros(len(inputs), dtype=bool), provenance_=np.full(len(inputs), "column found"),
    )  # fmt: skip


def mixtures(truth, rng):
    """Return as many mixtures of a batch that span the same, and have the same scale."""
    weights = rng.standard_normal((len(truth), len(truth)))
    weights -= (weights.sum(axis=1, keepdims=True) - 1) / len(truth)
    return weights @ truth


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.SiLU])
@pytest.mark.parametrize("noise", [1e-3, 1e-2])
def test_true_inputs_are_likely_under_noise(activation, noise):
    given, truth = noisy_layer(activation, noise)
    found = smooth_candidates(fitted(truth), given)
    assert [one.index for one in found] == list(range(B))
    assert {one.correlation for one in found} == {EXPECTED}


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.SiLU, nn.Softplus])
def test_mixtures_of_inputs_are_not(activation):
    for seed in range(5):
        given, truth = noisy_layer(activation, 1e-3, seed)
        rng = np.random.default_rng(seed)
        assert smooth_candidates(fitted(mixtures(truth, rng)), given) == ()


def test_more_starts_need_more():
    given, truth = noisy_layer(nn.GELU, 1e-2)
    log_chances = log_chances_of_mixtures(fitted(truth), given, np.arange(B))
    assert (log_chances < -10).all()
    assert smooth_candidates(fitted(truth, n_starts=1e300), given) == ()


def test_nothing_is_said_of_a_single_candidate_or_of_what_only_completes_the_batch():
    given, truth = noisy_layer(nn.GELU, 1e-3)
    alone = fitted(truth)
    alone.provenance_ = np.array(["column found", *["completed"] * (B - 1)])
    assert smooth_candidates(alone, given) == ()
    certified = fitted(truth)
    certified.recovered_ = np.ones(B, dtype=bool)
    certified.provenance_ = np.full(B, "certified")
    assert smooth_candidates(certified, given) == ()

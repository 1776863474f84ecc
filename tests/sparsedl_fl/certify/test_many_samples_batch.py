import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import GradientInverter
from sparsedl_fl.certify.many_samples_batch import many_samples_batch
from sparsedl_fl.constraints.many_samples import ManySamplesProblem
from sparsedl_fl.metrics import are_wrong, match_batches
from tests.hostile.problems import hostile_problem


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.LeakyReLU, nn.PReLU])
def test_a_batch_larger_than_its_features_comes_back_with_its_labels(many_samples, activation):
    inputs, labels, _, given = many_samples(activation=activation)
    inverter = GradientInverter(random_state=0).fit(given)
    true = inputs.double().numpy()
    order = match_batches(true, inverter.inputs_).order
    assert inverter.batch_size_ == 24
    assert inverter.recovered_.sum() >= 22
    assert not are_wrong(true, inverter.inputs_[inverter.recovered_], inverter.uncertainty_[inverter.recovered_]).any()
    named = inverter.labels_[order]
    assert (named == labels.numpy())[inverter.recovered_[order]].mean() > 0.9
    assert set(inverter.evidence_[inverter.recovered_]) == {"span of the next layer"}
    residual = given.weight_grad - inverter.preactivation_gradients_ @ inverter.inputs_
    assert np.linalg.norm(residual) < 1e-4 * np.linalg.norm(given.weight_grad)
    assert "24 inputs found" in inverter.status_


def test_of_a_part_the_rest_is_said_to_be_missing(many_samples):
    inputs, _, _, given = many_samples()
    problem = ManySamplesProblem.of(given)
    batch, labels = many_samples_batch(problem, problem.whitened(inputs[:9].double().numpy()))
    assert batch.inputs.shape == (24, 6)
    assert not batch.recovered[9:].any()
    assert np.isinf(batch.uncertainty[9:]).all()
    assert (labels[9:] == -1).all()
    assert np.isnan(batch.relative_residual)


@pytest.mark.parametrize("n_found", [9, 20])
def test_of_another_batch_behind_nothing_is_certified(many_samples, n_found):
    """With six features any input fits in: many missing leave no check, and few show that the rest does not fit."""
    inputs, _, _, given = many_samples()
    others = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(1))
    behind = many_samples(inputs=others)[3].next_weight_grad
    problem = ManySamplesProblem.of(replace(given, next_weight_grad=behind))
    batch, _ = many_samples_batch(problem, problem.whitened(others[:n_found].double().numpy()))
    assert not batch.recovered.any()


def test_of_its_own_batch_a_part_is_certified_where_the_rest_fits(many_samples):
    inputs, _, _, given = many_samples()
    problem = ManySamplesProblem.of(given)
    batch, _ = many_samples_batch(problem, problem.whitened(inputs[:22].double().numpy()))
    assert batch.recovered.sum() > 15


@pytest.mark.parametrize("seed", [23, pytest.param(33, marks=pytest.mark.slow), 2028])
def test_records_that_are_alike_are_not_certified_wrongly(seed):
    problem = hostile_problem(seed, "crowded")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inverter = GradientInverter(random_state=seed, **problem.told).fit(problem.layer_gradient)
    certified = inverter.recovered_
    true = problem.inputs.double().numpy()
    assert not are_wrong(true, inverter.inputs_[certified], inverter.uncertainty_[certified]).any()

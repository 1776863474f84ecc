"""Outputs of a head in units of the rounding of their gradient."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.certify.labels import labels_of
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.lowrank.factorization import factorize
from sparsedl_fl.lowrank.row_equilibration import in_units_of_rounding
from sparsedl_fl.simulation import client_gradient

N, K, USED = 60, 60, 4


def confident_head(b=20, seed=0, least=-12.0):
    """A head that is sure that most classes are not there, and a batch of the few others."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.relu(0.5 + torch.randn((b, N), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Linear(N, K)
    with torch.no_grad():
        head.bias[USED:] += least
    labels = torch.arange(b) % USED
    return features, labels, LayerGradient.from_model(head, client_gradient(head, features, labels))


def check(inverter, features, labels, least_share=1.0):
    true = features.double().numpy()
    distances = np.sqrt(((inverter.inputs_[:, None] - true[None]) ** 2).mean(axis=2))
    sure = inverter.recovered_
    assert sure.mean() >= least_share, inverter.status_
    assert (distances.min(axis=1) < 10 * inverter.uncertainty_)[sure].all()
    nearest = distances.argmin(axis=1)
    shown = inverter.labels_ >= 0
    np.testing.assert_array_equal(inverter.labels_[shown], labels.numpy()[nearest[shown]])
    return nearest


@pytest.mark.parametrize("seed", range(3))
def test_inputs_that_share_few_labels_of_a_confident_head_come_back(seed):
    features, labels, given = confident_head(seed=seed)
    assert factorize(given, len(labels)).signal_to_noise < 100  # the rounding of the large rows covers the others
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 19 of 20 at seed 2, on one of two kinds of processor
        inverter = GradientInverter(random_state=0).fit(given)
    nearest = check(inverter, features, labels, least_share=0.95)
    assert sorted(nearest) == list(range(len(labels)))
    # One whose fit ended at six times the noise of the others shows none (seed 2, on one of two kinds of processor).
    assert (inverter.labels_ >= 0).sum() >= len(labels) - 1
    columns = inverter.preactivation_gradients_
    np.testing.assert_allclose(
        columns @ inverter.inputs_, given.weight_grad, atol=1e-5 * np.abs(given.weight_grad).max()
    )


def test_without_units_they_do_not(monkeypatch):
    features, labels, given = confident_head()
    monkeypatch.setattr(
        "sparsedl_fl.inverter.in_units_of_rounding", lambda given, batch_size: (given, np.ones(given.shape[0]))
    )
    with pytest.warns(UserWarning, match="inputs"):
        inverter = GradientInverter(random_state=0).fit(given)
    assert not (inverter.batch_size_ == len(labels) and inverter.recovered_.all())


def test_units_change_what_is_seen_and_not_what_is():
    features, labels, given = confident_head()
    counted, units = in_units_of_rounding(given)
    assert (np.log2(units) % 1 == 0).all()
    assert units.max() / units.min() > 100
    z = given.preactivations(features.double().numpy())
    np.testing.assert_allclose(counted.preactivations(features.double().numpy()), units[:, None] * z)
    there = counted.rest.gradients_for(torch.from_numpy(units[:, None] * z).T, labels).T
    here = given.rest.gradients_for(torch.from_numpy(z).T, labels).T
    torch.testing.assert_close(there, here / torch.from_numpy(units)[:, None])
    assert given.rest.units is None
    assert factorize(counted).batch_size == len(labels)
    assert factorize(counted).precision == factorize(given, len(labels)).precision


@pytest.mark.parametrize("kind", ["alike", "hidden", "half", "noise"])
def test_what_is_no_such_head_is_left_alone(kind):
    features, labels, given = confident_head(least=0.0 if kind == "alike" else -12.0)
    if kind == "hidden":
        given = replace(given, activation="relu", rest=None)
    if kind == "half":
        given = replace(given, weight_grad=given.weight_grad.astype(np.float16).astype(np.float32))
    if kind == "noise":
        generator = np.random.default_rng(0)
        noise = 1e-3 * np.abs(given.weight_grad).max() * generator.standard_normal(given.shape)
        given = replace(given, weight_grad=given.weight_grad + noise)
    counted, units = in_units_of_rounding(given)
    assert counted is given
    assert (units == 1).all()


def test_dead_rows_keep_their_unit():
    features, labels, given = confident_head()
    dead = np.arange(K) == K - 1
    given = replace(
        given, weight_grad=np.where(dead[:, None], 0, given.weight_grad), bias_grad=np.where(dead, 0, given.bias_grad)
    )
    assert in_units_of_rounding(given)[1][-1] == 1


def test_an_input_out_of_line_shows_no_label(monkeypatch):
    features, labels, given = confident_head(least=-4.0)
    problem = LayerProblem.of(given)
    true, gradients = features.double().numpy(), np.zeros((K, len(labels)))
    certified = np.ones(len(labels), dtype=bool)
    np.testing.assert_array_equal(labels_of(problem, true, gradients, certified), labels)
    moved = true.copy()
    here = problem.tail.at(torch.from_numpy(given.preactivations(true).T))
    moved[0] *= 1 + 1e-4
    there = problem.tail.at(torch.from_numpy(given.preactivations(moved).T))
    assert there.distances[0] > 4 * here.distances.median()
    assert there.distances[0] <= problem.tail.largest_tolerance
    found = labels_of(problem, moved, gradients, certified)
    assert found[0] == -1
    np.testing.assert_array_equal(found[1:], labels[1:])
    monkeypatch.setattr("sparsedl_fl.certify.labels.IN_LINE", np.inf)
    assert labels_of(problem, moved, gradients, certified)[0] == labels[0]

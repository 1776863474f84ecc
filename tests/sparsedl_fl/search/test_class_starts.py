"""Behind a classifier's last layer all labels show at once, and about where the inputs of each class lie."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.constraints import TailGradient
from sparsedl_fl.constraints.label_terms import LabelTerms, distances_by_label
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.layers.network_tail import RestOfNetwork
from sparsedl_fl.search import ClassStarts, SampleCoordinates
from sparsedl_fl.simulation import client_gradient


def head_problem(labels, n_classes, n_features=60, seed=0, loss=functional.cross_entropy):
    """Features with a common part, a head with random weights, and what it sends."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.relu(0.5 + torch.randn((len(labels), n_features), generator=generator))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = nn.Linear(n_features, n_classes)
    gradients = client_gradient(head, features, torch.as_tensor(labels), loss)
    return features.double().numpy(), head, gradients


def start(labels, n_classes, known=(), **given):
    features, head, gradients = head_problem(labels, n_classes, **given)
    problem = LayerProblem.of(LayerGradient.from_model(head, gradients))
    factors = problem.factors
    known = torch.from_numpy(features[list(known)] @ factors.right.T / factors.singular_values)
    inputs, found = ClassStarts().run(SampleCoordinates.of_problem(problem), problem.tail, known)
    return features, (inputs.numpy() * factors.singular_values) @ factors.right, found


@pytest.mark.parametrize("seed", range(3))
def test_starts_of_classes_with_one_input_are_exact_where_no_class_has_two(seed):
    labels = list(range(0, 40, 3))
    features, inputs, found = start(labels, 40, seed=seed)
    assert found.tolist() == labels
    assert np.abs(inputs - features).max() < 1e-4


def test_two_of_a_class_are_taken_for_one_and_the_others_are_near():
    labels = [3, 3, 5, 9, 21, 30]
    features, inputs, found = start(labels, 40)
    assert found.tolist() == [3, 5, 9, 21, 30]
    errors = np.linalg.norm(inputs[1:] - features[2:], axis=1) / np.linalg.norm(features[2:], axis=1)
    assert errors.max() < 0.05
    assert np.linalg.norm(inputs[0] - features[:2].mean(axis=0)) < 0.1 * np.linalg.norm(features[0])


def test_what_is_known_leaves_the_other_of_its_class_exact():
    labels = [3, 3, 5, 9]
    features, inputs, found = start(labels, 40, known=(0, 2, 3))
    assert found.tolist() == [3]
    assert np.abs(inputs[0] - features[1]).max() < 1e-4


def test_labels_of_which_nothing_is_left_lead_nowhere(monkeypatch):
    """Such starts were no numbers, and the next least squares ended in LAPACK."""
    _, head, gradients = head_problem(list(range(0, 40, 3)), 40)
    problem = LayerProblem.of(LayerGradient.from_model(head, gradients))
    coordinates, rest, nothing = (
        SampleCoordinates.of_problem(problem),
        problem.tail,
        torch.zeros((0, 14), dtype=torch.float64),
    )
    assert len(ClassStarts().run(coordinates, rest, nothing)[1]) == 14
    monkeypatch.setattr(RestOfNetwork, "gradients_for", lambda self, z, labels: torch.zeros_like(z))
    monkeypatch.setattr(TailGradient, "settled", lambda self, z: self)
    inputs, labels = ClassStarts().run(coordinates, replace(rest, labels=nothing[:, 0].long()), nothing)
    assert len(inputs) == len(labels) == 0


def test_a_batch_beyond_what_random_starts_reach_comes_back_with_all_labels():
    """A hundred and twenty inputs in three hundred classes: nine in ten by the first round alone."""
    labels = np.random.default_rng(0).integers(300, size=120).tolist()
    features, head, gradients = head_problem(labels, 300, n_features=150)
    inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(head, gradients))
    assert inverter.recovered_.all()
    nearest = ((inverter.inputs_[:, None] - features[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert sorted(nearest) == list(range(120))
    assert (inverter.labels_ == np.array(labels)[nearest]).all()
    assert inverter.n_starts_ < 10 * 120


def smoothed(outputs, labels):
    return functional.cross_entropy(outputs, labels, label_smoothing=0.1)


@pytest.mark.parametrize("loss", [None, "mse", smoothed])
def test_labels_compared_in_two_products_are_as_one_by_one(loss):
    _, head, gradients = head_problem([1, 4, 4, 7], 12)
    problem = LayerProblem.of(LayerGradient.from_model(head, gradients))
    rest, space = RestOfNetwork.of_head(loss), problem.tail.space
    terms = LabelTerms.of(rest, space)
    generator = torch.Generator().manual_seed(0)
    z = torch.randn((5, 12), generator=generator, dtype=torch.float64)
    own = functional.normalize(torch.randn((5, 12), generator=generator, dtype=torch.float64), dim=1)
    fast = distances_by_label(rest, space, terms, z, torch.arange(12), own)
    slow = distances_by_label(rest, space, None, z, torch.arange(12), own)
    for one, other in zip(fast, slow, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def test_what_labels_add_depends_on_the_input_anywhere_else():
    assert RestOfNetwork(nn.Sequential(nn.GELU(), nn.Linear(6, 4))).label_terms(6) is None
    assert RestOfNetwork.of_head(lambda outputs, labels: (outputs[:, 0] * labels).exp().sum()).label_terms(3) is None

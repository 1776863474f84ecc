"""Reflections on the way forward and the way back at once: ReLU beyond half of the width."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.certify.uncertainty import errors_from_constraints
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.layers.network_tail import RestOfNetwork
from sparsedl_fl.layers.next_layers import Head
from sparsedl_fl.metrics import are_wrong
from sparsedl_fl.search import PairedReflection, SampleCoordinates
from sparsedl_fl.search.columns_and_forward_pass import ScaledForward
from sparsedl_fl.search.knowledge import Knowledge
from sparsedl_fl.simulation import client_gradient, fully_connected

WIDTH, BATCH = 60, 32


class Setting:
    """More than half as many inputs as there are units, behind three hidden layers."""

    def __init__(self, seed, n_hidden=3, activation=nn.ReLU):
        rng = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn((BATCH, 100), generator=rng)
        self.labels = torch.randint(0, 10, (BATCH,), generator=rng)
        self.model = fully_connected(100, width=WIDTH, n_hidden=n_hidden, n_classes=10, random_state=seed)
        for index in range(1, len(self.model), 2):
            self.model[index] = activation()
        self.given = LayerGradient.from_model(self.model, client_gradient(self.model, self.inputs, self.labels))
        self.problem = LayerProblem.of(self.given)
        self.preactivations = torch.from_numpy(self.given.preactivations(self.inputs.double().numpy()).T.copy())

    def inverted(self, seed=0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return GradientInverter(random_state=seed).fit(self.given)


@pytest.fixture(scope="module")
def setting():
    return Setting(2)


def test_what_the_loss_sends_back_lies_in_the_column_space_of_every_layer(setting):
    back = setting.problem.backward
    z, d, e = back.at(setting.preactivations, setting.labels)
    assert [part.shape for part in z] == [(BATCH, WIDTH)] * 3
    for basis, gradients in zip(back.bases, d, strict=True):
        outside = gradients - (gradients @ basis) @ basis.T
        assert outside.norm() < 1e-5 * gradients.norm()
    other = back.at(setting.preactivations, (setting.labels + 1) % 10)[1]
    assert (other[0] - (other[0] @ back.bases[0]) @ back.bases[0].T).norm() > 0.1 * other[0].norm()
    torch.testing.assert_close(e[0] * (z[0] > 0), d[0])


def test_labels_lead_the_starts_to_different_inputs(setting):
    problem, subspaces = setting.problem, setting.problem.all_subspaces
    forward = ScaledForward.of(SampleCoordinates.of_problem(problem))
    labels = setting.labels[torch.arange(64) % BATCH]
    minimisers = PairedReflection().minimisers(
        forward, subspaces, problem.backward, labels, torch.Generator().manual_seed(0)
    )
    found, true = forward.preactivations(minimisers) - forward.offset, setting.preactivations - forward.offset
    nearest, index = (normalize(found, dim=1) @ normalize(true, dim=1).T).max(dim=1)
    is_near = nearest > 0.99
    assert is_near.float().mean() > 0.2
    assert len(index[is_near].unique()) >= 5
    assert (setting.labels[index] == labels)[is_near].float().mean() > 0.9


def test_a_batch_beyond_half_of_the_width_comes_back(setting):
    inverter = setting.inverted()
    true = setting.inputs.double().numpy()
    errors = np.sqrt(np.mean((true - inverter.inputs_[:, None]) ** 2, axis=2)).min(axis=1)
    assert inverter.batch_size_ == BATCH
    assert errors.max() < 1e-4
    assert inverter.recovered_.sum() > 0.8 * BATCH
    assert not are_wrong(true, inverter.inputs_[inverter.recovered_], inverter.uncertainty_[inverter.recovered_]).any()


def test_an_end_that_slid_to_where_another_unit_begins_to_be_on_is_not_determined(setting):
    """One unit fewer is on than there are unknowns: nothing tells where between two kinks an input lies."""
    problem, factors = setting.problem, setting.problem.factors
    F, scale = problem.forward.regressors(), problem.forward.scale
    n_on = (setting.preactivations > 0).sum(dim=1)
    index = n_on.tolist().index(BATCH - 2)
    true = factors.right @ setting.inputs[index].double().numpy() / factors.singular_values
    is_active = F @ true > 0
    free = np.linalg.svd(np.vstack([F[is_active], scale]))[2][-1]
    steps = -(F @ true)[~is_active] / (F @ free)[~is_active]
    end = true + free * np.min(steps[steps > 0]) * (1 + 1e-9)
    assert (F @ end > 0).sum() == is_active.sum() + 1
    none = np.zeros((0, BATCH)), np.zeros((1, 0))
    errors = errors_from_constraints(factors, F, scale, problem.all_subspaces, end[None], *none)
    off = np.sqrt(np.mean(((end - true) * factors.singular_values @ factors.right) ** 2))
    assert off > 1e-3
    assert errors[0] > off


def test_an_inexact_input_does_not_hold_up_the_columns_of_others(setting):
    """Some that count as determined are off by a few hundredths, and overlap with the columns of all others."""
    problem = setting.problem
    coordinates = SampleCoordinates.of_problem(problem)
    factors = problem.factors
    samples = torch.from_numpy(setting.inputs.double().numpy() @ factors.right.T / factors.singular_values)
    noise = torch.randn(BATCH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inexact = normalize(samples[:1], dim=1) + 0.05 * normalize(noise[None], dim=1)
    knowledge = Knowledge(factors.zero_test, coordinates, (problem.column, problem.tail), trusts_downstream=True)
    knowledge.add_inputs(normalize(inexact, dim=1), torch.ones(1, dtype=torch.bool))
    assert (
        knowledge.coordinates.overlaps(knowledge.inputs, torch.linalg.inv(samples).T[1:]).max() > knowledge.own_product
    )
    n_before = knowledge.n_found
    assert knowledge.add_inputs(normalize(samples[1:9], dim=1), torch.ones(8, dtype=torch.bool))
    assert knowledge.n_found == n_before + 8


class TestLastColumn:
    def knowledge(self, setting, n, error):
        problem = setting.problem
        coordinates = SampleCoordinates.of_problem(problem)
        found = normalize(problem.backward.at(setting.preactivations, setting.labels)[1][0] @ coordinates.left, dim=1)
        noise = torch.randn(found.shape, generator=torch.Generator().manual_seed(0), dtype=found.dtype)
        knowledge = Knowledge(problem.factors.zero_test, coordinates, (problem.tail,), trusts_downstream=True)
        knowledge.coordinates = coordinates.deflated_by(normalize(found + error * normalize(noise, dim=1), dim=1)[:n])
        return knowledge, found

    @pytest.mark.parametrize("n", [BATCH, BATCH - 1])
    def test_it_follows_from_the_others_and_all_become_exact(self, setting, n):
        knowledge, true = self.knowledge(setting, n, 1e-6)
        assert knowledge.repeat_downstream()
        cosines = (knowledge.coordinates.found @ true.T).abs().max(dim=1).values
        assert (1 - cosines).max() < 1e-11
        assert knowledge.is_complete

    def test_it_stays_away_where_the_others_are_wrong(self, setting):
        knowledge, _ = self.knowledge(setting, BATCH - 1, 0.5)
        assert not knowledge.repeat_downstream()
        assert knowledge.n_found == BATCH - 1


class TestHead:
    def test_a_model_that_ends_behind_the_layers_shows_its_head(self, setting):
        head = setting.given.head
        np.testing.assert_array_equal(head.weight, setting.model[-1].weight.detach().numpy())
        assert len(setting.given.behind) == 2

    @pytest.mark.parametrize("activation", [nn.GELU, nn.Tanh, nn.LeakyReLU])
    def test_only_relu_has_a_way_back(self, activation):
        assert Setting(0, activation=activation).problem.backward is None

    def test_weights_that_moved_have_none(self, setting):
        assert LayerProblem.of(replace(setting.given, learning_rate=0.1)).backward is None

    def test_without_a_head_the_spans_are_used_alone(self, setting):
        given = replace(setting.given, head=None)
        assert LayerProblem.of(given).backward is None

    @pytest.mark.parametrize(
        ("weight", "bias", "message"),
        [
            (np.ones((10, 3)), None, "head takes 3 inputs, and the layer before has 60"),
            (np.ones((10, WIDTH)), np.ones(9), "a head must have weight"),
            (np.full((10, WIDTH), np.nan), None, "NaN or infinity"),
        ],
    )
    def test_one_that_does_not_fit_is_refused(self, setting, weight, bias, message):
        with pytest.raises(ValueError, match=message):
            replace(setting.given, head=Head(weight, bias, RestOfNetwork.of_head()))

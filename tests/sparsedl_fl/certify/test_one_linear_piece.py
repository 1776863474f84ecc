"""Two records between which no unit switches: whatever a batch with them comes back as, it is certified as it is."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.certify.collinear import WeightsByTail
from sparsedl_fl.certify.near_duplicates import change_where_no_unit_switches
from sparsedl_fl.constraints.problem import LayerProblem

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

B, N, M = 16, 100, 80
ALL = np.ones(9, dtype=bool)


def client(seed, n_outputs, *, is_deep=False, is_same_label=True):
    """Return a model, a batch whose first two records activate the same units, and the gradient."""
    torch.manual_seed(seed)
    hidden = [nn.Linear(M, 60), nn.ReLU()] if is_deep else []
    model = nn.Sequential(nn.Linear(N, M), nn.ReLU(), *hidden, nn.Linear(60 if is_deep else M, n_outputs))
    batch, step, length = torch.randn(B, N), torch.randn(N), 1.0
    while ((model[0](batch[0] + length * step) > 0) != (model[0](batch[0]) > 0)).any():
        length *= 0.9
    batch[1] = batch[0] + length * step
    labels = torch.arange(B) % max(n_outputs, 2)
    if is_same_label:
        labels[1] = labels[0]
    outputs = model(batch)
    if n_outputs == 1:
        loss = nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.float())
    else:
        loss = nn.functional.cross_entropy(outputs, labels)
    loss.backward()
    return model, batch.numpy(), {name: parameter.grad for name, parameter in model.named_parameters()}


def over_expected(inverter, batch):
    """Return the error of each certified input over its expected one; of means it includes what they may hide."""
    errors = np.sqrt(np.mean((inverter.inputs_[:, None] - batch) ** 2, axis=2)).min(axis=1)
    return (errors / inverter.uncertainty_)[inverter.recovered_]


@pytest.mark.parametrize("is_same_label", [True, False])
@pytest.mark.parametrize("is_deep", [False, True])
@pytest.mark.parametrize("n_outputs", [1, 2, 10])
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_nothing_wrong_is_certified(seed, n_outputs, is_deep, is_same_label):
    model, batch, sent = client(seed, n_outputs, is_deep=is_deep, is_same_label=is_same_label)
    inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, sent))
    assert over_expected(inverter, batch).max(initial=0.0) <= 4


@pytest.mark.parametrize("seed", range(4))
def test_of_two_classes_the_mean_of_both_is_as_far_off_as_no_unit_may_switch(seed):
    """Their gradients are parallel: with more classes, the rank shows two."""
    model, batch, sent = client(seed, 2)
    inverter = GradientInverter(random_state=0).fit(LayerGradient.from_model(model, sent))
    assert len(inverter.inputs_) == B - 1
    assert inverter.recovered_.all()
    is_mean = inverter.uncertainty_ > 0.02
    assert is_mean.sum() == 1
    assert (inverter.uncertainty_[~is_mean] < 1e-5).all()
    assert over_expected(inverter, batch).max() <= 2


@pytest.mark.parametrize("n_outputs", [2, 10])
def test_gradients_of_one_direction_show_it_without_the_head(n_outputs):
    model, batch, sent = client(1, n_outputs)
    layer = LayerGradient(
        weight=model[0].weight.detach().numpy(),
        weight_grad=sent["0.weight"].numpy(),
        bias=model[0].bias.detach().numpy(),
        bias_grad=sent["0.bias"].numpy(),
    )
    z = model[0](torch.from_numpy(batch)).detach().double().requires_grad_()
    nn.functional.cross_entropy(model.double()[1:](z), torch.arange(B) % n_outputs).backward()
    changes = change_where_no_unit_switches(LayerProblem.of(layer), z.detach().numpy().T, z.grad.numpy().T)
    assert (changes < 1e-6).all() if n_outputs == 2 else (changes > 0.1).all()


class TestWeightsByTail:
    def test_a_label_that_the_loss_weighs_counts_with_its_own_median(self):
        weights = WeightsByTail(
            np.array([0, 0, 0, 0, 1, 1, 1]), np.array([1.0, 1, 1, 2, 3, 3, 3]), np.zeros(7), ALL[:7]
        )
        assert weights.relative.tolist() == [1, 1, 1, 2, 1, 1, 1]
        assert weights.are_no_input.tolist() == [False, False, False, True, False, False, False]

    def test_half_may_be_pairs(self):
        weights = WeightsByTail(np.array([0, 0, 0, 1]), np.array([2.0, 2, 1, 1]), np.zeros(4), ALL[:4])
        assert weights.relative.tolist() == [2, 2, 1, 1]
        assert weights.are_no_input.tolist() == [True, True, False, False]

    def test_inputs_that_are_not_certified_say_nothing_of_the_others(self):
        weights = WeightsByTail(
            np.zeros(4, dtype=int), np.array([0.1, 0.1, 1, 1]), np.zeros(4), np.array([False, False, True, True])
        )
        assert weights.are_no_input.tolist() == [True, True, False, False]

    def test_rounding_of_what_the_client_is_sure_of_explains_another_size(self):
        weights = np.array([1.0, 1, 1, 1.2, 1.2])
        told = WeightsByTail(np.zeros(5, dtype=int), weights, np.array([0.0, 0, 0, 0.3, 0]), ALL[:5])
        assert told.are_no_input.tolist() == [False, False, False, False, True]

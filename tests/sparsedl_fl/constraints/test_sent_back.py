"""What the next layer's weights send back, and which columns that proves."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl import LayerGradient
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.simulation import client_gradient, fedavg_update

WIDTH, CLASSES = 60, 5


def network(n_classes=CLASSES, activation=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(80, WIDTH), activation(), nn.Linear(WIDTH, n_classes))


def problem_of(batch_size, model=None):
    """A layer before a head, and the true columns as unit rows ``q``."""
    model = model or network()
    batch, labels = torch.randn(batch_size, 80), torch.arange(batch_size) % CLASSES
    problem = LayerProblem.of(LayerGradient.from_model(model, client_gradient(model, batch, labels)), batch_size)
    z = model[0](batch).detach().double().requires_grad_()
    loss = nn.functional.cross_entropy(model[2:].double()(model[1](z)), labels)
    (gradients,) = torch.autograd.grad(loss, z)
    columns = gradients @ torch.from_numpy(problem.factors.left)
    return problem, nn.functional.normalize(columns, dim=1)


def found_near(problem, columns):
    found = problem.sent_back.near(columns)
    return found, problem.sent_back.proves(found)


@pytest.mark.parametrize("batch_size", [1, 10, 36])  # zeros determine none of 36
def test_a_column_is_what_is_sent_back_to_its_active_units(batch_size):
    problem, columns = problem_of(batch_size)
    found, proven = found_near(problem, columns)
    assert proven.all()
    torch.testing.assert_close((found.columns * columns).sum(dim=1).abs(), torch.ones(batch_size, dtype=torch.float64))
    assert ((columns @ problem.sent_back.left.T).abs() > 1e-4).equal(found.is_active)


def test_pre_activations_show_the_column_of_their_sample():
    problem, columns = problem_of(36)
    torch.manual_seed(0)
    model, batch = network(), torch.randn(36, 80)
    found, proven = problem.sent_back.columns(model[0](batch).detach().double())
    assert proven.all()
    torch.testing.assert_close((found * columns).sum(dim=1).abs(), torch.ones(36, dtype=torch.float64))
    assert not problem.sent_back.columns(model[0](batch.flip(1)).detach().double())[1].any()


def test_mixtures_and_random_directions_are_no_columns():
    problem, columns = problem_of(20)
    generator = torch.Generator().manual_seed(0)
    others = torch.cat([
        columns[:10] + columns[10:], columns[:10] - 0.01 * columns[10:],
        torch.randn((20, 20), generator=generator, dtype=torch.float64),
    ])  # fmt: skip
    others = nn.functional.normalize(others, dim=1)
    found, proven = found_near(problem, others)
    # A fit may lead from a mixture to a column, which is proven as itself.
    leads_to = (found.columns @ columns.T).abs().amax(dim=1)
    assert (~proven | (leads_to > 1 - 1e-6)).all()
    assert not proven[20:].any()


def test_two_samples_with_the_same_active_units_are_not_told_apart():
    problem, columns = problem_of(12)
    by, pattern = problem.sent_back, torch.zeros((2, WIDTH), dtype=torch.bool)
    pattern[:, : by.basis.shape[1]] = True  # so few active units leave every gradient inside
    widths = SimpleNamespace(tolerances=lambda columns: torch.full((len(columns), WIDTH), 1e-5, dtype=torch.float64))
    same = replace(by, left=torch.linalg.qr(by.basis * pattern[0][:, None])[0], n_live=WIDTH, test=widths)
    found = same.settled(same.left.T @ by.basis[:, 0] * torch.ones(2, 1), torch.eye(CLASSES)[:2].double())
    assert not same.proves(found).any()


def test_it_takes_known_weights_of_few_outputs_and_a_single_step():
    assert problem_of(10)[0].sent_back.identifies
    assert problem_of(3)[0].sent_back.basis.shape[1] == 3  # as many as there are samples
    assert problem_of(10, network(n_classes=20))[0].sent_back is None  # a third of the width
    assert problem_of(10, network(activation=nn.GELU))[0].sent_back is None
    model = network()
    batch, labels = torch.randn(10, 80), torch.arange(10) % CLASSES
    before, after = fedavg_update(model, batch, labels, learning_rate=0.01, n_epochs=3)
    given = LayerGradient.from_update(before, after, 0.01)
    assert LayerProblem.of(given, 10).sent_back is None


def test_a_unit_that_no_sample_activates_gives_no_equation():
    model = network()
    with torch.no_grad():
        model[0].bias[:7] = -1e3
    problem, columns = problem_of(10, model)
    assert problem.sent_back.n_live == WIDTH - 7
    assert found_near(problem, columns)[1].all()


def test_the_chance_counts_equations_of_active_units_alone():
    by = problem_of(10)[0].sent_back
    few, half, all_of_them = by.log_chances(torch.full((3,), 1e-7).double(), torch.tensor([CLASSES, 30, 60])).tolist()
    assert few > 0  # as many units as unknowns
    assert half == pytest.approx(60 * np.log10(2) - 7 * (30 - CLASSES))
    assert all_of_them == pytest.approx(60 * np.log10(2) - 7 * (60 - 10 - CLASSES))

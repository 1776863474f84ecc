"""Two samples that differ at few units put a part of a column into the column space."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl.candidates import SAME_COSINE
from sparsedl_fl import GradientInverter, LayerGradient
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions import ActivationDirections
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.search.exchanged_columns import add_last_column, exchange_columns
from sparsedl_fl.search.state import SearchState
from sparsedl_fl.simulation import client_gradient

WIDTH, B = 80, 30


def alike_batch(seed, n_units):
    """A batch whose second sample differs from the first one at so many units, which only the first one activates."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, batch = nn.Sequential(nn.Linear(100, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)), torch.randn(B, 100)
    z = model[0](batch[0]).detach()
    units = torch.where(z > 0, z, torch.inf).argsort()[:n_units]
    weight = model[0].weight.detach()
    wanted = z.clone()
    wanted[units] = -0.05
    batch[1] = batch[0] + (torch.linalg.pinv(weight) @ (wanted - z))
    patterns = model[0](batch[:2]).detach() > 0
    assert (patterns[0] & ~patterns[1]).sum() == n_units
    assert not (patterns[1] & ~patterns[0]).any()
    return model, batch, torch.arange(B) % 2


def true_columns(problem, model, batch, labels):
    z = model[0](batch).detach().double().requires_grad_()
    loss = nn.functional.cross_entropy(model[2:].double()(model[1](z)), labels)
    (gradients,) = torch.autograd.grad(loss, z)
    model.float()
    return gradients, nn.functional.normalize(gradients @ torch.from_numpy(problem.factors.left), dim=1)


def state_with(n_units, columns_of):
    model, batch, labels = alike_batch(0, n_units)
    problem = LayerProblem.of(LayerGradient.from_model(model, client_gradient(model, batch, labels)), B)
    gradients, columns = true_columns(problem, model, batch, labels)
    state = SearchState(ActivationDirections(), problem, None, None, torch.Generator().manual_seed(0), 9)
    state.knowledge.add_trusted(nn.functional.normalize(columns_of(gradients @ problem.sent_back.left), dim=1))
    return state, columns


def with_part(columns):
    """All columns of the batch but the first, and some of them without the part at which the first two differ."""
    part = columns[0] - columns[1] * (columns[0] @ columns[1]) / columns[1].square().sum()
    return torch.cat([columns[1:], part[None]])


def is_whole(found, columns):
    return len(found) == B and (found @ columns.T).abs().amax(dim=0).min() > 1 - 1e-9


@pytest.mark.parametrize("n_units", [1, 2, 4])
def test_a_part_of_a_column_is_exchanged_for_the_column(n_units):
    state, columns = state_with(n_units, with_part)
    assert not is_whole(state.knowledge.coordinates.found, columns)
    assert exchange_columns(state.knowledge, state.sent_back)
    assert is_whole(state.knowledge.coordinates.found, columns)
    assert not exchange_columns(state.knowledge, state.sent_back)  # nothing is left to do


def test_a_last_column_follows_from_the_others():
    state, columns = state_with(1, lambda columns: columns[:-1])
    assert add_last_column(state.knowledge, state.sent_back)
    assert is_whole(state.knowledge.coordinates.found, columns)
    state, columns = state_with(1, lambda columns: columns[:-2])
    assert not add_last_column(state.knowledge, state.sent_back)
    assert len(state.knowledge.coordinates.found) == B - 2


@pytest.mark.parametrize("n_units", [1, 3])
def test_such_a_batch_is_certified_whole(n_units):
    n_tried = 0
    for seed in range(4):
        model, batch, labels = alike_batch(seed, n_units)
        given = LayerGradient.from_model(model, client_gradient(model, batch, labels))
        gradients, _ = true_columns(LayerProblem.of(given, B), model, batch, labels)
        if torch.cosine_similarity(gradients[:1], gradients[1:2]).abs().item() > SAME_COSINE:  # one column, to a search
            continue
        n_tried += 1
        inverter = GradientInverter(random_state=0).fit(given)
        match = match_batches(batch, inverter.inputs_)
        errors = np.sqrt(match.squared_errors)
        assert inverter.recovered_.all()
        assert np.all(errors < 4 * inverter.uncertainty_[match.order])
    assert n_tried >= 2

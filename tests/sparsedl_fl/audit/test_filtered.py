"""Audits of updates of which a filter zeroed or clipped entries."""

import numpy as np
import pytest
import torch

from sparsedl_fl.audit import audit_model
from sparsedl_fl.audit.filtered import completed
from sparsedl_fl.simulation import client_gradient, fully_connected
from sparsedl_fl.simulation.wire import percentile_clip, sparsify


def client(n=300, width=120, batch=8, seed=0):
    torch.manual_seed(seed)
    model = fully_connected(n, width=width, random_state=seed)
    inputs = torch.randn(batch, n)
    return model, inputs, client_gradient(model, inputs, torch.arange(batch) % 10)


def each(gradients, change):
    return {name: change(tensor) for name, tensor in gradients.items()}


def cut(low, high):
    def change(tensor):
        moduli = tensor.abs().flatten()
        least, most = torch.quantile(moduli, torch.tensor([low, high]))
        return torch.where(tensor.abs() > least, tensor, 0.0).clamp(-most, most)

    return change


FILTERS = {
    "lowest tenth": cut(0.1, 1.0),
    "lowest half": cut(0.5, 1.0),
    "clipped": cut(0.0, 0.95),
    "both": cut(0.3, 0.9),
    "top half": lambda tensor: sparsify(tensor, 0.5),
    "random half": lambda tensor: torch.where(torch.rand(tensor.shape) < 0.5, tensor, 0.0),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_batch_comes_back_from_what_a_filter_left(name, seed):
    model, inputs, gradients = client(seed=seed)
    audit = audit_model(model, each(gradients, FILTERS[name]), example=inputs[:1])
    assert str(audit.verdict) == "RECOVERED", audit.reason
    values = torch.tensor(np.stack([sample.values for sample in audit.samples]))
    errors = np.array([sample.error for sample in audit.samples])
    true = torch.cdist(values, inputs.double()).min(1).values.numpy() / np.sqrt(inputs.shape[1])
    assert len(values) == len(inputs)
    assert (true <= 3 * errors).all()
    assert errors.max() < 1e-3
    assert "the update was filtered" in audit.notes[0]


def test_a_filter_over_all_tensors():
    model, inputs, gradients = client()
    moduli = torch.cat([tensor.abs().flatten() for tensor in gradients.values()])
    low, high = torch.quantile(moduli, torch.tensor([0.2, 0.98]))
    sent = each(gradients, lambda g: torch.where(g.abs() > low, g, 0.0).clamp(-high, high))
    assert str(audit_model(model, sent, example=inputs[:1]).verdict) == "RECOVERED"


def test_what_nvflare_sends_by_default():
    model, inputs, gradients = client()
    scale = 0.01 / torch.quantile(gradients["0.weight"].abs(), 0.98)
    sent = each(gradients, lambda tensor: percentile_clip(scale * tensor))
    assert str(audit_model(model, sent, example=inputs[:1]).verdict) == "RECOVERED"


def test_too_few_entries_are_out_of_range():
    model, inputs, gradients = client(batch=30)
    audit = audit_model(model, each(gradients, lambda tensor: sparsify(tensor, 0.1)), example=inputs[:1], max_effort=2)
    assert not audit.samples
    assert str(audit.verdict) != "NOT RECOVERED"


def test_an_update_that_was_not_filtered_stays_as_it_is():
    model, _, gradients = client()
    found = completed(model, gradients)
    assert not found.is_worked_out
    assert all(found.gradients[name] is tensor for name, tensor in gradients.items())


def test_sparse_records_are_no_filter():
    torch.manual_seed(0)
    model = fully_connected(100, width=80, random_state=0)
    inputs = (torch.rand(6, 100) < 0.1).float()
    gradients = client_gradient(model, inputs, torch.arange(6))
    assert (gradients["0.weight"] == 0).float().mean() > 0.3
    assert not completed(model, gradients).is_worked_out


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
def test_features_with_too_few_entries_are_estimates_and_count_as_errors(seed):
    model, inputs, gradients = client(n=400, width=150, batch=6, seed=seed)
    sizes = torch.ones(400)
    sizes[::10] = 0.003  # a tenth of the features is small, so that hardly an entry of theirs is left
    inputs = inputs * sizes
    gradients = client_gradient(model, inputs, torch.arange(6))
    sent = each(gradients, cut(0.7, 0.99))
    layer = audit_model(model, sent, example=inputs[:1])["0"]
    assert layer.n_certified == 6, layer.reason
    assert "which are estimates" in layer.reason
    values = torch.tensor(np.stack([sample.values for sample in layer.samples]))
    errors = np.array([sample.error for sample in layer.samples])
    true = torch.cdist(values, inputs.double()).min(1).values.numpy() / np.sqrt(inputs.shape[1])
    assert (true <= 3 * errors).all()
    assert (errors < 0.3).all()

"""Targets that are numbers, or several labels at a time."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl.audit import Verdict, audit_model
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import client_gradient

LOSSES = {
    "numbers": functional.mse_loss,
    "a sum": nn.MSELoss(reduction="sum"),
    "tags": nn.BCEWithLogitsLoss(),
}


def client(name, n_outputs, dropout=0.0, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(50, 120), nn.ReLU(), nn.Linear(120, 60), nn.ReLU(), nn.Dropout(dropout), nn.Linear(60, n_outputs)
        )
        x, targets = torch.randn(8, 50), torch.randn(8, n_outputs)
        targets = (targets > 0).float() if name == "tags" else targets
        return model, x, targets, client_gradient(model, x, targets, LOSSES[name])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("n_outputs", [1, 5])
@pytest.mark.parametrize("seed", range(3))
def test_they_follow_from_the_records(name, n_outputs, seed):
    model, x, targets, gradients = client(name, n_outputs, seed=seed)
    audit = audit_model(model, gradients, example=x[:1], loss=LOSSES[name])
    assert audit.verdict is Verdict.RECOVERED
    order = match_batches(x.numpy(), np.stack([sample.values for sample in audit.samples])).order
    assert np.abs(audit.targets[order] - targets.numpy()).max() < 1e-3
    assert np.median(np.abs(audit.targets[order] - targets.numpy())) < 1e-5
    assert len(audit.labels) == 0 or name == "tags"


def test_not_where_the_client_run_again_is_another():
    model, x, _, gradients = client("numbers", 5, dropout=0.5)
    audit = audit_model(model, gradients, example=x[:1], loss=functional.mse_loss)
    assert audit.samples
    assert audit.targets is None


def test_not_of_labels():
    model, x, _, _ = client("numbers", 5)
    gradients = client_gradient(model, x, torch.arange(8) % 5)
    for loss in (None, "cross_entropy", functional.cross_entropy):
        assert audit_model(model, gradients, example=x[:1], loss=loss).targets is None

"""Labels by the signs of the last bias gradient."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl.audit import Verdict, audit_model
from sparsedl_fl.audit.last_layer import LabelSigns
from sparsedl_fl.simulation import client_gradient


@pytest.mark.parametrize("seed", range(20))
def test_every_negative_entry_is_a_label_and_the_counts_hold(seed):
    rng = np.random.default_rng(seed)
    b, n_labels = int(rng.integers(1, 40)), int(rng.choice([2, 5, 10, 100]))
    labels = torch.from_numpy(rng.integers(n_labels, size=b))
    logits = torch.from_numpy(rng.standard_normal((b, n_labels)) * rng.choice([0.1, 2.0])).requires_grad_()
    gradient = torch.autograd.grad(functional.cross_entropy(logits, labels), logits)[0].sum(dim=0).numpy()
    found, true = LabelSigns.of(gradient, b, []), np.bincount(labels, minlength=n_labels)
    assert found.is_certain
    assert all(true[label] for label in found.present)
    assert all(count in (None, true[label]) for label, count in found.present.items())
    assert sum(found.estimated.values()) == b
    unknown = LabelSigns.of(gradient, None, ["if the loss is cross-entropy"])
    assert unknown.present.keys() == found.present.keys()
    assert not unknown.is_certain


def test_noise_makes_no_labels():
    rng = np.random.default_rng(0)
    for _ in range(50):
        found = LabelSigns.of(rng.standard_normal(10), 8, [])
        assert not found.is_certain
        assert len(found.present) <= 5
        assert "noise" in found.condition or not found.present


def test_they_change_no_verdict_and_say_what_they_rest_on():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10))
        x, labels = torch.rand(8, 1, 8, 8), torch.tensor([3, 3, 4, 6, 6, 8, 8, 8])
    gradients = client_gradient(model, x, labels)
    for loss, certain in ((None, False), ("cross_entropy", True)):
        audit = audit_model(model, gradients, example=x[:1], loss=loss)
        assert audit.verdict is Verdict.OUT_OF_RANGE
        assert set(audit.labels_present) == {3, 4, 6, 8}
        assert audit.label_signs.is_certain is certain
    assert audit_model(model, gradients, example=x[:1], loss="mse").labels_present == {}

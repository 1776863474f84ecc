"""From an update of a convolutional model to its pictures: recovered, skipped with a reason, or contradicted."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl.audit import attack, audit_model
from sparsedl_fl.audit.picture_attack import pictures_behind
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.models import inspect_model
from sparsedl_fl.simulation import client_gradient

CONVOLUTIONS = "0, 2"


def network(n_channels=8, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, n_channels, 3, padding=1), nn.ReLU(), nn.Conv2d(n_channels, n_channels, 3, padding=1),
            nn.ReLU(), nn.Flatten(), nn.Linear(64 * n_channels, 80), nn.ReLU(), nn.Linear(80, 5),
        )  # fmt: skip


def few_features(seed):
    """Return a network with fewer active features than a picture has numbers, and more gradients in front of them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.Conv2d(6, 2, 5, padding=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(128, 80), nn.ReLU(), nn.Linear(80, 5),
        )  # fmt: skip


def client(model, b=4, seed=1):
    pictures = torch.randn(b, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return pictures, client_gradient(model, pictures, torch.arange(b) % 5)


def test_an_audit_ends_with_the_pictures():
    model = network()
    pictures, gradients = client(model)
    audit = audit_model(model, gradients, example=pictures[:1])
    layer = audit[CONVOLUTIONS]
    assert (str(audit.verdict), layer.source) == ("RECOVERED", "through the convolutions from layer '5'")
    match = match_batches(pictures.flatten(1).numpy(), layer.batch.inputs)
    errors = layer.batch.errors[match.order]
    assert (np.sqrt(match.squared_errors) < 3 * errors).all()
    assert errors.max() < 1e-4
    assert {sample.kind for sample in audit.samples} == {"inputs of the model"}
    np.testing.assert_array_equal(layer.batch.labels[match.order], np.arange(4) % 5)
    assert "4 of 4 inputs of the model" in audit.reason
    assert "data:image/png" in audit.to_html(show_samples=True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"pictures": False}, "switched off"),
        ({"peel": False}, "switched off"),
        ({"max_effort": 100.0}, "the audit has a cap"),
        ({"layers": [1]}, ""),
    ],
)
def test_where_pictures_are_not_asked_for_the_reason_is_said(options, why):
    model = network()
    pictures, gradients = client(model)
    audit = audit_model(model, gradients, example=pictures[:1], **options)
    if not why:
        assert list(audit) == ["7"]
        return
    assert why in audit[CONVOLUTIONS].reason
    assert str(audit[CONVOLUTIONS].verdict) == "OUT OF RANGE"
    assert audit["5"].n_certified == 4


def test_a_cap_does_not_matter_where_pictures_are_asked_for():
    model = network()
    pictures, gradients = client(model, b=1)
    audit = audit_model(model, gradients, example=pictures[:1], max_effort=100.0, pictures=True)
    assert audit[CONVOLUTIONS].n_certified == 1


def test_features_alone_are_said_to_be_features_alone():
    model = network(n_channels=1)  # of 64 features half are active, for 64 numbers; and there are 20 gradients
    row = next(row for row in inspect_model(model, torch.zeros(1, 1, 8, 8)) if row.kind == "Conv2d")
    assert "features only" in row.obstacle
    pictures, gradients = client(model, b=3)
    audit = audit_model(model, gradients, example=pictures[:1])
    assert audit[CONVOLUTIONS].batch is None
    assert "features only" in audit[CONVOLUTIONS].reason


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_features_leave_open_comes_back_by_the_gradients_of_the_convolutions(seed):
    model = few_features(seed)
    pictures, gradients = client(model, b=1, seed=seed)
    layer = audit_model(model, gradients, example=pictures, pictures=True)[CONVOLUTIONS]
    assert layer.n_certified == 1
    off = np.sqrt(np.mean((layer.batch.inputs - pictures.flatten(1).numpy()) ** 2))
    assert off < 3 * layer.batch.errors[0]
    assert layer.batch.errors[0] < 1e-4
    reason = audit_model(model, gradients, example=pictures)[CONVOLUTIONS].reason
    assert "too few; with 458 gradients in front of them" in reason
    assert "pass pictures" in reason


@pytest.mark.slow
def test_gradients_of_convolutions_take_a_whole_batch_of_a_size_that_they_hold():
    model = few_features(1)
    pictures, gradients = client(model, b=18, seed=1)
    row = next(row for row in inspect_model(model, pictures[:1]) if row.kind == "Conv2d")
    assert (row.attack, row.largest_batch) == ("pictures with gradients", 17)
    reason = audit_model(model, gradients, example=pictures[:1], pictures=True)[CONVOLUTIONS].reason
    assert reason.endswith("pictures of a batch of up to 17, by count; the batch has 18")


def test_certified_features_of_part_of_a_batch_give_their_pictures(monkeypatch):
    certified = np.array([True, False, True, True])

    def of_part(subject, rows, found, *rest):
        batch = found["5"].batch
        part = replace(batch, certified=certified, errors=np.where(certified, batch.errors, np.inf))
        return pictures_behind(subject, rows, found | {"5": replace(found["5"], batch=part)}, *rest)

    monkeypatch.setattr(attack, "pictures_behind", of_part)
    model = network()
    pictures, gradients = client(model)
    known = audit_model(model, gradients, example=pictures[:1])[CONVOLUTIONS].batch
    assert known.certified.tolist() == certified.tolist()
    assert np.isinf(known.errors[1])
    match = match_batches(pictures.flatten(1).numpy(), known.inputs[certified])
    assert np.sqrt(np.sort(match.squared_errors)[:3]).max() < 1e-4


@pytest.mark.slow
def test_convolutions_of_other_weights_give_no_picture():
    model = network()
    pictures, gradients = client(model)
    with torch.no_grad():
        model[0].weight.mul_(1 + 0.05 * torch.randn(model[0].weight.shape, generator=torch.Generator().manual_seed(0)))
    audit = audit_model(model, gradients, example=pictures[:1])
    layer = audit[CONVOLUTIONS]
    assert layer.n_certified == 0
    assert str(layer.verdict) == "OUT OF RANGE"
    assert audit["5"].n_certified == 4


def test_inspection_says_before_any_search_what_determines_pictures():
    row = next(row for row in inspect_model(network(), torch.zeros(1, 1, 8, 8)) if row.kind == "Conv2d")
    assert (row.attack, row.obstacle) == ("pictures", "")
    assert row.behind.endswith("numbers of a picture: pictures follow from features")

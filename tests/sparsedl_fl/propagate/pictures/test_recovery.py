"""Pictures come back exactly where features determine them, with honest errors, and nothing else is certified."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsedl_fl.propagate.pictures import Front, PictureStatus, count_equations, recover_pictures
from tests.sparsedl_fl.propagate.pictures.networks import NETWORKS, SIDE, client, front, network, pictures

PLAIN = "ReLU, max-pooling"
SHAPE = (1, SIDE, SIDE)


def off(found, x):
    return np.sqrt(np.mean((found.pictures - x.numpy()) ** 2, axis=(1, 2, 3)))


def recovered(name, x, seed=0, *, errors=0.0, noise=None, **given):
    model, layer = network(name, seed)
    features, back, gradients = client(model, layer, x)
    features = features if noise is None else features + noise(features)
    given = {"sent_back": back, "gradients": gradients, "n_attempts": 4, "max_rounds": 0, **given}
    return recover_pictures(model, layer, features, np.full(len(x), errors), SHAPE, **given)


@pytest.mark.parametrize("name", NETWORKS)
def test_pictures_come_back_through_every_kind_of_layer(name):
    x = pictures(3)
    found = recovered(name, x)
    assert found.certified.all(), str(found)
    assert (off(found, x) < 1e-5).all()
    assert (off(found, x) <= 3 * found.errors).all()
    assert found.replay.is_match
    assert (found.n_equations > found.n_unknowns).all()
    assert (found.n_open == 0).all()


def test_without_gradients_spare_equations_are_the_proof():
    found = recovered(PLAIN, pictures(2), sent_back=None, gradients=None)
    assert found.certified.all()
    assert found.replay is None


def test_a_mean_picture_is_a_start():
    x = pictures(2)
    found = recovered(PLAIN, x, start=x.mean(dim=0).numpy())
    assert found.certified.all()


@pytest.mark.slow
def test_duplicates_and_flat_pictures_come_back():
    x = pictures(4)
    x[1], x[2], x[3, :, :4] = x[0], 0.5, 0.0
    found = recovered(PLAIN, x)
    assert (off(found, x)[found.certified] <= 3 * found.errors[found.certified]).all()
    assert found.certified[[0, 1, 3]].all(), str(found)


@pytest.mark.parametrize("seed", range(3))
def test_too_few_features_certify_nothing_and_count_what_is_open(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = front(nn.Conv2d(1, 3, 3, padding=1), nn.SiLU(), nn.AvgPool2d(2), features=48).double()
    x = pictures(2, seed)
    features, back, gradients = client(model, "4", x)
    found = recover_pictures(
        model, "4", features, np.zeros(2), SHAPE, sent_back=back, gradients=gradients, max_rounds=1
    )
    assert not found.certified.any()
    assert (found.status == PictureStatus.NOT_DETERMINED).all()
    assert (found.n_open == 64 - 48).all()
    assert np.isinf(found.errors).all()
    for picture, directions in zip(found.pictures, found.open_directions, strict=True):
        assert directions.shape == (16, *SHAPE)
        moved = Front(model, "4", SHAPE)(torch.tensor(picture + 1e-4 * directions).flatten(1))
        assert np.abs(moved.detach().numpy() - features[:, None]).min(axis=0).max() < 1e-6


def test_a_part_that_no_feature_sees_is_open():
    model = front(nn.ZeroPad2d((-2, 0, 0, 0)), nn.Conv2d(1, 12, 3, padding=1), nn.SiLU(), features=12 * 48).double()
    x = pictures(1)
    features, _, _ = client(model, "4", x)
    found = recover_pictures(model, "4", features, np.zeros(1), SHAPE)
    assert not found.certified.any()
    assert found.n_open[0] == 16
    unseen = np.sqrt(np.sum(found.open_directions[0] ** 2, axis=0))[0]
    np.testing.assert_allclose(unseen[:, :2], 1, atol=1e-3)
    np.testing.assert_allclose(unseen[:, 2:], 0, atol=1e-3)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_other_weights_certify_nothing(seed):
    model, layer = network(PLAIN, seed)
    x = pictures(2, seed)
    features, back, gradients = client(model, layer, x)
    with torch.no_grad():
        model[0].weight += 1e-3 * torch.randn(model[0].weight.shape, generator=torch.Generator().manual_seed(seed))
    for given in ({}, {"sent_back": back, "gradients": gradients}):
        found = recover_pictures(model, layer, features, np.full(2, 1e-7), SHAPE, n_attempts=2, max_rounds=1, **given)
        assert not found.certified.any()
        assert (found.status == PictureStatus.NO_FIT).all()


def test_gradients_of_another_batch_contradict():
    model, layer = network(PLAIN)
    features, back, _ = client(model, layer, pictures(3))
    _, _, others = client(model, layer, pictures(3, seed=4))
    found = recover_pictures(model, layer, features, np.zeros(3), SHAPE, sent_back=back, gradients=others)
    assert not found.certified.any()
    assert (found.status == PictureStatus.CONTRADICTED).all()
    assert "contradict" in str(found)


@pytest.mark.slow
def test_errors_are_honest_under_noise():
    n_certified = 0
    for seed in range(20):
        size = 10.0 ** -(3 + seed % 4)
        generator = np.random.default_rng(seed)
        x = pictures(2, seed)
        found = recovered(
            PLAIN,
            x,
            seed,
            errors=size,
            noise=lambda f, g=generator, s=size: s * g.standard_normal(f.shape),
            n_attempts=1,
        )
        sure, true = found.certified, off(found, x)
        assert (true[sure] <= 3 * found.errors[sure]).all(), true / found.errors
        assert (found.errors[sure] <= 10 * true[sure]).all(), true / found.errors
        n_certified += sure.sum()
    assert n_certified >= 8


@pytest.mark.parametrize("seed", range(4))
def test_a_network_with_a_symmetry_certifies_nothing(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        conv = nn.Conv2d(1, 32, 3, padding=2, dilation=2)
        model = front(conv, nn.SiLU(), nn.MaxPool2d(2)).double()  # even and odd rows may change places
    x = pictures(3, seed)
    features, back, gradients = client(model, "4", x)
    found = recover_pictures(
        model, "4", features, np.zeros(3), SHAPE, sent_back=back, gradients=gradients, n_attempts=4, max_rounds=0
    )
    assert not found.certified.any(), str(found)


def test_pictures_of_float32_clients_come_back():
    model, layer = network(PLAIN)
    x = pictures(3)
    features, back, gradients = client(model.float(), layer, x.float())
    found = recover_pictures(model, layer, features, np.zeros(3), SHAPE, sent_back=back, gradients=gradients)
    assert found.certified.all(), str(found)
    assert (off(found, x) <= 3 * found.errors).all()
    assert (off(found, x) < 1e-4).all()


def test_the_count_needs_no_search():
    model, layer = network(PLAIN)
    count = count_equations(Front(model, layer, SHAPE))
    assert count.is_enough
    assert count.n_unknowns == 64
    assert 64 < count.n_active < count.n_features == 1024
    assert "pictures follow from features" in str(count)
    few = front(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), features=8).double()
    count = count_equations(Front(few, "4", SHAPE), pictures(5).numpy())
    assert str(count).endswith("features only")
    assert count.largest_batch == 0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"layer": "conv"}, "one of"),
        ({"shape": (3, 8, 8)}, "does not take pictures"),
        ({"features": np.zeros((2, 5))}, "features must have shape"),
        ({"errors": np.zeros(3)}, "errors must have shape"),
        ({"errors": -np.ones(2)}, "not be negative"),
        ({"features": np.full((2, 1024), np.nan)}, "finite"),
        ({"start": np.zeros((3, 3))}, "start must have shape"),
        ({"noise": -1.0}, "noise"),
    ],
)
def test_errors_name_the_argument(change, match):
    model, layer = network(PLAIN)
    given = {"layer": layer, "features": np.zeros((2, 1024)), "errors": np.zeros(2), "shape": SHAPE} | change
    with pytest.raises(ValueError, match=match):
        recover_pictures(model, **given)


def test_models_that_mix_a_batch_are_refused():
    class Mixing(nn.Module):
        def forward(self, x):
            return x - x.mean(dim=0)

    model = front(Mixing(), nn.Conv2d(1, 12, 3, padding=1), features=768)
    with pytest.raises(ValueError, match="mixes"):
        Front(model, "3", SHAPE)


def test_large_pictures_are_judged_without_a_matrix(monkeypatch):
    x = pictures(2)
    dense = recovered(PLAIN, x)
    monkeypatch.setattr("sparsedl_fl.propagate.pictures.determinacy.MOST_DENSE", 10)
    found = recovered(PLAIN, x)
    assert found.certified.all()
    np.testing.assert_allclose(found.errors, dense.errors, rtol=0.5)
    model = front(nn.ZeroPad2d((-2, 0, 0, 0)), nn.Conv2d(1, 12, 3, padding=1), nn.SiLU(), features=12 * 48).double()
    features, _, _ = client(model, "4", x)
    assert not recover_pictures(model, "4", features, np.zeros(2), SHAPE).certified.any()

import pytest
import torch
from torch import nn

from sparsedl_fl.metrics import match_batches
from sparsedl_fl.reconstruction import invert_features, match_gradients, total_variation
from sparsedl_fl.simulation import client_gradient, fully_connected


def test_total_variation_of_a_ramp():
    ramp = torch.arange(5.0).expand(2, 4, 5)
    assert total_variation(ramp) == pytest.approx(1.0)
    assert total_variation(torch.ones(3, 4, 4)) == 0


def smooth_images(n):
    coarse = torch.randn(n, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    return nn.functional.interpolate(coarse, size=(8, 8), mode="bilinear")


def test_matched_gradients_come_near_the_images():
    images, labels = smooth_images(2), torch.tensor([1, 7])
    model = nn.Sequential(nn.Flatten(), fully_connected(64, width=50, random_state=0))
    gradient = client_gradient(model, images, labels)
    found = match_gradients(model, gradient, labels, (1, 8, 8), n_iterations=300, random_state=0)
    assert found.shape == images.shape
    assert match_batches(images, found).squared_errors.max() < 0.2 * images.var()
    again = match_gradients(model, list(gradient.values()), labels, (1, 8, 8), n_iterations=300, random_state=0)
    assert torch.equal(found, again)


def test_matched_gradients_need_all_parameters():
    model = fully_connected(4, width=5, random_state=0)
    with pytest.raises(ValueError, match="gradients has 1 tensors, the model has 8 parameters"):
        match_gradients(model, [torch.ones(5, 4)], torch.tensor([0]), (4,))


def test_inverted_features_have_the_features():
    images = smooth_images(3)
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten())
    features = extractor(images).detach()
    found = invert_features(extractor, features, (1, 8, 8), n_iterations=300, variation_weight=1e-3, random_state=0)
    assert (extractor(found) - features).norm() < 0.1 * features.norm()
    assert (found - images).square().mean() < 0.2 * images.var()

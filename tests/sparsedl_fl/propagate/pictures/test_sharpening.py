"""Smoothed pooling and activations become the true ones."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsedl_fl.propagate.pictures.sharpening import POOLS, Sharpened

LAYERS = {
    "max-pool": (nn.MaxPool2d(2), (3, 8, 8)),
    "overlapping": (nn.MaxPool2d(3, stride=2, padding=1), (3, 9, 9)),
    "not square": (nn.MaxPool2d((2, 3), stride=(1, 2), padding=(1, 0)), (2, 7, 8)),
    "dilated": (nn.MaxPool2d(2, stride=1, dilation=2), (2, 7, 7)),
    "rounded up": (nn.MaxPool2d(2, ceil_mode=True), (2, 7, 5)),
    "rounded up, padded": (nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), (2, 6, 6)),
    "cropped": (nn.MaxPool2d(2), (2, 7, 5)),
    "one axis": (nn.MaxPool1d(3, stride=2), (4, 12)),
    "three axes": (nn.MaxPool3d(2), (1, 4, 4, 4)),
    "adaptive": (nn.AdaptiveMaxPool2d((3, 2)), (2, 7, 8)),
    "adaptive, one axis": (nn.AdaptiveMaxPool1d(4), (2, 10)),
    "adaptive, as it is": (nn.AdaptiveMaxPool2d((None, 2)), (2, 5, 6)),
    "ReLU": (nn.ReLU(), (2, 5)),
    "ReLU in place": (nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True)), (2, 5)),
    "LeakyReLU": (nn.LeakyReLU(0.2), (2, 5)),
    "SELU": (nn.SELU(), (2, 5)),
}


def pictures(shape):
    return torch.randn((3, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", LAYERS)
def test_it_becomes_the_true_layer(name):
    layer, shape = LAYERS[name]
    z = pictures(shape)
    true, off = layer(z.clone()), []
    for sharpness in (3.0, 30.0, 3e6):
        with Sharpened(torch.full((3,), sharpness, dtype=torch.float64), [1.0]):
            smoothed = layer(z.clone())
        assert smoothed.shape == true.shape
        off.append(float((smoothed - true).abs().max()))
    assert off[0] > off[1] > off[2]
    assert off[2] < 1e-5


def test_each_sample_has_its_own_sharpness():
    z = pictures((2, 6, 6))[:2]
    with Sharpened(torch.tensor([2.0, 50.0], dtype=torch.float64), [1.0]):
        both = functional.max_pool2d(z, 2)
    for k, sharpness in enumerate((2.0, 50.0)):
        with Sharpened(torch.tensor([sharpness], dtype=torch.float64), [1.0]):
            torch.testing.assert_close(functional.max_pool2d(z[k : k + 1], 2), both[k : k + 1])


def test_sharpness_is_over_the_spread_of_each_call():
    z = pictures((2, 6, 6))
    with Sharpened() as seen:
        functional.max_pool2d(functional.relu(z), 2)
    assert seen.seen == pytest.approx([float(z.std(correction=0)), float(z.relu().std(correction=0))])
    sharpness = torch.full((3,), 4.0, dtype=torch.float64)
    with Sharpened(sharpness, seen.seen):
        once = functional.max_pool2d(functional.relu(z), 2)
    with Sharpened(sharpness, [10 * spread for spread in seen.seen]):
        scaled = functional.max_pool2d(functional.relu(10 * z), 2)
    torch.testing.assert_close(scaled, 10 * once)


def test_a_context_entered_again_counts_from_the_first_call():
    mode = Sharpened(torch.full((3,), 4.0, dtype=torch.float64), [1.0])
    for _ in range(2):
        with mode:
            functional.relu(pictures((4,)))


@pytest.mark.parametrize("name", sorted(name for name in POOLS if "indices" not in name))
def test_indices_cannot_be_smoothed(name):
    n_axes = int(name[-2])
    with Sharpened(torch.ones(3, dtype=torch.float64), [1.0]), pytest.raises(ValueError, match="unpooling"):
        getattr(functional, name)(pictures((2, *[4] * n_axes)), 2, return_indices=True)


def test_smoothed_pooling_has_its_derivative():
    mode = Sharpened(torch.full((2,), 3.0, dtype=torch.float64), [1.0])

    def pooled(z):
        with mode:
            return functional.max_pool2d(z, 3, stride=2, padding=1)

    z = pictures((1, 5, 5))[:2].requires_grad_()
    assert torch.autograd.gradcheck(pooled, z)
    assert torch.autograd.gradgradcheck(pooled, z)

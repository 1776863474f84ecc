"""A VGG-style network to audit: convolutions, then fully connected layers, as in VGG16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sparsedl.arrays import draw_seed

__all__ = ["VGG16_CHANNELS", "vgg"]

VGG16_CHANNELS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Channels of the convolutions of VGG16; each group ends in a pooling layer."""

_GRID = 7


class VGG(nn.Module):
    """``classifier(flatten(avgpool(features(images))))``, with the names of torchvision's VGG.

    A state of ``torchvision.models.vgg16`` can be loaded into ``vgg()``.
    """

    def __init__(self, channels: Sequence[Sequence[int]], width: int, n_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        n_channels = 3
        for group in channels:
            for n_out in group:
                layers += [nn.Conv2d(n_channels, n_out, 3, padding=1), nn.ReLU()]
                n_channels = n_out
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(_GRID)
        self.classifier = nn.Sequential(
            nn.Linear(n_channels * _GRID**2, width),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(width, n_classes),
        )

    def extract(self, images: torch.Tensor) -> torch.Tensor:
        """Return what the first fully connected layer is fed: shape (batch_size, 49 * channels)."""
        return self.avgpool(self.features(images)).flatten(1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images of shape (batch_size, 3, height, width)."""
        return self.classifier(self.extract(images))


def vgg(
    channels: Sequence[Sequence[int]] = VGG16_CHANNELS,
    *,
    width: int = 4096,
    n_classes: int = 1000,
    random_state: Any = None,
) -> VGG:
    """Build a VGG with random weights (He et al. for the convolutions), in evaluation mode; VGG16 by default.

    Torch's global seed is not touched. With ``torchvision`` at hand,
    ``vgg().load_state_dict(torchvision.models.vgg16(weights="DEFAULT").state_dict())`` has the pretrained weights.

    Parameters
    ----------
    channels : sequence of sequences of int, default=VGG16_CHANNELS
        Outputs of the convolutions, in groups that end in a pooling layer.
    width : int, default=4096
        Outputs of the fully connected layers.
    n_classes : int, default=1000
        Outputs of the network.
    random_state : int, RandomState or None, default=None
        Seed.

    References
    ----------
    Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw_seed(random_state))
        model = VGG(channels, width, n_classes)
        for module in model.features:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)
    return model.eval()

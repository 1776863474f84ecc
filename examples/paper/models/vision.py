"""Convolutional networks to audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sparsedl.arrays import draw_seed

__all__ = ["VGG16_CHANNELS", "chain", "mcmahan", "resnet", "three_convolutions", "vgg"]

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


class ResNet(nn.Module):
    """``head(mean(blocks(stem(images))))``, with batch normalisation, in the manner of ResNets for small pictures."""

    def __init__(self, channels: Sequence[int], n_features: int, n_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels[0], 3, padding=1, bias=False), nn.BatchNorm2d(channels[0]))
        sizes = [*channels, n_features]
        blocks = [
            _Block(n_in, n_out, stride=2 if number else 1)
            for number, (n_in, n_out) in enumerate(zip(sizes[:-1], sizes[1:], strict=True))
        ]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(n_features, n_classes)

    def extract(self, images: torch.Tensor) -> torch.Tensor:
        """Return what the head is fed: shape (batch_size, n_features)."""
        return self.blocks(torch.relu(self.stem(images))).mean(dim=(2, 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images of shape (batch_size, 3, height, width)."""
        return self.head(self.extract(images))


class _Block(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Conv2d(n_out, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out))
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(self.first(x)) + self.shortcut(x))


def resnet(
    channels: Sequence[int] = (16, 32, 64), *, n_features: int = 128, n_classes: int = 10, random_state: Any = None
) -> ResNet:
    """Build a small residual network with random weights, without touching torch's global seed.

    Parameters
    ----------
    channels : sequence of int, default=(16, 32, 64)
        Of the stem and of all blocks but the last; every block but the first halves the picture.
    n_features : int, default=128
        Channels of the last block, which are averaged over the picture.
    n_classes : int, default=10
        Outputs of the head.
    random_state : int, RandomState or None, default=None
        Seed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw_seed(random_state))
        return ResNet(channels, n_features, n_classes)


def mcmahan(n_channels: int, side: int, *, n_hidden: int = 512, n_classes: int = 10) -> nn.Sequential:
    """Build the convolutional network of the first federated experiments; LEAF's has 2048 hidden units.

    References
    ----------
    McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.
    """
    convolutions: list[nn.Module] = []
    for n_in, n_out in ((n_channels, 32), (32, 64)):
        convolutions += [nn.Conv2d(n_in, n_out, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Linear(64 * (side // 4) ** 2, n_hidden), nn.ReLU(), nn.Linear(n_hidden, n_classes)]
    return nn.Sequential(*convolutions, nn.Flatten(), *head)


def three_convolutions(n_channels: int, side: int, *, n_hidden: int = 512, n_classes: int = 10) -> nn.Sequential:
    """Build three 3 x 3 convolutions with GroupNorm, GELU and average pooling, and a hidden layer."""
    convolutions: list[nn.Module] = []
    for n_in, n_out in ((n_channels, 32), (32, 64), (64, 64)):
        convolutions += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.GroupNorm(8, n_out), nn.GELU()]
        convolutions += [nn.AvgPool2d(2)] if n_out > n_in else []
    head = [nn.Linear(64 * (side // 4) ** 2, n_hidden), nn.GELU(), nn.Linear(n_hidden, n_classes)]
    return nn.Sequential(*convolutions, nn.Flatten(), *head)


def chain(n_channels: int, side: int, *, n_classes: int = 10) -> nn.Sequential:
    """Build six convolutions without bias, LeakyReLU behind each, and a head: R-GAP's CNN6, with more classes than two.

    References
    ----------
    Zhu and Blaschko, "R-GAP: Recursive gradient attack on privacy", ICLR 2021.
    """
    convolutions: list[nn.Module] = []
    for n_in, n_out, kernel, stride, padding in (
        *((n_channels, 12, 4, 2, 2), (12, 36, 3, 2, 1), (36, 36, 3, 1, 1)),
        *((36, 36, 3, 1, 1), (36, 64, 3, 2, 1), (64, 128, 3, 1, 1)),
    ):
        convolutions += [nn.Conv2d(n_in, n_out, kernel, stride, padding, bias=False), nn.LeakyReLU(0.2)]
    last = ((side // 2 + 2) // 2 + 1) // 2
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(128 * last**2, n_classes))

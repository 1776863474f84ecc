"""Pictures behind convolutions: an audit of the whole model, from one gradient to what the client fed it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from paper.data import Images, load_images
from paper.experiments import Experiment, train
from paper.methods import Budget
from paper.models.vision import chain, mcmahan, three_convolutions
from paper.raw import LeNet
from sparsedl_fl.audit import audit_model
from sparsedl_fl.metrics import match_batches
from sparsedl_fl.simulation import WIRES, client_gradient

__all__ = ["PICTURE_ROWS", "PictureBatch"]

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "mcmahan": mcmahan,
    "three-convolutions": three_convolutions,
    "chain": lambda n_channels, side, n_hidden, n_classes: chain(n_channels, side, n_classes=n_classes),
    "lenet": lambda *_, **__: LeNet(),  # of coloured pictures of 32 x 32, ten classes
}


@dataclass(frozen=True)
class PictureBatch(Experiment):
    """Pictures behind a convolutional network; ``width`` is that of the first linear layer.

    Attributes
    ----------
    dataset : str
        Name in `DATASETS`.
    network : str
        Name in `NETWORKS`.
    is_gray : bool
        Whether colours are averaged.
    n_steps : int
        Steps of training before the gradient is taken.
    wire : str
        Name in `WIRES` of the format in which the gradient travels; None is single precision.
    exact_above : float
        PSNR in dB above which a picture counts as exact.
    """

    metrics: ClassVar[tuple[str, ...]] = ("psnr", "features", "right", "error_ratio")
    dataset: str = "mnist"
    network: str = "mcmahan"
    is_gray: bool = False
    n_steps: int = 0
    wire: str | None = None
    exact_above: float = 80.0

    def run(self, method: str, seed: int, data: str | None, budget: Budget) -> dict[str, Any]:
        """Audit the network of a seed; exact is every picture certified and above ``exact_above``.

        ``features`` is the share of features in front of the linear layer that were certified, ``right`` that of
        pictures above ``exact_above``, certified or not; ``error_ratio`` is true over expected error of certified ones.
        """
        images = load_images(self.dataset, data)
        pixels, classes = images.draw(self.batch_size, seed)
        inputs, labels = self._fed(images, pixels), torch.from_numpy(classes)
        model = self._model(images, seed, tuple(inputs.shape[1:]))
        gradients = client_gradient(model, inputs, labels)
        if self.wire is not None:
            gradients = {name: WIRES[self.wire](tensor) for name, tensor in gradients.items()}
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            audit = audit_model(model, gradients, example=inputs[:1], pictures=True)
        seconds = time.perf_counter() - start
        row = next(layer for layer in audit.layers if layer.row is not None and layer.row.kind == "Conv2d")
        linear = next(name for name, module in model.named_modules() if isinstance(module, nn.Linear))
        record = {
            "exact": False,
            "psnr": [0.0],
            "features": audit[linear].n_certified / self.batch_size,
            "right": 0.0,
            "error_ratio": [],
            "certified": row.n_certified,
            "starts": 0,
            "seconds": round(seconds, 3),
            "seconds_of_pictures": round(row.seconds, 3),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "status": f"{audit[linear].reason}; {row.reason}",
        }
        batch = row.batch
        if batch is None:
            return record
        match = match_batches(inputs.flatten(1), batch.inputs)
        found = match.order >= 0
        errors, order = np.sqrt(match.squared_errors[found]), match.order[found]
        quality = np.zeros(self.batch_size)
        quality[found] = -20 * np.log10(errors * float(np.mean(images.dataset.std)))
        is_sure = batch.certified[order]
        is_right = quality > self.exact_above
        return record | {
            "exact": bool(is_right.all() and is_sure.sum() == self.batch_size),
            "psnr": [round(float(value), 2) for value in quality],
            "right": float(is_right.mean()),
            "error_ratio": [float(f"{ratio:.3g}") for ratio in (errors / batch.errors[order])[is_sure]],
        }

    def _fed(self, images: Images, pixels: np.ndarray) -> torch.Tensor:
        """Return what the client feeds its model, (batch_size, channels, side, side)."""
        side = images.dataset.side
        fed = images.normalize(pixels).reshape(len(pixels), side, side, -1).movedim(3, 1)
        return fed.mean(dim=1, keepdim=True) if self.is_gray else fed.contiguous()

    def _model(self, images: Images, seed: int, shape: tuple[int, ...]) -> nn.Module:
        """Return the network of a seed, trained for some steps."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            n_classes = images.dataset.n_classes
            model = NETWORKS[self.network](shape[0], shape[1], n_hidden=self.width, n_classes=n_classes)
        train(model, lambda pixels: self._fed(images, pixels), images, self.n_steps, seed)
        return model


PICTURE_ROWS: dict[str, Experiment] = {
    "mnist-32": PictureBatch(32, 512),
    "mnist-32-100": PictureBatch(32, 512, n_steps=100),
    "mnist-32-1000": PictureBatch(32, 512, n_steps=1000),
    "mnist-128-2048": PictureBatch(128, 2048),
    "cifar10-gray-16": PictureBatch(16, 512, "cifar10", is_gray=True),
    "cifar10-8-three-convolutions": PictureBatch(8, 512, "cifar10", "three-convolutions"),
    **{f"cifar10-{b}": PictureBatch(b, 512, "cifar10") for b in (1, 2, 8)},
    **{f"cifar10-{b}-lenet": PictureBatch(b, 120, "cifar10", "lenet") for b in (1, 2)},
    **{
        f"mnist-{b}-{wire.replace(' ', '-')}": PictureBatch(b, 512, wire=wire, exact_above=30.0)
        for b, wire in ((4, "bfloat16"), (16, "bfloat16"), (16, "int8 by row"))
    },
}
"""Of the table of pictures: data, batch, and what is not McMahan's network, untrained, with a gradient in float32."""

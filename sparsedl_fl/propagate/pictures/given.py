"""What is known of the pictures in front of a layer, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparsedl_fl.propagate.pictures.front import Front
from sparsedl_fl.tracing.naming import named_gradients

__all__ = ["ROUNDING", "Given"]

ROUNDING = 4e-7
"""Error of features by a client's forward pass in single precision, over their root mean square: 2.3e-7 to 2.7e-7
behind McMahan's CNN, on MNIST and on gray CIFAR-10."""


@dataclass(frozen=True, eq=False)
class Given:
    """Features of pictures with their errors, and the gradients of the front.

    Attributes
    ----------
    features : torch.Tensor of shape (b, n_features)
    errors : torch.Tensor of shape (b,)
        Expected root-mean-square error of each, that of the client's own rounding included.
    sizes : torch.Tensor of shape (b,)
        Root mean square of the features of each.
    start : torch.Tensor of shape (n_pixels,)
        The first guess.
    sent_back : torch.Tensor of shape (b, n_features) or None
        Gradient of the loss at the features, where it is known.
    gradients : dict of str to torch.Tensor
        Those of the front's parameters that were sent, by plain name; empty where they are not to be used.
    noise : float
        Share of ``sent_back`` and of the gradients that is noise.
    rounding : float
        Error of the features by the client's arithmetic, over their size.
    """

    features: torch.Tensor
    errors: torch.Tensor
    sizes: torch.Tensor
    start: torch.Tensor
    sent_back: torch.Tensor | None
    gradients: Mapping[str, torch.Tensor]
    noise: float
    rounding: float

    @classmethod
    def of(
        cls,
        front: Front,
        features: np.ndarray,
        errors: np.ndarray,
        start: np.ndarray | None,
        sent_back: np.ndarray | None,
        gradients: Mapping[str, torch.Tensor] | None,
        noise: float,
        rounding: float,
    ) -> Given:
        """Check arrays and names, and return them as tensors."""
        b = len(features)
        known = _checked("features", features, (b, front.n_features)).to(front.device)
        off = _checked("errors", errors, (b,)).to(front.device)
        if (off < 0).any():
            raise ValueError("errors must not be negative: they are expected root-mean-square errors of the features")
        if not (np.isfinite(noise) and noise >= 0 and np.isfinite(rounding) and rounding >= 0):
            raise ValueError(f"noise and rounding must be finite and not negative, got {noise!r} and {rounding!r}")
        first = np.zeros(front.n_pixels) if start is None else np.reshape(start, -1)
        sizes = known.square().mean(dim=1).sqrt()
        sent = {}
        if sent_back is not None and gradients is not None:
            sent = front.sent(named_gradients(front.model, gradients))
        return cls(
            known,
            torch.hypot(off, rounding * sizes).clamp(min=torch.finfo(torch.float64).eps * float(sizes.max())),
            sizes,
            _checked("start", first, (front.n_pixels,)).to(front.device),
            None if sent_back is None else _checked("sent_back", sent_back, (b, front.n_features)).to(front.device),
            sent,
            noise + rounding,
            rounding,
        )

    @property
    def relative_errors(self) -> torch.Tensor:
        """The errors of the features of each picture, over their size."""
        return self.errors / self.sizes.clamp(min=torch.finfo(torch.float64).tiny)

    @property
    def n_gradients(self) -> int:
        """Numbers of the gradients of the front's parameters."""
        return sum(tensor.numel() for tensor in self.gradients.values())


def _checked(name: str, value: Any, shape: tuple[int, ...]) -> torch.Tensor:
    array = np.asarray(value, dtype=float)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite: leave out the pictures for which it is not known")
    return torch.tensor(array)

"""Equations against unknowns, before any search: what features and gradients of the front can determine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparsedl_fl.propagate.pictures.draws import normal_like, unit_normal
from sparsedl_fl.propagate.pictures.front import Front

__all__ = ["EquationCount", "count_equations"]

N_DRAWN = 8
"""Pictures of noise whose active features are counted, where none are given."""


@dataclass(frozen=True)
class EquationCount:
    """Equations and unknowns of pictures behind a front.

    Attributes
    ----------
    n_unknowns : int
        Numbers of a picture.
    n_features : int
        Features of a picture.
    n_active : int
        Those whose derivative is not zero, as a rule: each is an equation.
    n_gradients : int
        Numbers of the gradients of the front's parameters, which all pictures share.
    """

    n_unknowns: int
    n_features: int
    n_active: int
    n_gradients: int

    @property
    def is_enough(self) -> bool:
        """Whether the features of a picture alone are more than its numbers."""
        return self.n_active > self.n_unknowns

    @property
    def largest_batch(self) -> float:
        """Batch up to which features and gradients outnumber the unknowns; infinite where features alone do."""
        missing = self.n_unknowns - self.n_active
        return np.inf if missing < 0 else np.floor(self.n_gradients / (missing + 1))

    def __str__(self) -> str:
        count = f"{self.n_active:,} active features for {self.n_unknowns:,} numbers of a picture"
        if self.is_enough:
            return f"{count}: pictures follow from features"
        if self.largest_batch < 1:
            return f"{count}, and {self.n_gradients:,} gradients in front of them: features only"
        missing = self.n_unknowns - self.n_active
        return (
            f"{count}, {missing:,} too few; with {self.n_gradients:,} gradients in front of them: pictures of a batch "
            f"of up to {int(self.largest_batch)}, by count"
        )


def count_equations(front: Front, pictures: np.ndarray | None = None) -> EquationCount:
    """Count equations and unknowns of a picture, without a search.

    Parameters
    ----------
    front : Front
        From the model's input to the features.
    pictures : ndarray of shape (k, ...) or None, default=None
        Pictures like those of the client, as the model takes them. None draws noise, of which more features are active
        than of pictures with flat parts.
    """
    if pictures is None:
        drawn = unit_normal((N_DRAWN, front.n_pixels), 0, front.device)
    else:
        drawn = torch.as_tensor(np.asarray(pictures, dtype=float)).reshape(len(pictures), -1).to(front.device)
        if drawn.shape[1] != front.n_pixels:
            raise ValueError(
                f"pictures must have the shape {front.shape} that the front takes, got {pictures.shape[1:]}"
            )
    n_active = int(active_features(front, drawn).sum(dim=1).double().median())
    n_gradients = sum(tensor.numel() for tensor in front.parameters.values())
    return EquationCount(front.n_pixels, front.n_features, n_active, n_gradients)


def active_features(front: Front, pictures: torch.Tensor) -> torch.Tensor:
    """Return which features of pictures of shape (b, n_pixels) change with the picture, of shape (b, n_features)."""
    direction = normal_like(pictures, torch.Generator().manual_seed(1))
    J = front.linearized(pictures)
    return J.along(direction) != 0

"""Proof by what was not fitted: the gradients of the front's parameters, from the pictures that were found.

The gradient at the features, ``D = W^T D_fc1``, is known from the layer behind them. Sent back through the front at the
pictures found, it gives the gradients of the convolutions, summed over the batch, which the client sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from sparsedl_fl.propagate.pictures.draws import normal_like
from sparsedl_fl.propagate.pictures.front import Front

__all__ = ["FrontReplay", "gradients_of_front", "replay_front"]

N_DRAWS = 4
"""Draws of the pictures' errors."""

TIMES, LEAST, MOST = 10.0, 1e-5, 0.1
"""A tensor matches if it deviates by no more than ten times what the draws and the given errors explain, or the least;
one that the errors change by more than the last shows nothing."""


@dataclass(frozen=True)
class FrontReplay:
    """The gradients of the front's parameters at pictures that were found, beside those that the client sent.

    Attributes
    ----------
    deviations : dict of str to float
        By parameter, ``|G' - G| / |G|`` of the replayed gradient and the one sent.
    tolerances : dict of str to float
        By parameter, the deviation up to which it matches.
    """

    deviations: Mapping[str, float]
    tolerances: Mapping[str, float]

    @property
    def is_match(self) -> bool:
        """Whether there is something to compare, and all of it matches."""
        return bool(self.deviations) and all(off <= self.tolerances[name] for name, off in self.deviations.items())

    def __str__(self) -> str:
        n = sum(off <= self.tolerances[name] for name, off in self.deviations.items())
        worst = max(self.deviations.values(), default=float("inf"))
        return f"{n} of {len(self.deviations)} gradients of the front match, the worst to {worst:.1g} of its size"


def gradients_of_front(front: Front, pictures: torch.Tensor, sent_back: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradients of the front's parameters for pictures (b, n_pixels) and ``D`` of shape (b, n_features)."""
    with torch.enable_grad(), front.trainable() as parameters:
        features = front(pictures.detach())
        found = torch.autograd.grad(features, list(parameters.values()), sent_back, allow_unused=True)
    return {name: tensor for name, tensor in zip(parameters, found, strict=True) if tensor is not None}


def replay_front(
    front: Front,
    pictures: torch.Tensor,
    errors: torch.Tensor,
    sent_back: torch.Tensor,
    sent: Mapping[str, torch.Tensor],
    *,
    noise: float,
    only: Mapping[str, torch.Tensor] | None = None,
) -> FrontReplay:
    """Compare the gradients of the front's parameters at pictures with those that were sent.

    Parameters
    ----------
    front : Front
    pictures : torch.Tensor of shape (b, n_pixels)
        The whole batch.
    errors : torch.Tensor of shape (b,)
        Expected root-mean-square error of each, in units of the input. Pictures that are off by it show how far the
        gradients may deviate: a unit near its kink may have switched.
    sent_back : torch.Tensor of shape (b, n_features)
        ``D``, the gradient of the loss at the features.
    sent : mapping of str to torch.Tensor
        Gradients of the front's parameters, by plain name.
    noise : float
        Share of ``D`` and of the gradients sent that is noise.
    only : mapping of str to torch.Tensor of bool or None, default=None
        Entries that are compared, those that were not fitted; None for all.
    """

    def picked(gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor if only is None else tensor[only[name]] for name, tensor in gradients.items()}

    sent = picked(sent)
    here = picked(
        {name: found for name, found in gradients_of_front(front, pictures, sent_back).items() if name in sent}
    )
    names = [name for name in here if float(sent[name].norm()) > 0]
    generator = torch.Generator().manual_seed(0)
    spread = dict.fromkeys(names, 0.0)
    for _ in range(N_DRAWS):
        off = normal_like(pictures, generator) * errors[:, None]
        moved = gradients_of_front(front, pictures + off, sent_back)
        there = picked({name: moved[name] for name in names})
        for name in names:
            spread[name] = max(spread[name], float((there[name] - here[name]).norm() / sent[name].norm()))
    deviations = {name: float((here[name] - sent[name]).norm() / sent[name].norm()) for name in names}
    explained = {name: TIMES * (spread[name] + noise) for name in names}
    return FrontReplay(deviations, {name: min(max(value, LEAST), MOST) for name, value in explained.items()})

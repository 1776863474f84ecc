"""Filters of a whole update, as frameworks have them: what a client takes out of it before it leaves.

A wire (`sparsedl_fl.simulation.WIRES`) changes each tensor by itself; a filter sees all of them.

- `ExcludeVars` leaves tensors out, by their names.
- `PercentilePrivacy` zeroes the smallest entries and clips the others.
- `SVTPrivacy` sends a share of the entries, clipped and with noise.
- `RandomK` sends entries at random.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch

__all__ = ["ExcludeVars", "PercentilePrivacy", "RandomK", "SVTPrivacy", "UpdateFilter"]

Tensors = Mapping[str, torch.Tensor]


class UpdateFilter(ABC):
    """Takes something out of an update."""

    @abstractmethod
    def __call__(self, update: Tensors, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return what is sent of an update, the change of the weights by name."""


@dataclass(frozen=True)
class ExcludeVars(UpdateFilter):
    """Leaves out the tensors in whose names a regular expression is found, as NVFLARE's ``ExcludeVars`` does.

    Parameters
    ----------
    pattern : str
        The regular expression.

    Examples
    --------
    >>> list(ExcludeVars("bias")({"0.weight": torch.ones(2), "0.bias": torch.ones(1)}, torch.Generator()))
    ['0.weight']
    """

    pattern: str

    def __call__(self, update: Tensors, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return the other tensors."""
        return {name: tensor for name, tensor in update.items() if not re.search(self.pattern, name)}


@dataclass(frozen=True)
class PercentilePrivacy(UpdateFilter):
    """Zeroes entries below a percentile of the moduli of all, and clips the others, as NVFLARE's filter of that name.

    Parameters
    ----------
    percentile : float, default=10
        Of the moduli of all tensors together.
    gamma : float, default=0.01
        Largest modulus that is sent.
    """

    percentile: float = 10.0
    gamma: float = 0.01

    def __call__(self, update: Tensors, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return the tensors with these entries."""
        moduli = torch.cat([tensor.abs().flatten() for tensor in update.values()]).sort().values
        place = self.percentile / 100 * (len(moduli) - 1)  # between two entries, as NumPy has it
        low, high = moduli[int(place)], moduli[min(int(place) + 1, len(moduli) - 1)]
        cut = low + (place - int(place)) * (high - low)
        return {
            name: torch.where(tensor.abs() < cut, torch.zeros_like(tensor), tensor.clamp(-self.gamma, self.gamma))
            for name, tensor in update.items()
        }


@dataclass(frozen=True)
class SVTPrivacy(UpdateFilter):
    """Sends a share of the entries, clipped and with Laplace noise, as NVFLARE's ``SVTPrivacy`` does.

    Of NVFLARE 2.9, with the standard split of epsilon and with replacement. With the defaults the noise has a scale of
    twenty times the largest entry that is sent.

    Parameters
    ----------
    fraction : float, default=0.1
        Share of the entries.
    epsilon : float, default=0.1
        Budget of their choice.
    noise_var : float, default=0.1
        The noise on what is sent has the scale ``2 gamma / noise_var``.
    gamma : float, default=1e-5
        Largest modulus that is sent.
    tau : float, default=1e-6
        Threshold of the choice, before its noise.
    """

    fraction: float = 0.1
    epsilon: float = 0.1
    noise_var: float = 0.1
    gamma: float = 1e-5
    tau: float = 1e-6

    def __call__(self, update: Tensors, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return the tensors with these entries, zero elsewhere."""
        flat = torch.cat([tensor.flatten() for tensor in update.values()]).double()
        clipped, n_sent = flat.clamp(-self.gamma, self.gamma), -int(-len(flat) * self.fraction // 1)
        ratio = (2.0 * n_sent) ** (2 / 3)
        of_threshold, of_query = self.epsilon / (1 + ratio), self.epsilon * ratio / (1 + ratio)
        threshold = self.tau + float(_laplace((1,), self.gamma / of_threshold, generator))
        accepted = torch.zeros(len(flat), dtype=torch.bool)
        while int(accepted.sum()) < n_sent:
            noise = _laplace((len(flat),), 2 * self.gamma * n_sent / of_query, generator)
            accepted |= clipped.abs() + noise >= threshold
        among = accepted.nonzero().flatten()
        chosen = among[torch.randint(len(among), (n_sent,), generator=generator)]
        sent = torch.zeros_like(flat)
        sent[chosen] = clipped[chosen] + _laplace((n_sent,), 2 * self.gamma / self.noise_var, generator)
        parts = sent.split([tensor.numel() for tensor in update.values()])
        named = zip(update.items(), parts, strict=True)
        return {name: part.reshape(tensor.shape).to(tensor.dtype) for (name, tensor), part in named}


@dataclass(frozen=True)
class RandomK(UpdateFilter):
    """Keeps each entry with the same chance, and zeroes the others.

    Parameters
    ----------
    share : float, default=0.5
        The chance.
    """

    share: float = 0.5

    def __call__(self, update: Tensors, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """Return the tensors with these entries."""
        return {
            name: tensor * (torch.rand(tensor.shape, generator=generator) < self.share)
            for name, tensor in update.items()
        }


def _laplace(shape: tuple[int, ...], scale: float, generator: torch.Generator) -> torch.Tensor:
    """Return Laplace noise, by the difference of two exponential draws."""
    draws = torch.empty((2, *shape), dtype=torch.float64).exponential_(generator=generator)
    return scale * (draws[0] - draws[1])

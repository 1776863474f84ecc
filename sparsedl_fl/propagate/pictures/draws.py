"""Random numbers that are the same on every device: drawn on the CPU, and moved."""

from __future__ import annotations

import torch

__all__ = ["normal_like", "signs_like", "unit_normal"]


def unit_normal(shape: tuple[int, ...], seed: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return normal numbers of a seed, in double precision."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)


def normal_like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return normal numbers of a tensor's shape, type and device."""
    return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype).to(tensor.device)


def signs_like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return random signs of a tensor's shape and device, in single precision."""
    return (2.0 * torch.randint(0, 2, tensor.shape, generator=generator) - 1.0).to(tensor.device)

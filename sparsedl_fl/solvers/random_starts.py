"""Random numbers for starts."""

from __future__ import annotations

import torch

__all__ = ["log_uniform"]


def log_uniform(
    limits: tuple[float, float], n: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return numbers between limits whose logarithms are uniform, of shape (n, 1)."""
    first, last = limits
    return first * (last / first) ** torch.rand((n, 1), generator=generator, dtype=dtype)

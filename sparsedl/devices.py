"""The devices that a search can run on."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["check_device"]


def check_device(owner: Any, device: Any) -> torch.device:
    """Return a torch device, or raise ``ValueError`` saying that this machine does not have it."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{type(owner).__name__}: device must name a torch device, got {device!r}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{type(owner).__name__}: device={device!r}, but torch sees no CUDA device on this machine")
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"{type(owner).__name__}: device must be 'cpu' or 'cuda', got {device!r}")
    return found

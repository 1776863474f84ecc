"""How an audit was run: what somebody else needs to run it again."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from sparsedl_fl.tracing.naming import unwrapped

__all__ = ["describe_run", "digest"]

PACKAGES = ("sparsedl", "torch", "numpy", "scipy", "scikit-learn")


def describe_run(
    model: nn.Module, gradients: Mapping[str, torch.Tensor], seconds: float, **facts: Any
) -> dict[str, Any]:
    """Return the facts of a run for the report.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    gradients : mapping of str to torch.Tensor
        What the client sent, by name.
    seconds : float
        How long the audit took.
    **facts
        Further entries; those that are None are left out, those that are no plain data are written as their ``repr``.
    """
    plain = unwrapped(model)
    n_parameters = sum(tensor.numel() for tensor in plain.parameters())
    formats = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in gradients.values() if tensor is not None})
    return {
        "model": type(plain).__name__,
        "model_sha256": digest(plain.state_dict()),
        "n_parameters": n_parameters,
        "n_buffers": sum(tensor.is_floating_point() for tensor in plain.buffers()),
        "update_sha256": digest(gradients),
        "n_tensors": sum(tensor is not None for tensor in gradients.values()),
        "number_formats": formats,
        "seconds": round(seconds, 3),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: _version_of(name) for name in PACKAGES}},
        **{name: _plain(value) for name, value in facts.items() if value is not None},
    }


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of tensors by name: of names, shapes, types and numbers, in alphabetical order."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        if not isinstance(tensor, torch.Tensor):
            continue
        tensor = tensor.detach().cpu().contiguous()
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return found.hexdigest()


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | dict | list) else repr(value)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"

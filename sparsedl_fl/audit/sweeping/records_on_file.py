"""Records of a sweep on file: one line an audit, under a key for its model, data and options."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsedl import __version__
from sparsedl_fl.audit.context import digest
from sparsedl_fl.audit.sweeping.defences import Setting
from sparsedl_fl.tracing.naming import unwrapped
from sparsedl_fl.tracing.tracing import in_evaluation

__all__ = ["append_record", "digest_of_sweep", "key_of", "read_records"]

FIELDS = {"key", "verdict", "share", "label_share", "n_wrong", "errors", "what", "seconds", "is_complete"}
"""What a record has that is whole."""

DIGITS = 3
"""Digits of the model's outputs that count: the others change with the number of threads."""


def digest_of_sweep(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, loss: Any, options: Mapping[str, Any]
) -> str:
    """Return a digest of all that an audit of a sweep depends on, but for its setting and seed.

    Parameters
    ----------
    model : torch.nn.Module
        By its weights, its modules with their modes, and its outputs, which show what its code does.
    inputs, labels : torch.Tensor
        The records.
    loss : callable
        By its name, and by the arguments that are bound to it.
    options : mapping
        What else counts, plain data.
    """
    inner = unwrapped(model)
    with in_evaluation(model), torch.no_grad():
        outputs = model(inputs[:2])
    numbers = outputs.double() if isinstance(outputs, torch.Tensor) else torch.zeros(0, dtype=torch.float64)
    shown = [f"{number:.{DIGITS}g}" for number in numbers.flatten()[:1000].tolist()]
    parts = [
        __version__,
        digest(inner.state_dict()),
        str(inner),
        str([(name, module.training) for name, module in inner.named_modules()]),
        str([name for name, tensor in inner.named_parameters() if tensor.requires_grad]),
        str(shown),
        digest({"inputs": inputs, "labels": labels}),
        _name_of(loss),
        json.dumps(options, sort_keys=True, default=str),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _name_of(loss: Any) -> str:
    if isinstance(loss, partial):
        return f"{_name_of(loss.func)} {loss.args} {loss.keywords}"
    if isinstance(loss, nn.Module):
        return f"{loss} {digest(loss.state_dict())}"
    return f"{getattr(loss, '__module__', '')}.{getattr(loss, '__qualname__', type(loss).__qualname__)}"


def key_of(setting: Setting, seed: int, sweep: str) -> str:
    """Return the key of an audit's record."""
    client = f"{setting.client} {setting.client.update_filter or ''}".strip()
    return f"{setting.defence} | {setting.name} | {client} | {seed} | {sweep}"


def read_records(path: str | Path | None, *, is_timed: bool = False) -> dict[str, dict[str, Any]]:
    """Return records by key that may be trusted; lines that are cut off, or no records, are passed over.

    Parameters
    ----------
    path : str or Path or None
        The file.
    is_timed : bool, default=False
        Whether a cap by the clock may have ended audits: these are passed over too, for they depend on the machine. A
        budget that is counted ends them at the same place anywhere, and is part of the key.
    """
    if path is None or not Path(path).is_file():
        return {}
    found = {}
    for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and set(record) >= FIELDS and (record["is_complete"] or not is_timed):
            found[record["key"]] = record
    return found


def append_record(path: str | Path | None, record: Mapping[str, Any]) -> None:
    """Append a record on a line of its own; never through a symbolic link."""
    if path is None:
        return
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o666)
        with os.fdopen(number, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            is_cut_off = size > 0 and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            file.write(b"\n" * is_cut_off + (json.dumps(record) + "\n").encode())
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error

"""Whether a model is too large to audit on this machine, said before any work."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from torch import nn

from sparsedl_fl.tracing.naming import plain_name
from sparsedl_fl.wording import argument

__all__ = ["check_room"]

OF_LAYERS, OF_MODEL = 4, 2
"""Bytes that an audit takes beyond the model and the update, over those of the layers that are attacked, and over those
of the model, which is run in double precision. (Measured: 4.8 times the update in all, for one layer of 50,000 x
1,000.)"""


def check_room(model: nn.Module, layers: Iterable[int | str] | None) -> None:
    """Raise ``ValueError`` where the audit of a model needs more memory than there is.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    layers : iterable of int or str, or None
        Layers that are attacked, None for all; for those that are given by number the largest are counted.
    """
    sizes = {plain_name(name): tensor.nbytes for name, tensor in model.named_parameters()}
    total = attacked = sum(sizes.values())
    if layers is not None:
        attacked = _attacked(sizes, list(layers))
    needed, there = OF_LAYERS * attacked + OF_MODEL * total, _available()
    if there is None or needed <= there:
        return
    what = "name fewer of them" if layers is not None else f"name the layers to attack with {argument('layers')}"
    raise ValueError(
        f"the model is too large for this machine: its update has {total / 1e9:.1f} GB, an audit needs about "
        f"{needed / 1e9:.1f} GB beyond it, and {there / 1e9:.1f} GB are free; {what}, the one nearest to the input "
        "first, or use a machine with more memory"
    )


def _attacked(sizes: dict[str, int], layers: list[int | str]) -> int:
    """Return the bytes of layers by name, and of as many of the largest parameters as are given by number."""
    by_name = [
        size
        for layer in layers
        if isinstance(layer, str)
        for name, size in sizes.items()
        if name.rpartition(".")[0] == plain_name(layer)
    ]
    n_numbers = sum(not isinstance(layer, str) for layer in layers)
    return sum(by_name) + sum(sorted(sizes.values(), reverse=True)[:n_numbers])


def _available() -> int | None:
    """Return the bytes of memory that are free, or at least in the machine; None where neither is known."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None

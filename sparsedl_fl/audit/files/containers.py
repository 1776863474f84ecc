"""The contents of a file: tensors by name, tensors in order, or a checkpoint with such entries."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsedl_fl.audit.files.unpacking import check_size, check_unpacked, largest_unpacked
from sparsedl_fl.wording import first_line, installs

__all__ = ["load_tensors", "read_file"]

MOST_DEEP = 4
"""Largest depth of mappings in a checkpoint."""


def load_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """Return tensors by name from a file that holds nothing else: ``.safetensors``, ``.npz`` or ``.pt``.

    Raises
    ------
    ValueError
        If there is no such file, its format is another, it would run code when it is read, unpacks to more than its
        size, or holds anything else.
    """
    found = read_file(path)
    if isinstance(found, dict) and list(found) == ["state_dict"]:
        found = found["state_dict"]
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        keys = f"; it has {sorted(map(str, found))}" if isinstance(found, dict) else ""
        raise ValueError(f"{path} must hold a mapping of names to tensors and nothing else{keys}")
    return found


def read_file(path: str | Path, most: int | None = None) -> Any:
    """Return the contents of a file: mappings and lists of tensors.

    Parameters
    ----------
    path : str or Path
        One of `READERS`. Arrays that ``numpy.savez`` named itself, ``arr_0`` and so on, come as a list.
    most : int or None, default=None
        Largest plausible size when unpacked, in bytes; None takes the size of the file.

    Raises
    ------
    ValueError
        As of `load_tensors`.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is a folder, and a file is needed" if path.is_dir() else f"there is no file {path}")
    if path.suffix not in READERS:
        raise ValueError(f"{path} must be a .safetensors file (or {', '.join([*READERS][1:])}), got {path.suffix!r}")
    try:
        most = largest_unpacked(path) if most is None else most
        check_unpacked(path, most)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    read, kind = READERS[path.suffix]
    try:
        found = read(path)
    except ImportError:
        raise
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is refused: it holds more than tensors, and reading it could run code. Save the state_dict() as "
            ".safetensors"
        ) from error
    except Exception as error:  # a broken file may raise anything
        raise ValueError(f"{path} is no {kind}: {first_line(error)}") from error
    # One with strides of zero has more numbers than the file.
    check_size(path, sum(t.numel() * t.element_size() for t in _leaves(path, found)), most)
    return found


def _leaves(path: Path, found: Any, name: str = "", depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield every tensor; raise for one without numbers."""
    if isinstance(found, torch.Tensor):
        if found.is_meta:
            raise ValueError(f"{path} has no numbers for {name!r}, which is on the meta device")
        yield found
    elif isinstance(found, Mapping | list | tuple) and depth < MOST_DEEP:
        entries = found.items() if isinstance(found, Mapping) else enumerate(found)
        for key, value in entries:
            yield from _leaves(path, value, f"{name}.{key}" if name else str(key), depth + 1)


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    with installs("reading .safetensors needs safetensors", "audit"):
        from safetensors.torch import load_file
    return load_file(path)


def _pickled(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of storages that are written in an old way
        return torch.load(path, map_location="cpu", weights_only=True)


def _arrays(path: Path) -> dict[str, torch.Tensor] | list[torch.Tensor]:
    with np.load(path, allow_pickle=False) as file:
        found = {name: _tensor(path, name, file[name]) for name in file.files}
    if found and all(re.fullmatch(r"arr_\d+", name) for name in found):
        return [found[name] for name in sorted(found, key=lambda name: int(name[4:]))]
    return found


def _array(path: Path) -> torch.Tensor:
    return _tensor(path, "the array", np.load(path, allow_pickle=False))


def _tensor(path: Path, name: str, array: np.ndarray) -> torch.Tensor:
    if array.dtype.kind not in "biufc":
        raise ValueError(f"{path} has {name!r} of type {array.dtype}, and numbers are needed")
    if array.dtype.itemsize > 8 and array.dtype.kind == "f":
        array = array.astype(np.float64)
    return torch.from_numpy(np.array(array.astype(array.dtype.newbyteorder("=")), order="C"))


READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    ".safetensors": (_safetensors, "safetensors file"),
    ".pt": (_pickled, "file of torch.save, or broken"),
    ".pth": (_pickled, "file of torch.save, or broken"),
    ".npz": (_arrays, "npz file, or broken"),
    ".npy": (_array, "npy file, or broken"),
}
"""Files that are read, by what, and what a broken one is said not to be."""

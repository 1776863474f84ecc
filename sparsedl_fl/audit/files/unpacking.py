"""The unpacked size of a file, by what the file declares, before it is unpacked.

A file of a few megabytes can unpack to as many gigabytes: a zip of zeros, a storage that is only declared, or a small
one that a tensor repeats by strides of zero. Files of torch.save, numpy.savez and safetensors hold their numbers
uncompressed, so that they unpack to no more than their own size; `largest_unpacked` is therefore the larger of

- twice the size of the file, since tied weights are stored once under two names, and
- the size of the model's state in double precision, which compressed files and weights with many names may reach.

Records (``--data``) have no model to compare with, and may be compressed: they may unpack to `RECORDS_MOST` times their
file, or to `RECORDS_FREE`, where that is more.
"""

from __future__ import annotations

import math
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from sparsedl_fl.wording import first_line

__all__ = ["RECORDS_FREE", "RECORDS_MOST", "check_size", "check_unpacked", "largest_unpacked", "readable_size"]

RECORDS_MOST = 100
"""Most records pack by less: with numpy.savez_compressed 8 x 8 digits by 12, photographs as float32 by 4, padded token
ids by 16, the digits as unit vectors in double precision by 74. Zeros pack by 1030, as far as deflate goes, and unit
vectors of a thousand categories by 590: of these `RECORDS_FREE` are read."""

RECORDS_FREE = 2**28
"""256 MiB, which any machine has that runs torch."""

SIZES = {"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1}
SIZES |= {"Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16}
"""Bytes of an entry by the name of a storage."""

NAMES = 2**16
"""Bytes that names, shapes and the directory of a file may take besides its numbers."""


def largest_unpacked(path: Path, state: Mapping[str, torch.Tensor] | None = None) -> int:
    """Return the largest plausible unpacked size of a file, in bytes.

    Parameters
    ----------
    path : Path
        The file.
    state : mapping of str to torch.Tensor or None, default=None
        The state of the model whose weights or update it is; None where there is none.
    """
    numbers = 0 if state is None else sum(t.numel() for t in state.values() if isinstance(t, torch.Tensor))
    return max(2 * path.stat().st_size, 8 * numbers) + NAMES


def readable_size(size: int) -> str:
    """Return a number of bytes in a readable unit.

    Examples
    --------
    >>> readable_size(6 * 2**30)
    '6.44 GB'
    """
    power = min(4, max(0, int(math.log10(max(1, size))) // 3))
    return f"{size / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


def check_unpacked(path: Path, most: int) -> None:
    """Raise ``ValueError`` for a file that declares more than ``most`` unpacked bytes, or is broken."""
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                size = _array_bytes(file)
        elif path.suffix == ".safetensors":
            size = _safetensors_bytes(path)
        else:
            size = _zip_bytes(path) if is_zip or path.suffix == ".npz" else _storages_bytes(path)
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, KeyError, NotImplementedError, struct.error) as error:
        raise ValueError(f"{path} is no {path.suffix[1:]} file, or broken: {first_line(error)}") from error
    check_size(path, size, most)


def check_size(path: Path, size: int, most: int) -> None:
    """Raise ``ValueError`` where the contents of a file have more than ``most`` bytes."""
    if size > most:
        raise ValueError(
            f"{path} is refused: it has {readable_size(path.stat().st_size)} and unpacks to {readable_size(size)}, "
            f"where at most {readable_size(most)} are plausible; save it again, uncompressed"
        )


def _zip_bytes(path: Path) -> int:
    """Return what a zip says of its files, or what the arrays in it declare in their heads, if that is more."""
    with zipfile.ZipFile(path) as archive:
        size = 0
        for name in archive.namelist():
            if name.endswith(".npy"):
                with archive.open(name) as file:
                    size += _array_bytes(file)
        return max(size, sum(info.file_size for info in archive.infolist()))


def _array_bytes(file: BinaryIO | Any) -> int:
    version = np.lib.format.read_magic(file)
    heads = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in heads:
        raise ValueError(f"arrays of version {version} are not read")
    shape, _, dtype = heads[version](file)
    if dtype.hasobject:
        raise ValueError("it holds objects, and reading them could run code; save arrays of numbers, each by itself")
    return math.prod(shape) * dtype.itemsize


def _safetensors_bytes(path: Path) -> int:
    """Return the size of the file, for tensors there are slices of it; its head may not be longer than it is."""
    size = path.stat().st_size
    with path.open("rb") as file:
        (head,) = struct.unpack("<Q", file.read(8))
    if head > size - 8:
        raise ValueError("its head is longer than the file")
    return size


def _storages_bytes(path: Path) -> int:
    """Return what the storages of a file in torch's format before 2020 declare; its pickles are read, never run."""
    size = 0
    with path.open("rb") as file:
        for number in range(5):  # a magic number, a version, the system, the object, names of storages
            for numel, entry in _declared(file):
                size += numel * entry
            if number == 0 and file.tell() > 64:
                raise ValueError("it does not begin as files of torch.save do")
    return size


def _declared(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield entries and bytes of an entry of each storage that a pickle asks for."""
    largest, entry = 0, 8
    try:
        for code, value, _ in pickletools.genops(file):
            if code.name == "MARK":
                largest = 0
            elif code.name in ("GLOBAL", "STACK_GLOBAL") and value and str(value).endswith("Storage"):
                entry = SIZES.get(str(value).split()[-1].removesuffix("Storage"), 16)
            elif isinstance(value, int) and not isinstance(value, bool) and not code.name.endswith(("GET", "PUT")):
                largest = max(largest, value)
            elif code.name in ("BINPERSID", "PERSID"):
                yield largest, entry
    except (pickle.UnpicklingError, UnicodeDecodeError, IndexError) as error:
        raise ValueError(str(error)) from error

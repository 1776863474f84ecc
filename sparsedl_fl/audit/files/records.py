"""A client's records, an example input of the model, and the words of token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsedl_fl.audit.files.containers import read_file
from sparsedl_fl.audit.files.unpacking import NAMES, RECORDS_FREE, RECORDS_MOST
from sparsedl_fl.wording import argument

__all__ = ["load_example", "load_records", "load_vocabulary"]


def _read_records(path: Path) -> Any:
    most = max(RECORDS_FREE, RECORDS_MOST * path.stat().st_size) + NAMES if path.is_file() else None
    return read_file(path, most)


def load_records(path: str | Path, shape: Sequence[int] | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return a client's records and their labels, on the scale the model takes.

    Parameters
    ----------
    path : str or Path
        An ``.npz``, ``.safetensors`` or ``.pt`` file with ``x`` of shape (n, ...) and, where there are labels, ``y`` of
        shape (n,). Bytes become numbers in [0, 1]; others stay as they are.
    shape : sequence of int or None, default=None
        Shape of one input of the model; channels of images are moved from the last axis to the first.
    """
    path = Path(path)
    found = _read_records(path)
    found = found if isinstance(found, Mapping) else {}
    if not isinstance(found.get("x"), torch.Tensor) or found["x"].ndim < 2 or not len(found["x"]):
        raise ValueError(f"{path} must have an array x of shape (n, ...)")
    x = found["x"].float() / 255 if found["x"].dtype == torch.uint8 else found["x"].float()
    if not x.isfinite().all():
        raise ValueError(f"{path} has NaN or infinity in x")
    if shape is not None:
        is_last = x.ndim == 4 and (x.shape[3], *x.shape[1:3]) == tuple(shape)
        x = x.permute(0, 3, 1, 2) if is_last else x
        if x[0].numel() != np.prod(shape):
            raise ValueError(f"{path} has records of shape {tuple(x.shape[1:])}, and the model takes {tuple(shape)}")
        x = x.reshape(len(x), *shape)
    labels = found["y"].long() if isinstance(found.get("y"), torch.Tensor) else None
    if labels is not None and labels.ndim != 1:
        raise ValueError(f"{path} must have labels y of shape (n,), got {tuple(labels.shape)}")
    if labels is not None and len(labels) != len(x):
        raise ValueError(f"{path} has {len(x)} records and {len(labels)} labels")
    return x.contiguous(), labels


def load_example(path: str | Path) -> list[torch.Tensor]:
    """Return the only tensor of a file as inputs of a model, in each way it can be meant, the likeliest first.

    Parameters
    ----------
    path : str or Path
        A ``.pt``, ``.npz``, ``.safetensors`` or ``.npy`` file with one tensor, or one that is called ``x``; with or
        without the dimension of the batch.

    Raises
    ------
    ValueError
        If it holds anything else.
    """
    path = Path(path)
    found = _read_records(path)
    if isinstance(found, Mapping):
        found = [found["x"]] if "x" in found else list(found.values())
    found = [found] if isinstance(found, torch.Tensor) else found
    if len(found) != 1 or not isinstance(found[0], torch.Tensor):
        raise ValueError(f"{path} must hold one tensor, or one that is called x")
    if not found[0].numel():
        raise ValueError(f"{path} holds a tensor without numbers, of shape {tuple(found[0].shape)}")
    return [shaped for tensor in _typed(found[0]) for shaped in (tensor[:2], tensor[None]) if shaped.ndim]


def _typed(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.ndim == 0:
        return
    if tensor.dtype == torch.uint8:
        yield tensor.float() / 255
    yield tensor if tensor.is_floating_point() else tensor.long()


def load_vocabulary(path: str | Path) -> dict[int, str]:
    """Return the words of token ids.

    Parameters
    ----------
    path : str or Path
        A text file with one token a line, the first of which has the id 0; or a JSON file with a mapping of tokens to
        ids, or a list of tokens, alone or as ``tokenizer.json`` of Hugging Face has it.

    Raises
    ------
    ValueError
        If it cannot be read, or is none of these.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "vocab.json"
    ...     _ = file.write_text('{"hello": 1, "[PAD]": 0}')
    ...     load_vocabulary(file)
    {0: '[PAD]', 1: 'hello'}
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else text.removesuffix("\n").split("\n")
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"{argument('vocabulary')} {path} cannot be read: {why}") from error
    words = dict(sorted(_words(found)))
    if not words:
        raise ValueError(
            f"{argument('vocabulary')} {path} must be a text file with one token a line, or JSON: a list of tokens, "
            "or a mapping of tokens to ids that are not negative"
        )
    return words


def _words(found: Any) -> Iterator[tuple[int, str]]:
    """Yield ids and tokens, as a tokenizer's file, a mapping or a list has them; nothing where one is no such pair."""
    added = []
    if isinstance(found, Mapping) and isinstance(found.get("model"), Mapping):  # tokenizer.json
        added = [(one.get("id"), one.get("content")) for one in found.get("added_tokens", [])]
        found = found["model"].get("vocab")
    if isinstance(found, Mapping):
        entries = [(number, token) for token, number in found.items()]
    elif isinstance(found, list):
        entries = list(enumerate(part[0] if isinstance(part, list) and part else part for part in found))
    else:
        return
    entries += added
    if all(type(number) is int and number >= 0 and isinstance(token, str) for number, token in entries):
        yield from entries

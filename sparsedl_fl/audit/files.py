"""Models and updates as users have them on disk; safe formats only."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedl_fl.audit.context import digest
from sparsedl_fl.models import gradients_of_update, plain_names
from sparsedl_fl.models.naming import check_same_tensors, unwrapped

__all__ = ["KINDS", "Update", "check_fixed", "load_model", "load_object", "load_records", "load_tensors", "load_update"]

KINDS = ("auto", "gradient", "weights", "delta")
"""What an update may be: gradients, weights after local training, or these less the weights before."""


@dataclass(frozen=True)
class Update:
    """What a client sent, as gradients.

    Attributes
    ----------
    gradients : dict of str to torch.Tensor
        By plain name.
    learning_rate : float or None
        Given where they sum up several local steps.
    kind : str
        One of `KINDS`, but "auto".
    """

    gradients: Mapping[str, torch.Tensor]
    learning_rate: float | None
    kind: str


def load_object(spec: str, argument: str = "MODEL") -> Any:
    """Return what ``package.module:name`` or ``path/to/file.py:name`` names.

    Raises
    ------
    ValueError
        If it cannot be found.
    """
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name:
        raise ValueError(f"{argument} must be package.module:name or file.py:name, got {spec!r}")
    try:
        module = _module_at(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (ImportError, OSError) as error:
        raise ValueError(f"{argument} {spec!r} cannot be imported: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        raise ValueError(f"{argument} {spec!r}: {place} has no {name!r}")
    return found


def _module_at(path: Path) -> Any:
    if not path.is_file():
        raise ImportError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"_audited_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def load_model(spec: str, weights: str | Path | None = None) -> nn.Module:
    """Return the model that a function without arguments makes, with weights from a file.

    Parameters
    ----------
    spec : str
        ``package.module:function`` or ``file.py:function``; a class, or a module that is there already, will do.
    weights : str or Path or None, default=None
        Its state, as of `load_tensors`; None leaves the weights as the function made them.

    Raises
    ------
    ValueError
        If there is no such model, or the weights are not its own; the tensor that does not fit is named.
    """
    made = load_object(spec)
    model = made if isinstance(made, nn.Module) else made() if callable(made) else made
    if not isinstance(model, nn.Module):
        raise ValueError(f"MODEL {spec!r} must make a torch.nn.Module, got {type(model).__name__}")
    if weights is not None:
        state = plain_names("weights", load_tensors(weights))
        inner = unwrapped(model)
        check_same_tensors(inner.state_dict(), state, f"weights {weights}")
        inner.load_state_dict({name: state[name] for name in inner.state_dict()})
    return model


def check_fixed(spec: str) -> None:
    """Raise ``ValueError`` where a function makes a model with other weights at each call: a file has to say which."""
    made = load_object(spec)
    if isinstance(made, nn.Module) or not callable(made):
        return
    one, other = made(), made()
    if isinstance(one, nn.Module) and digest(one.state_dict()) != digest(other.state_dict()):
        raise ValueError(
            f"MODEL {spec!r} makes other weights at each call, and an update tells nothing without those that the "
            "client was given: pass --weights"
        )


def load_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """Return tensors by name from a ``.safetensors`` file, or from a ``.pt`` file that holds nothing else.

    Raises
    ------
    ValueError
        If there is no such file, its format is another, or it would run code when it is read.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.suffix == ".safetensors":
        try:
            from safetensors.torch import load_file
        except ImportError as error:
            raise ImportError("reading .safetensors needs safetensors: pip install 'sparsedl[audit]'") from error
        try:
            return load_file(path)
        except Exception as error:  # safetensors has an error class of its own
            raise ValueError(f"{path} is no safetensors file: {error}") from error
    if path.suffix not in (".pt", ".pth"):
        raise ValueError(f"{path} must be a .safetensors file (or .pt with tensors alone), got {path.suffix!r}")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is refused: it holds more than tensors, and reading it could run code. Save the state_dict() as "
            ".safetensors"
        ) from error
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise ValueError(f"{path} must hold a mapping of names to tensors")
    return found


def load_records(path: str | Path, shape: Sequence[int] | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return a client's records and their labels, on the scale the model takes.

    Parameters
    ----------
    path : str or Path
        An ``.npz`` or ``.safetensors`` file with ``x`` of shape (n, ...) and, where there are labels, ``y`` of shape
        (n,). Bytes become numbers in [0, 1]; others stay as they are.
    shape : sequence of int or None, default=None
        Shape of one input of the model; images with their channels last are turned.
    """
    path = Path(path)
    if path.suffix == ".npz":
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        with np.load(path, allow_pickle=False) as file:
            found = {name: torch.from_numpy(file[name]) for name in ("x", "y") if name in file.files}
    else:
        found = load_tensors(path)
    if "x" not in found or found["x"].ndim < 2 or not len(found["x"]):
        raise ValueError(f"{path} must have an array x of shape (n, ...)")
    x = found["x"].float() / 255 if found["x"].dtype == torch.uint8 else found["x"].float()
    if shape is not None:
        is_last = x.ndim == 4 and (x.shape[3], *x.shape[1:3]) == tuple(shape)
        x = x.permute(0, 3, 1, 2) if is_last else x
        if x[0].numel() != np.prod(shape):
            raise ValueError(f"{path} has records of shape {tuple(x.shape[1:])}, and the model takes {tuple(shape)}")
        x = x.reshape(len(x), *shape)
    labels = found["y"].long() if "y" in found else None
    if labels is not None and len(labels) != len(x):
        raise ValueError(f"{path} has {len(x)} records and {len(labels)} labels")
    return x.contiguous(), labels


def load_update(
    model: nn.Module, path: str | Path, *, kind: str = "auto", learning_rate: float | None = None, **client: Any
) -> Update:
    """Return what a client sent, as gradients of a model's parameters.

    Parameters
    ----------
    model : torch.nn.Module
        The model that the client was given.
    path : str or Path
        The update, as of `load_tensors`.
    kind : {"auto", "gradient", "weights", "delta"}, default="auto"
        What it is; "auto" takes tensors near the model's own for weights after local training.
    learning_rate : float or None, default=None
        The client's; needed for weights.
    **client
        ``n_steps``, ``momentum``, ``weight_decay``, ``optimizer``, as of `gradients_of_update`.

    Raises
    ------
    ValueError
        If the update is not one of this model; the tensor that does not fit is named.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {KINDS}, got {kind!r}")
    sent = plain_names("update", load_tensors(path))
    state = unwrapped(model).state_dict()
    parameters = {name: tensor.detach() for name, tensor in unwrapped(model).named_parameters() if tensor.requires_grad}
    trained = {name: sent[name] for name in sent if name in parameters or name not in state}
    check_same_tensors(parameters, trained, f"update {path}", needed=() if trained else None)
    if kind == "auto":
        kind = "weights" if _is_near(parameters, sent) else "gradient"
    if kind == "gradient":
        return Update({name: sent[name] for name in sent if name in parameters}, None, kind)
    if learning_rate is None:
        raise ValueError(f"update {path} holds weights after local training: the client's learning rate is needed")
    after = {name: state[name] + sent[name] for name in sent} if kind == "delta" else sent
    before = {name: state[name] for name in parameters if name in after}
    gradients = gradients_of_update(before, after, learning_rate, **client)
    return Update(gradients, None if client.get("n_steps") == 1 else learning_rate, kind)


def _is_near(parameters: Mapping[str, torch.Tensor], sent: Mapping[str, torch.Tensor]) -> bool:
    """Return whether what was sent is nearer to the weights than to zero."""
    shared = [name for name in parameters if name in sent and bool(sent[name].isfinite().all())]
    moved = sum(float((sent[name].double() - parameters[name].double()).square().sum()) for name in shared)
    return moved < 0.5 * sum(float(sent[name].double().square().sum()) for name in shared)

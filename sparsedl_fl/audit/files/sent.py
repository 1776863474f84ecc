"""A model with the initial weights of a client, and the client's update as gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsedl_fl.audit.files.containers import read_file
from sparsedl_fl.audit.files.entries import entry_of, named_for
from sparsedl_fl.audit.files.programs import made_model
from sparsedl_fl.audit.files.unpacking import largest_unpacked
from sparsedl_fl.layers.updates import gradients_of_update
from sparsedl_fl.tracing.naming import unwrapped
from sparsedl_fl.wording import argument

__all__ = ["KINDS", "Update", "load_after", "load_model", "load_sent", "load_update"]

KINDS = ("auto", "gradient", "weights", "delta")
"""What an update may be: gradients, weights after local training, or these less the weights before."""


@dataclass(frozen=True)
class Update:
    """The update of a client, as gradients.

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


def load_model(spec: str, weights: str | Path | None = None, *, key: str | None = None) -> nn.Module:
    """Return the model that a function without arguments makes, with weights from a file.

    Parameters
    ----------
    spec : str
        ``package.module:function`` or ``file.py:function``; a class or a module object is accepted too.
    weights : str or Path or None, default=None
        Its state: tensors by name, a list of arrays in the order of ``state_dict()`` or ``parameters()``, or a
        checkpoint that has one of these; None leaves the weights as the function made them.
    key : str or None, default=None
        Name of the entry of such a checkpoint; None takes the only one that fits.

    Raises
    ------
    ValueError
        If there is no such model, or the weights are not its own; the tensor that does not fit is named.
    """
    model = made_model(spec)
    if weights is not None:
        inner = unwrapped(model)
        own = inner.state_dict()
        state = _fitting(inner, weights, f"{argument('weights')} {weights}", key, is_update=False)
        inner.load_state_dict({name: state.get(name, tensor) for name, tensor in own.items()})
    return model


def _fitting(
    model: nn.Module, path: str | Path, what: str, key: str | None, is_update: bool
) -> dict[str, torch.Tensor]:
    """Return the tensors of a model in a file."""
    path = Path(path)
    most = largest_unpacked(path, model.state_dict()) if path.is_file() else None
    return entry_of(read_file(path, most), lambda given: named_for(model, given, what, is_update=is_update), what, key)


def load_sent(
    model: nn.Module, path: str | Path, *, kind: str = "auto", key: str | None = None
) -> tuple[dict[str, torch.Tensor], str]:
    """Return what a client sent, by plain name and as it was sent, and what it is.

    Parameters
    ----------
    model, path, kind, key
        As of `load_update`.

    Raises
    ------
    ValueError
        If it is not of this model; the tensor that does not fit is named.
    """
    if kind not in KINDS:
        raise ValueError(f"{argument('kind')} must be one of {KINDS}, got {kind!r}")
    inner = unwrapped(model)
    sent = _fitting(inner, path, f"update {path}", key, is_update=True)
    if kind == "auto":
        kind = "weights" if _is_near({name: t.detach() for name, t in inner.named_parameters()}, sent) else "gradient"
    return sent, kind


def load_update(
    model: nn.Module,
    path: str | Path,
    *,
    kind: str = "auto",
    learning_rate: float | None = None,
    key: str | None = None,
    **client: Any,
) -> Update:
    """Return the update of a client, as gradients of a model's parameters.

    Parameters
    ----------
    model : torch.nn.Module
        The model that the client was given.
    path : str or Path
        The update, as the weights of `load_model`.
    kind : {"auto", "gradient", "weights", "delta"}, default="auto"
        What it is; "auto" takes tensors near the model's own for weights after local training.
    learning_rate : float or None, default=None
        The client's; needed for weights.
    key : str or None, default=None
        As of `load_model`.
    **client
        ``n_steps``, ``momentum``, ``weight_decay``, ``optimizer``, as of `gradients_of_update`.

    Raises
    ------
    ValueError
        If the update is not one of this model; the tensor that does not fit is named.
    """
    sent, kind = load_sent(model, path, kind=kind, key=key)
    inner = unwrapped(model)
    state = inner.state_dict()
    parameters = {name: tensor.detach() for name, tensor in inner.named_parameters()
                  if name in sent and (tensor.requires_grad or _is_moved(tensor, sent[name], kind))}  # fmt: skip
    if not parameters:
        raise ValueError(f"update {path} has none of the model's parameters that a client trains: all are frozen")
    if kind == "gradient":
        return Update({name: sent[name] for name in parameters}, None, kind)
    if learning_rate is None:
        raise ValueError(
            f"update {path} holds weights after local training: the client's learning rate is needed "
            f"({argument('learning_rate')})"
        )
    after = {name: state[name] + sent[name] if kind == "delta" else sent[name] for name in parameters}
    before = {name: state[name] for name in parameters}
    gradients = gradients_of_update(before, after, learning_rate, **client)
    return Update(gradients, None if client.get("n_steps") == 1 else learning_rate, kind)


def load_after(
    model: nn.Module, path: str | Path, *, kind: str = "auto", key: str | None = None
) -> dict[str, torch.Tensor] | None:
    """Return the parameters after local training by plain name, or None where gradients were sent.

    Parameters
    ----------
    model, path, kind, key
        As of `load_update`.
    """
    sent, kind = load_sent(model, path, kind=kind, key=key)
    if kind == "gradient":
        return None
    own = {name: tensor.detach() for name, tensor in unwrapped(model).named_parameters()}
    moved = {name: tensor + sent[name] for name, tensor in own.items() if name in sent} if kind == "delta" else sent
    return {name: moved.get(name, tensor) for name, tensor in own.items()}


def _is_moved(parameter: torch.Tensor, sent: torch.Tensor, kind: str) -> bool:
    """Return whether a parameter that the model freezes was trained all the same."""
    return bool((sent != parameter.detach()).any() if kind == "weights" else sent.any())


def _is_near(parameters: Mapping[str, torch.Tensor], sent: Mapping[str, torch.Tensor]) -> bool:
    """Return whether what was sent is nearer to the weights than to zero."""
    shared = [name for name in parameters if name in sent and bool(sent[name].isfinite().all())]
    moved = sum(float((sent[name].double() - parameters[name].double()).square().sum()) for name in shared)
    return moved < 0.5 * sum(float(sent[name].double().square().sum()) for name in shared)

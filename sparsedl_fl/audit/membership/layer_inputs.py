"""The linear layer whose inputs training leaves the same, and these inputs for each record."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from torch import nn

from sparsedl_fl.audit.membership.layer_change import SentTensors, key_of
from sparsedl_fl.tracing.naming import plain_modules, plain_parameters, unwrapped
from sparsedl_fl.tracing.tracing import hooked
from sparsedl_fl.wording import argument, first_line

__all__ = ["OutOfRange", "inputs_of_layer"]

SAME = 1e-6
"""Difference of a layer's inputs, relative to them, that is rounding."""

MOVED = 0.1
"""By how much trained parameters are moved, relative to their sizes, to see which inputs depend on them."""

BATCH = 512
"""Records that a model runs on at once."""


class OutOfRange(Exception):
    """Nothing can be said of any record; the message says why."""


def inputs_of_layer(
    model: nn.Module | None, tensors: SentTensors, records: torch.Tensor, layer: str | None
) -> tuple[str, np.ndarray]:
    """Return the name of the largest layer that was trained and whose inputs were not, and its inputs.

    Parameters
    ----------
    model : torch.nn.Module or None
        The model in the client's mode; None where only its state is known: the first layer that takes as many numbers
        as a record has then takes the record itself.
    tensors : SentTensors
        Its tensors.
    records : torch.Tensor of shape (n_records, ...)
        On the scale that the model takes.
    layer : str or None
        Name of the layer to take; None takes the largest.

    Returns
    -------
    name : str
        Of the layer.
    inputs : ndarray of shape (n_records, rows, n)
        One row for each record, or several for tokens and patches.

    Raises
    ------
    OutOfRange
        If there is no such layer.
    ValueError
        If the records do not fit, or the layer is none of these.
    """
    found = {} if model is None else _inputs_that_stay(unwrapped(model), tensors, records)
    found = found or _records_as_inputs(tensors, records, layer)
    if layer is not None:
        if layer not in found:
            raise ValueError(
                f"{argument('layer')} {layer!r} has no inputs that stay the same; of {sorted(found)} they do"
            )
        found = {layer: found[layer]}
    changed = [name for name in found if key_of(name) in tensors.initial and tensors.change(key_of(name)).any()]
    if not changed:
        raise OutOfRange(
            f"training did not change {', '.join(map(repr, found))}, which alone takes inputs that stay the same"
        )
    best = max(changed, key=lambda name: min(tensors.initial[key_of(name)].shape))
    return best, found[best]


def _records_as_inputs(tensors: SentTensors, records: torch.Tensor, layer: str | None) -> dict[str, np.ndarray]:
    flat = records.reshape(len(records), 1, -1).double().numpy()
    widths = {
        key.removesuffix("weight").removesuffix("."): tensor.shape[1]
        for key, tensor in tensors.initial.items()
        if key.endswith("weight") and tensor.ndim == 2
    }
    fitting = [name for name, width in widths.items() if width == flat.shape[2] and layer in (None, name)]
    if not fitting:
        raise ValueError(
            f"{argument('records')} have {flat.shape[2]} numbers each, and no linear layer takes as many: there are "
            f"layers of {', '.join(map(str, sorted(set(widths.values())))) or 'no'} inputs"
        )
    return {fitting[0]: flat}


def _inputs_that_stay(model: nn.Module, tensors: SentTensors, records: torch.Tensor) -> dict[str, np.ndarray]:
    """Return the inputs of linear layers that no trained parameter moves.

    The model runs in its own mode, and again with other records beside: dropout and batch normalisation in front of a
    layer make its inputs differ.
    """
    parameter = next(model.parameters(), torch.zeros(0))
    own = records.to(parameter.device, parameter.dtype)
    try:
        first = _recorded(deepcopy(model), own)
        again = _recorded(deepcopy(model), torch.cat([own.flip(-1), own]))
        moved = _recorded(_moved(model, tensors), own)
    except Exception as error:  # a user's model may raise anything
        raise ValueError(f"the model does not run on {argument('records')}: {first_line(error)}") from error
    same = {
        name: part.double().numpy()
        for name, part in first.items()
        if name in again and _is_near(part, again[name][len(own) :]) and _is_near(part, moved.get(name))
    }
    if first and not same:
        raise OutOfRange(
            "training changes the inputs of every linear layer: trained layers (convolutions), dropout or batch "
            "normalisation in training mode are in front"
        )
    return same


def _moved(model: nn.Module, tensors: SentTensors) -> nn.Module:
    """Return a model whose trained parameters are elsewhere."""
    moved, generator = deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in plain_parameters(moved).items():
            if name in tensors.initial and tensors.change(name).any():
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.add_(MOVED * (parameter.square().mean().sqrt() + torch.finfo(parameter.dtype).eps) * noise)
    return moved


def _is_near(part: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and part.shape == other.shape and bool((part - other).norm() <= SAME * part.norm())


def _recorded(model: nn.Module, records: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the inputs of each linear layer that runs once, of shape (n_records, rows, n)."""
    names = {module: name for name, module in plain_modules(model, nn.Linear).items()}
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in names.values()}

    def record(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        parts[names[module]].append(given[0].detach().cpu())

    blocks = records.split(BATCH)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), hooked(dict.fromkeys(names, record), before=True):
        for block in blocks:
            model(block)
    sizes = [len(block) for block in blocks]
    whole = {name: torch.cat(inputs) for name, inputs in parts.items() if [len(part) for part in inputs] == sizes}
    return {name: inputs.reshape(len(inputs), -1, inputs.shape[-1]) for name, inputs in whole.items()}

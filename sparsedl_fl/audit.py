"""Attack each layer of a model, and say of every parameter what came of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.base import clone
from torch import nn

from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.models import Trace, inspect_model, named_gradients, trace_model
from sparsedl_fl.models.layers import layer_of_model, pick_layer

__all__ = ["LayerAudit", "audit_model"]


@dataclass(frozen=True)
class LayerAudit:
    """What one layer gives away.

    Attributes
    ----------
    name : str
        Name of the layer in the model.
    inverter : GradientInverter or None
        Fitted to the layer; None where the layer could not be attacked.
    reason : str
        What was recovered and what is in doubt, or why the layer could not be attacked.
    """

    name: str
    inverter: GradientInverter | None
    reason: str


def audit_model(
    model: nn.Module,
    gradients: Sequence[torch.Tensor] | Mapping[str, torch.Tensor],
    inverter: GradientInverter | None = None,
    layers: Iterable[int | str] | None = None,
    example: torch.Tensor | None = None,
    loss: str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> dict[str, LayerAudit]:
    """Attack every linear layer in reach, and list what is not.

    The model is run once on an example, so that neither the order in which layers are declared nor functional calls
    matter (see `sparsedl_fl.models`).

    Parameters
    ----------
    model : torch.nn.Module
        The model at the parameters at which the gradient was taken.
    gradients : sequence of tensors or mapping of name to tensor
        The client's gradient, in the order of ``model.parameters()`` or by name.
    inverter : GradientInverter or None, default=None
        What attacks each layer; a clone is fitted to each. None takes ``GradientInverter(random_state=0)``.
    layers : iterable of int or str, or None, default=None
        Indices among the linear layers in the order in which they run, or names; None takes all of them, and lists
        every other parameter too.
    example : torch.Tensor or None, default=None
        An input of the model, any numbers of the right shape; None makes one up.
    loss : {"cross_entropy", "binary_cross_entropy", "mse"} or callable, default=None
        Of the client, as of `LayerGradient.from_model`.

    Returns
    -------
    dict of str to LayerAudit
        By name: linear layers first, in the order in which they run, then everything else.

    Warns
    -----
    UserWarning
        If the model could not be run on a made-up example: what follows a layer is then not known.

    Examples
    --------
    >>> from sparsedl_fl.simulation import client_gradient, fully_connected
    >>> model = fully_connected(64, width=100, random_state=0)
    >>> batch = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    >>> audits = audit_model(model, client_gradient(model, batch, torch.arange(4)))
    >>> [name for name, audit in audits.items() if audit.inverter is not None and audit.inverter.recovered_.all()]
    ['0', '2', '4', '6']
    >>> sorted(audits["6"].inverter.labels_.tolist())
    [0, 1, 2, 3]
    """
    trace = trace_model(model, example)
    rows = {row.name: row for row in inspect_model(model, trace=trace)}
    if not any(len(row.shape) == 2 for row in rows.values()):
        raise ValueError("the model has no linear layer (torch.nn.Linear, or a product with a matrix of weights)")
    named_gradients(model, gradients)  # raises before any work where these do not belong together
    if layers is not None:
        running = list(dict.fromkeys(use.name for use in trace.layers)) or list(rows)
        rows = {name: rows[name] for name in (pick_layer("layers", layer, running) for layer in layers)}
    audits = {}
    for name, row in rows.items():
        if row.obstacle:
            audits[name] = LayerAudit(name, None, row.obstacle)
        else:
            fitted = GradientInverter(random_state=0) if inverter is None else clone(inverter)
            audits[name] = _attack(name, fitted, model, gradients, trace, loss)
    return audits


def _attack(
    name: str, inverter: GradientInverter, model: nn.Module, gradients: Any, trace: Trace, loss: Any
) -> LayerAudit:
    """Attack one layer, and say what came of it."""
    try:
        with warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always")
            inverter.fit(layer_of_model(LayerGradient, model, gradients, name, trace, loss))
    except ValueError as error:
        return LayerAudit(name, None, str(error))
    # The warning that not all is certified begins with the status and adds advice.
    messages = [inverter.status_, *(str(doubt.message) for doubt in doubts)]
    messages = [text for text in messages if not any(text != other and text in other for other in messages)]
    return LayerAudit(name, inverter, "; ".join(messages))

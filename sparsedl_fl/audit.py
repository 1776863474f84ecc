"""Walk a model and attack each of its layers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from sklearn.base import clone
from torch import nn

from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.models.layers import pick_layer
from sparsedl_fl.inverter import GradientInverter

__all__ = ["LayerAudit", "audit_model"]

_TRANSPARENT = (nn.Identity, nn.Flatten, nn.Dropout)
_ACTIVATIONS = tuple(getattr(nn.modules.activation, name) for name in nn.modules.activation.__all__)


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
) -> dict[str, LayerAudit]:
    """Attack every linear layer that ReLU may follow.

    Parameters
    ----------
    model : torch.nn.Module
        The model at the parameters at which the gradient was taken.
    gradients : sequence of tensors or mapping of name to tensor
        The client's gradient, in the order of ``model.parameters()`` or by name.
    inverter : GradientInverter or None, default=None
        What attacks each layer; a clone is fitted to each. None takes ``GradientInverter(random_state=0)``.
    layers : iterable of int or str, or None, default=None
        Indices among the linear layers, or names; None takes all of them.

    Returns
    -------
    dict of str to LayerAudit
        By name, in the order of the model.

    Examples
    --------
    >>> from sparsedl_fl.simulation import client_gradient, fully_connected
    >>> model = fully_connected(64, width=100, random_state=0)
    >>> batch = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    >>> audits = audit_model(model, client_gradient(model, batch, torch.arange(5)))
    >>> [name for name, audit in audits.items() if audit.inverter is not None and audit.inverter.recovered_.all()]
    ['0', '2', '4']
    >>> audits["6"].reason
    'no ReLU follows: it is the last layer'
    """
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError("the model has no linear layer (torch.nn.Linear)")
    wanted = linear if layers is None else [pick_layer("layers", layer, linear) for layer in layers]
    audits = {}
    for name in wanted:
        obstacle = _obstacle(model, name)
        if obstacle:
            audits[name] = LayerAudit(name, None, obstacle)
            continue
        fitted = GradientInverter(random_state=0) if inverter is None else clone(inverter)
        try:
            with warnings.catch_warnings(record=True) as doubts:
                warnings.simplefilter("always")
                fitted.fit(LayerGradient.from_model(model, gradients, name))
        except ValueError as error:
            audits[name] = LayerAudit(name, None, str(error))
        else:
            # The warning that not all is certified begins with the status and adds advice.
            messages = [fitted.status_, *(str(doubt.message) for doubt in doubts)]
            messages = [text for text in messages if not any(text != other and text in other for other in messages)]
            audits[name] = LayerAudit(name, fitted, "; ".join(messages))
    return audits


def _obstacle(model: nn.Module, name: str) -> str:
    """Say why a layer is out of reach, or nothing. A ReLU that is called as a function cannot be seen from here."""
    leaves = [m for m in model.modules() if not list(m.children()) and not isinstance(m, _TRANSPARENT)]
    layer = model.get_submodule(name)
    position = next(index for index, module in enumerate(leaves) if module is layer)
    if position + 1 == len(leaves):
        return "no ReLU follows: it is the last layer"
    after = leaves[position + 1]
    if isinstance(after, _ACTIVATIONS) and not isinstance(after, nn.ReLU):
        return f"no ReLU follows: {type(after).__name__} does"
    return ""

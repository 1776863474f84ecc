"""The client's own check of an update, for any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.audit import AuditResult, audit_model, out_of_range
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.models import gradients_of_update, plain_names
from sparsedl_fl.models.naming import check_same_tensors, unwrapped
from sparsedl_fl.models.updates import obstacle_of_optimizer

__all__ = ["check_update", "state_of"]

State = Mapping[str, Any] | Sequence[Any]


@neutral_modes(gradients=True)
def check_update(
    model: nn.Module | Callable[[], nn.Module],
    before: State | None,
    after: State,
    *,
    learning_rate: float,
    n_steps: int | None = None,
    momentum: float = 0.0,
    weight_decay: float | None = 0.0,
    optimizer: str = "sgd",
    is_difference: bool = False,
    batch_size: int | None = None,
    example: torch.Tensor | None = None,
    loss: str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    max_effort: float | None = 10.0,
    max_seconds: float | None = None,
    random_state: int = 0,
) -> AuditResult:
    """Say what the server could read from an update, before it leaves.

    Parameters
    ----------
    model : torch.nn.Module or callable
        The model, which is left as it was, or what makes one.
    before, after : mapping of name to tensor or array, or sequence of arrays
        Weights before and after local training; arrays without names are in the order of ``model.state_dict()``.
        ``before`` is None for those that the model has.
    learning_rate : float
        The client's.
    n_steps, momentum, weight_decay, optimizer
        Of the client, as of `sparsedl_fl.models.gradients_of_update`; another optimiser than "sgd" is OUT OF RANGE.
    is_difference : bool, default=False
        Whether ``after`` holds the difference to ``before`` instead.
    batch_size : int or None, default=None
        Records behind the update; None finds it.
    example, loss
        As of `sparsedl_fl.audit.audit_model`.
    max_effort, max_seconds : float or None, default=10 and None
        Budget of the searches, as of `sparsedl_fl.audit.audit_model`; seconds take the place of effort.
    random_state : int, default=0
        Seed.

    Returns
    -------
    AuditResult
        Its ``verdict`` and ``reason`` say what came back.

    Raises
    ------
    ValueError
        If the states are not of this model; the tensor that does not fit is named.

    Examples
    --------
    >>> from sparsedl_fl.simulation import fedavg_update, fully_connected
    >>> model = fully_connected(64, width=100, random_state=0)
    >>> batch = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    >>> before, after = fedavg_update(model, batch, torch.arange(4), learning_rate=0.1)
    >>> str(check_update(model, before, after, learning_rate=0.1, n_steps=1).verdict)
    'RECOVERED'
    """
    inner = _at(model, before)
    told = {"optimizer": optimizer, "n_steps": n_steps, "momentum": momentum or None, "weight_decay": weight_decay}
    if obstacle_of_optimizer(optimizer):
        return out_of_range(inner, obstacle_of_optimizer(optimizer), example, **told)
    parameters = {name: tensor.detach() for name, tensor in inner.named_parameters()}
    ends = state_of(inner, after, "after")
    if is_difference:
        ends = {name: parameters[name] + ends[name] for name in parameters}
    gradients = gradients_of_update(
        parameters, ends, learning_rate, n_steps=n_steps, momentum=momentum, weight_decay=weight_decay
    )
    rate = None if n_steps == 1 else learning_rate
    inverter = GradientInverter(batch_size=batch_size, random_state=random_state)
    limits = {"max_effort": max_effort, "max_seconds": max_seconds}
    return audit_model(inner, gradients, inverter, example=example, loss=loss, learning_rate=rate, **limits)


def _at(model: nn.Module | Callable[[], nn.Module], before: State | None) -> nn.Module:
    """Return a copy of the model without its wrappers, with the weights that a client was given."""
    model = deepcopy(model) if isinstance(model, nn.Module) else model()
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module or return one, got {type(model).__name__}")
    inner = unwrapped(model)
    if before is not None:
        inner.load_state_dict(state_of(inner, before, "before"))
    return inner


def state_of(model: nn.Module, given: State, argument: str) -> dict[str, torch.Tensor]:
    """Return a whole state of a model by plain name; what is not given, such as buffers, stays as the model has it."""
    own = model.state_dict()
    if len(given) == 0:
        raise ValueError(f"{argument} holds no arrays: they travel elsewhere, or secure aggregation masks them, and "
                         "then the sum can be audited")  # fmt: skip
    if not isinstance(given, Mapping):
        arrays = list(given)
        names = next((names for names in (list(own), [n for n, _ in model.named_parameters()])
                      if len(names) == len(arrays)), None)  # fmt: skip
        if names is None:
            raise ValueError(f"{argument} has {len(arrays)} arrays, and the model's state has {len(own)}")
        given = dict(zip(names, arrays, strict=True))
    named = {name: torch.as_tensor(np.asarray(value)) if not isinstance(value, torch.Tensor) else value
             for name, value in plain_names(argument, given).items()}  # fmt: skip
    check_same_tensors(own, named, argument, needed=[name for name, _ in model.named_parameters()])
    return own | {name: tensor.detach().to(own[name].dtype) if not own[name].is_floating_point() else tensor.detach()
                  for name, tensor in named.items()}  # fmt: skip

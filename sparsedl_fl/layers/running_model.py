"""A model that runs from one of its layers on, with that layer's inputs replaced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import nn

from sparsedl_fl.layers.network_tail import double_copy
from sparsedl_fl.tracing.naming import plain_modules, unwrapped
from sparsedl_fl.tracing.tracing import LinearUse, Trace, hooked

__all__ = ["RunFrom", "in_double"]


def in_double(model: nn.Module) -> nn.Module:
    """Return a copy of a model without its wrappers, in double precision and evaluation mode."""
    return double_copy(unwrapped(model)).eval().requires_grad_(True)


class RunFrom:
    """A model that starts at the input of one of its layers.

    Parameters
    ----------
    model : torch.nn.Module
        A copy of the model, of `in_double`.
    use : LinearUse
        The layer, as a run showed it.
    trace : Trace
        That run.

    Raises
    ------
    ValueError
        If the model could not be run, the layer is no module of its own, or it is fed tokens.
    """

    def __init__(self, model: nn.Module, use: LinearUse, trace: Trace) -> None:
        if trace.example is None:
            raise ValueError("the model could not be run")
        if trace.n_uses(use.name) > 1:
            raise ValueError("the layer runs several times, and its inputs do not say which run they belong to")
        if use.rows != 1:
            raise ValueError("the layer is fed tokens, whose order is not known")
        self.model = model
        self.example = trace.example[:1].cpu()
        self.example = self.example.double() if self.example.is_floating_point() else self.example
        self.is_first = use.feeds == "the model's input" and trace.example.is_floating_point()
        self._linear = plain_modules(model, nn.Linear)
        self.layer = self._linear.get(use.name)
        if self.layer is None and not self.is_first:
            raise ValueError(f"the layer {use.name!r} is no torch.nn.Linear that could be fed")

    def __call__(self, inputs: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Return the model's outputs for inputs of the layer, of shape (b, n)."""
        inputs = torch.as_tensor(inputs, dtype=torch.float64)
        if self.is_first:
            return self.model(inputs.reshape(len(inputs), *self.example.shape[1:]))
        with hooked({self.layer: lambda *_: (inputs,)}, before=True):
            return self.model(self.example.expand(len(inputs), *self.example.shape[1:]))

    def fed(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inputs of each linear layer, by name, for those with one row for each input."""
        found: dict[str, np.ndarray] = {}
        with self.watched(found), torch.no_grad():
            self(inputs)
        return {name: rows for name, rows in found.items() if rows.shape[0] == len(inputs) and rows.ndim == 2}

    def watched(self, found: dict[str, np.ndarray]) -> AbstractContextManager[None]:
        """Record the inputs of each linear layer, by name, within a context."""

        def keep(name: str) -> Callable[..., None]:
            return lambda _, given: found.update({name: given[0].detach().flatten(1).numpy()})

        return hooked({module: keep(name) for name, module in self._linear.items()}, before=True)

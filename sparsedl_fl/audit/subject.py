"""What is audited, and what its parts share: each layer with its gradient, and the model run from a layer on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.models import Trace
from sparsedl_fl.models.layers import layer_of_model
from sparsedl_fl.models.running import RunFrom, in_double

__all__ = ["Subject"]


@dataclass(eq=False)
class Subject:
    """A model and the gradient of a client.

    Attributes
    ----------
    model : torch.nn.Module
        The model.
    gradients : dict of str to torch.Tensor
        By plain name.
    trace : Trace
        What a run of the model showed.
    loss : str, callable or None
        Of the client.
    learning_rate : float or None
        Given where the gradients sum up several local steps.
    tables : tuple of str
        Plain names of the parameters whose rows the model's input ids pick.
    given_loss : str, callable or None
        As the caller gave it, which may take targets and no labels.
    """

    model: nn.Module
    gradients: Mapping[str, torch.Tensor]
    trace: Trace
    loss: Any = None
    learning_rate: float | None = None
    tables: tuple[str, ...] = ()
    given_loss: Any = None
    _layers: dict[str, LayerGradient] = field(default_factory=dict, repr=False)

    def layer_gradient(self, name: str) -> LayerGradient:
        """Return a layer with its gradient; raises ``ValueError`` where it has none."""
        if name not in self._layers:
            found = layer_of_model(LayerGradient, self.model, self.gradients, name, self.trace, self.loss)
            self._layers[name] = (
                found if self.learning_rate is None else replace(found, learning_rate=self.learning_rate)
            )
        return self._layers[name]

    def run_from(self, name: str) -> RunFrom:
        """Return the model from a layer on; raises ``ValueError`` where it cannot be run so."""
        return RunFrom(self._in_double, self.trace.use_of(name), self.trace)

    @cached_property
    def _in_double(self) -> nn.Module:
        return in_double(self.model)

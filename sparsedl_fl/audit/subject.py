"""The model and update that are audited, their layers, and whether this machine has memory enough."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedl.arrays import CHUNK_ENTRIES
from sparsedl_fl.audit.completed_update import CompletedUpdate
from sparsedl_fl.layers.given_arrays import LARGE, Shared
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.layers.of_model import layer_of_model
from sparsedl_fl.layers.running_model import RunFrom, in_double
from sparsedl_fl.lowrank.open_columns import Estimates
from sparsedl_fl.tracing.naming import plain_name
from sparsedl_fl.tracing.tracing import LinearUse, Trace
from sparsedl_fl.tracing.uses import transposed_if
from sparsedl_fl.wording import argument

__all__ = ["Subject", "check_room"]

OF_LAYERS, OF_MODEL = 4, 2
"""Memory of an audit beyond model and update, as multiples of the attacked layers and of the model, which is run in
double precision. (Measured: 4.8 times the update in all, for one layer of 50,000 x 1,000.)"""


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
        Loss of the client.
    learning_rate : float or None
        Given where the gradients sum up several local steps.
    tables : tuple of str
        Plain names of the parameters whose rows the model's input ids pick.
    given_loss : str, callable or None
        Loss as the caller gave it, which may take targets instead of labels.
    completed : CompletedUpdate or None
        What is known of gradients that were not sent as they are; None where all were.
    sums : dict of str to torch.Tensor
        In place of a bias gradient that was not sent, by layer: the gradients at its outputs, summed over the batch, as
        another layer showed them.
    """

    model: nn.Module
    gradients: Mapping[str, torch.Tensor]
    trace: Trace
    loss: Any = None
    learning_rate: float | None = None
    tables: tuple[str, ...] = ()
    given_loss: Any = None
    completed: CompletedUpdate | None = None
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    _layers: dict[str, LayerGradient] = field(default_factory=dict, repr=False)

    def layer_gradient(self, name: str, sums: torch.Tensor | None = None) -> LayerGradient:
        """Return a layer with its gradient; raises ``ValueError`` where it has none, or no ``sums`` in place of one."""
        if sums is not None:
            return self._layer(name, sums)
        if name not in self._layers:
            found = self._layer(name, self.sums.get(name))
            if sum(map(_bytes_of, self._layers.values())) + _bytes_of(found) > self._most_bytes:
                self._layers.clear()
            self._layers[name] = found
        return self._layers[name]

    def _layer(self, name: str, sums: torch.Tensor | None) -> LayerGradient:
        use = self.trace.use_of(name)
        sent = self.gradients if use is None else self._sent_of(use)
        if sums is not None and sent.get(use.weight) is not None:
            sums = sums.to(sent[use.weight].device)
        found = layer_of_model(self._made, self.model, sent, name, self.trace, self.loss, sums)
        return found if self.completed is None else self.completed.without_open_units(found, use)

    def weight_gradient(self, use: LinearUse) -> torch.Tensor:
        """Return a layer's weight gradient, (m, n), in double precision; raises ``ValueError`` where it is missing."""
        found = self._sent_of(use).get(use.weight)
        if found is None:
            raise ValueError(f"no gradient of {use.weight!r} was sent")
        return transposed_if(found, use.is_transposed).detach().cpu().double()

    def lacks_bias_gradient(self, use: LinearUse) -> bool:
        """Return whether nothing gives a layer's inputs their scale: no bias has a gradient."""
        return use.norm is None and use.name not in self.sums and self._sent_of(use).get(use.bias) is None

    def _sent_of(self, use: LinearUse) -> Mapping[str, torch.Tensor | None]:
        """Return the gradients that a layer's attack may use; raises ``ValueError`` where its own is not known."""
        return self.gradients if self.completed is None else self.completed.tensors_of(use)

    @property
    def doubt(self) -> str:
        """Why a layer that gives nothing has not resisted; empty where it may have."""
        return "" if self.completed is None else self.completed.doubt

    def estimates_of(self, name: str) -> Estimates | None:
        """Return the estimates of those features of a layer of which a filter left too little."""
        return None if self.completed is None else self.completed.estimates_of(self.trace.use_of(name))

    def _made(self, **parts: Any) -> LayerGradient:
        """Return a layer that shares its large tensors with the model and the update."""
        shared = {
            name: Shared(part)
            for name, part in parts.items()
            if name in LARGE and part is not None and part.numel() > CHUNK_ENTRIES
        }
        return LayerGradient(**{**parts, **shared}, learning_rate=self.learning_rate)

    @cached_property
    def _most_bytes(self) -> int:
        """Bytes of layers that are kept: those of the update, at least a chunk.

        Each layer holds all downstream layers: of a thousand layers that is 16 GB for an update of 16 MB.
        """
        sent = (tensor.nbytes for tensor in self.gradients.values() if tensor is not None)
        return max(sum(sent), 8 * CHUNK_ENTRIES)

    def run_from(self, name: str) -> RunFrom:
        """Return the model from a layer on; raises ``ValueError`` where it cannot be run so."""
        return RunFrom(self.in_double, self.trace.use_of(name), self.trace)

    @cached_property
    def in_double(self) -> nn.Module:
        """The model in double precision and evaluation mode."""
        return in_double(self.model)


def _bytes_of(layer: LayerGradient) -> int:
    """Return the bytes of a layer and its downstream layers."""
    parts = [*vars(layer).values(), *(part for other in layer.layers for part in vars(other).values())]
    arrays = sum(part.nbytes for part in parts if isinstance(part, np.ndarray))
    return arrays + (0 if layer.tail.rest is None else layer.tail.rest.n_bytes)


def check_room(model: nn.Module, layers: list[int | str] | None) -> None:
    """Raise ``ValueError`` where the audit of a model needs more memory than there is.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    layers : list of int or str, or None
        Layers that are attacked, None for all; layers given by number count as the largest ones.
    """
    sizes = {plain_name(name): tensor.nbytes for name, tensor in model.named_parameters()}
    total = attacked = sum(sizes.values())
    if layers is not None:
        named = {plain_name(layer) for layer in layers if isinstance(layer, str)}
        n_numbers = sum(not isinstance(layer, str) for layer in layers)
        attacked = sum(size for name, size in sizes.items() if name.rpartition(".")[0] in named)
        attacked += sum(sorted(sizes.values(), reverse=True)[:n_numbers])
    needed, there = OF_LAYERS * attacked + OF_MODEL * total, _available()
    if there is None or needed <= there:
        return
    what = "name fewer of them" if layers is not None else f"name the layers to attack with {argument('layers')}"
    raise ValueError(
        f"the model is too large for this machine: its update has {total / 1e9:.1f} GB, an audit needs about "
        f"{needed / 1e9:.1f} GB beyond it, and {there / 1e9:.1f} GB are free; {what}, the one nearest to the input "
        "first, or use a machine with more memory"
    )


def _available() -> int | None:
    """Return the bytes of memory that are free, or at least in the machine; None where neither is known."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None

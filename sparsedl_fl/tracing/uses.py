"""The linear layers of a model, as a run shows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn

from sparsedl_fl.activations import Activation

__all__ = ["LinearUse", "Trace", "transposed_if"]

Part = TypeVar("Part", torch.Tensor, torch.Tensor | None)


def transposed_if(tensor: Part, is_transposed: bool) -> Part:
    """Return a matrix, or None where there is none, the other way round where it is stored so."""
    return tensor.T if is_transposed and tensor is not None else tensor


@dataclass
class LinearUse:
    """One run of a linear layer.

    Attributes
    ----------
    name : str
        Name of the layer, the plain name of its weight without ``.weight``.
    weight, bias : str
        Plain names of its parameters; ``bias`` is empty where it has none.
    is_transposed : bool
        Whether the weight is stored as (inputs, outputs).
    activation : Activation or None
        The activation that follows; None where it is none that is known.
    behind : str
        What follows, in words.
    is_read : bool
        Whether anything reads its outputs.
    next_weight : str
        Plain name of the next linear layer's weight, where its input is this layer's activation; else empty.
    next_is_transposed : bool
        Whether that weight is stored as (inputs, outputs).
    norm : nn.Module or None
        Batch normalisation between the layer and its activation.
    rows : int
        Rows of the layer's input for one example: tokens, or one.
    width : int
                Number of its outputs.
    is_last : bool
        Whether its outputs are the model's.
    feeds : str
        What it is fed: "the model's input", "features" or "tokens".
    also : str
        What else uses its weight, such as an embedding; empty where nothing does.
    dropout : float
        Share of its outputs that the client drops before the next layer; zero for none.
    factor : str
        Plain name of the weight of a layer whose input is this layer's output, or a multiple of it, where the two are a
        product of low rank; else empty.
    """

    name: str
    weight: str
    bias: str = ""
    is_transposed: bool = False
    activation: Activation | None = None
    behind: str = ""
    is_read: bool = True
    next_weight: str = ""
    next_is_transposed: bool = False
    norm: nn.BatchNorm1d | None = None
    rows: int = 1
    width: int = 0
    is_last: bool = False
    feeds: str = "features"
    also: str = ""
    dropout: float = 0.0
    factor: str = ""


@dataclass(frozen=True)
class Trace:
    """The linear layers of one run of a model.

    Attributes
    ----------
    layers : list of LinearUse
        Every linear layer, in the order in which they ran; one that ran twice is there twice.
    failure : str
        Why the model could not be run, or empty.
    example : torch.Tensor or None
        The input of the run.
    n_outputs : int
        Numbers that the model returns for each sample; zero where it returns anything but a row of numbers for each.
    """

    layers: list[LinearUse]
    failure: str = ""
    example: torch.Tensor | None = None
    n_outputs: int = 0

    def of_sent(self, sent: set[str]) -> Trace:
        """Return the trace for an update with the gradients of these parameters alone."""
        layers = [use if use.next_weight in sent else replace(use, next_weight="") for use in self.layers]
        return replace(self, layers=layers)

    @property
    def last(self) -> LinearUse | None:
        """The layer whose outputs are the model's, or None."""
        return next((layer for layer in self.layers if layer.is_last), None)

    def use_of(self, name: str) -> LinearUse | None:
        """Return the first run of a layer by name, or None."""
        return next((layer for layer in self.layers if layer.name == name), None)

    def all_of(self, name: str) -> LinearUse | None:
        """Return all runs of a layer by name as one run on the batch of all inputs; None where they differ too much.

        The gradient is the sum over all runs, so that weight and bias have to be the same in each. An activation counts
        only where it follows each run.
        """
        uses = [layer for layer in self.layers if layer.name == name]
        if len(uses) < 2 and not any(use.also for use in uses):
            return uses[0] if uses else None
        first = uses[0]
        if any(use.also or use.norm is not None or use.bias != first.bias or use.is_transposed != first.is_transposed
               for use in uses):  # fmt: skip
            return None
        is_same = all(use.activation == first.activation for use in uses)
        return replace(
            first,
            activation=first.activation if is_same else None,
            behind=" and ".join(dict.fromkeys(use.behind for use in uses)) + f", in {len(uses)} runs",
            next_weight="",
            rows=sum(use.rows for use in uses),
            is_last=False,
            feeds=first.feeds if all(use.feeds == first.feeds for use in uses) else "features",
        )

    def using(self, weight: str) -> LinearUse | None:
        """Return the first run of the layer with a weight, by its name, or None."""
        return next((layer for layer in self.layers if weight and layer.weight == weight), None)

    def n_uses(self, name: str) -> int:
        """Return how often a layer ran."""
        return sum(layer.name == name for layer in self.layers)

"""The front of a model: from its input to the inputs of one of its linear layers, as a function of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import copy, deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sparsedl_fl.layers.running_model import in_double
from sparsedl_fl.propagate.pictures.draws import unit_normal
from sparsedl_fl.propagate.pictures.linearized import Linearized
from sparsedl_fl.tracing.naming import plain_modules, plain_parameters

__all__ = ["Front"]

MIXED = 1e-6
"""Difference between features of a picture alone and in a batch, over their size, above which pictures are mixed."""


class _Reached(Exception):  # noqa: N818
    """The layer is about to run; what follows is not needed."""

    def __init__(self, inputs: torch.Tensor) -> None:
        super().__init__()
        self.inputs = inputs


class _StopAt(TorchFunctionMode):
    """A context in which a linear layer, a module or a functional call with its weight, ends the run."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = weight

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is functional.linear:
            weight = kwargs.get("weight", args[1] if len(args) > 1 else None)
            if weight is self.weight:
                raise _Reached(kwargs.get("input", args[0] if args else None))
        return function(*args, **kwargs)


class Front:
    """The features in front of a linear layer, as a function of the model's input.

    The model itself is run, in evaluation mode, up to that layer: any chain of modules and functional calls will do.

    Parameters
    ----------
    model : torch.nn.Module
        As the client had it. It is copied, in double precision.
    layer : str
        Name of a linear layer that runs once, on one row of features for each picture.
    shape : tuple of int
        Shape of one picture, as the model takes it, without the batch: (3, 32, 32).
    device : torch.device or str, default="cpu"
        Where it runs.

    Attributes
    ----------
    n_pixels, n_features : int
        Numbers of a picture, and of its features.
    parameters : dict of str to torch.nn.Parameter
        Of the front, by plain names: those whose gradients depend on the picture through the features.

    Raises
    ------
    ValueError
        If the model has no such layer, does not take such pictures or mixes those of a batch, or the layer is fed more
        than one row of features for each.
    """

    def __init__(
        self, model: nn.Module, layer: str, shape: tuple[int, ...], device: torch.device | str = "cpu"
    ) -> None:
        self.device = torch.device(device)
        self.model, self.shape = in_double(model).to(self.device), tuple(shape)
        parameters = plain_parameters(self.model)
        self._weight = f"{layer}.weight" if layer else "weight"
        if self._weight not in parameters:
            known = sorted(plain_modules(model, nn.Linear))
            raise ValueError(f"layer must name a linear layer of the model, one of {known}, got {layer!r}")
        self.layer, self.n_pixels = layer, int(torch.Size(self.shape).numel())
        drawn = unit_normal((3, self.n_pixels), 0, self.device)
        self.parameters: dict[str, nn.Parameter] = {}
        features = self(drawn)
        self._check(features, drawn)
        self.n_features = features.shape[1]
        found = torch.autograd.grad(features.sum(), list(parameters.values()), allow_unused=True)
        self.parameters = {
            name: tensor for (name, tensor), used in zip(parameters.items(), found, strict=True) if used is not None
        }
        self.model.requires_grad_(False)

    def _check(self, features: torch.Tensor, drawn: torch.Tensor) -> None:
        if features.ndim != 2 or len(features) != len(drawn):
            raise ValueError(
                f"layer {self.layer!r} is fed {tuple(features.shape)} for {len(drawn)} pictures; it must be one row of "
                "features for each"
            )
        alone = self(drawn[:1])
        if not (alone - features[:1]).abs().max() <= MIXED * features.abs().max():
            raise ValueError(
                "in front of the layer the model mixes the pictures of a batch: features are not of one each"
            )

    def __call__(self, pictures: torch.Tensor, mode: TorchFunctionMode | None = None) -> torch.Tensor:
        """Return the features of pictures of shape (b, n_pixels), of shape (b, n_features).

        They are of the true network, or of what a mode makes of it.
        """
        weight = plain_parameters(self.model)[self._weight]
        try:
            with mode or nullcontext(), _StopAt(weight):
                self.model(pictures.reshape(len(pictures), *self.shape))
        except _Reached as reached:
            return reached.inputs
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise ValueError(f"the model does not take pictures of shape {self.shape}: {error}") from error
        raise ValueError(f"layer {self.layer!r} does not run as a linear layer of the model")

    def linearized(self, pictures: torch.Tensor, mode: TorchFunctionMode | None = None) -> Linearized:
        """Return its derivative at pictures of shape (b, n_pixels)."""
        return Linearized(lambda at: self(at, mode), pictures)

    @contextmanager
    def trainable(self) -> Iterator[dict[str, nn.Parameter]]:
        """Yield its parameters, which require gradients within the context."""
        for tensor in self.parameters.values():
            tensor.requires_grad_(True)
        try:
            yield self.parameters
        finally:
            for tensor in self.parameters.values():
                tensor.requires_grad_(False)

    def to(self, dtype: torch.dtype) -> Front:
        """Return the same in another precision."""
        found = copy(self)
        found.model = deepcopy(self.model).to(dtype)
        parameters = plain_parameters(found.model)
        found.parameters = {name: parameters[name] for name in self.parameters}
        return found

    def sent(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the gradients of its parameters among those that a client sent, by plain names."""
        return {
            name: gradients[name].detach().to(self.device).double()
            for name in self.parameters
            if isinstance(gradients.get(name), torch.Tensor)
        }

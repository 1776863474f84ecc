"""What the server sees of one linear layer: its weights, and the gradient that a client sent.

Which constructor to use
------------------------
- `LayerGradient.from_model` for a torch module and the gradient of its parameters (FedSGD, DP-SGD).
- `LayerGradient.from_update` for the state of a model before and after local training (FedAvg).
- `LayerGradient` itself for arrays you already have.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import InitVar, dataclass, field, replace
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.activations import HEAD, Activation
from sparsedl_fl.layers.blocks import power_of_two, times
from sparsedl_fl.layers.given_arrays import checked_arrays
from sparsedl_fl.layers.network_tail import RestOfNetwork
from sparsedl_fl.layers.next_layers import (
    Head,
    Layer,
    LayerBehind,
    NetworkTail,
    as_given,
    check_activation_given,
    check_downstream,
    following_layers,
)
from sparsedl_fl.layers.of_model import layer_of_model
from sparsedl_fl.layers.updates import gradients_of_update, layer_of_state
from sparsedl_fl.tracing.finite import check_finite, without_non_finite
from sparsedl_fl.tracing.naming import named_gradients
from sparsedl_fl.tracing.tracing import trace_model

__all__ = ["Head", "Layer", "LayerBehind", "LayerGradient", "NetworkTail", "RestOfNetwork"]


@dataclass(frozen=True, eq=False)
class LayerGradient:
    """One linear layer and its activation, ``Z = X W^T + bias``, and the gradient of its parameters.

    Arrays and tensors of any floating type are copied; half precision counts as rounding of known size.

    Parameters
    ----------
    weight : array-like or torch.Tensor of shape (m, n)
        Weights ``W`` at which the gradient was taken: ``m`` outputs, ``n`` inputs.
    bias : array-like or torch.Tensor of shape (m,)
        Bias of the layer.
    weight_grad : array-like or torch.Tensor of shape (m, n)
        The client's gradient ``G = dL/dW``.
    bias_grad : array-like or torch.Tensor of shape (m,)
        The client's gradient ``g = dL/dbias``.
    next_weight_grad : array-like or torch.Tensor of shape (k, m), optional
        Gradient of the weights of the next linear layer, after the activation, where there is one.
    next_weight : array-like or torch.Tensor of shape (k, m), optional
        These weights; they help where inputs have much in common. None takes those of ``behind``.
    learning_rate : float, optional
        Of a FedAvg update: weights changed by ``learning_rate * weight_grad``, and a unit may have been active at the
        initial or the final weights alone.
    activation : str, Activation or None, default="relu"
        What follows the layer, by name ("relu", "relu6", "gelu", ...) or as one of `sparsedl_fl.activations`; None
        where that is not known. "softmax" is a classifier's last layer, followed by cross-entropy.
    behind : sequence of LayerBehind, default=()
        Downstream layers: the next one and those after it, in order, as far as each follows the one before through an
        activation alone; used where ``next_weight_grad`` is given.
    head : Head or None, default=None
        The model's last layer, where it follows the last of ``behind``, or the layer itself, through an activation.
    rest : RestOfNetwork, torch.nn.Module or None, default=None
        The network tail, from the layer's outputs to the loss, the activation first: with smooth activations no other
        gradient is needed, and it shows the labels. A module counts as followed by cross-entropy.
    rows_per_sample : int, default=1
        Inputs of the layer for each sample: the tokens of a text, the patches of a picture. Where the rank is no
        multiple of it, several were recovered as one, or the loss does not depend on all; an expected error then
        includes the distance of near-duplicates. `from_model` takes it from its example.

    Attributes
    ----------
    layers : tuple of Layer
        The downstream layers, the next one first, from ``next_weight_grad``, ``next_weight`` and ``behind``.
    tail : NetworkTail
        From ``rest`` and ``head``.

    Raises
    ------
    ValueError
        If a shape does not fit, an entry is NaN or infinite (a next layer's gradient then counts as missing, with a
        warning), the gradient is all zeros, the bias is missing, or tensors are on different devices.
    TypeError
        If an array is not of a floating type.

    References
    ----------
    SPEAR (2024), Theorems 3.1 and 3.4: ``G = D X^T`` and ``g = D 1``.
    """

    weight: Any
    bias: Any
    weight_grad: Any
    bias_grad: Any
    next_weight_grad: InitVar[Any] = None
    learning_rate: float | None = None
    activation: str | Activation | None = "relu"
    next_weight: InitVar[Any] = None
    behind: InitVar[Sequence[LayerBehind]] = ()
    rest: InitVar[RestOfNetwork | nn.Module | None] = None
    rows_per_sample: int = 1
    head: InitVar[Head | None] = None
    layers: tuple[Layer, ...] = field(init=False)
    tail: NetworkTail = field(init=False)
    constant_input: ClassVar[float | None] = None
    """Value of the last input, where that is the one of the bias (see `sparsedl_fl.layers.bias_as_input`)."""

    @neutral_modes(gradients=True)
    def __post_init__(
        self,
        next_weight_grad: Any,
        next_weight: Any,
        behind: Sequence[LayerBehind],
        rest: RestOfNetwork | nn.Module | None,
        head: Head | None,
    ) -> None:
        check_activation_given(self.activation)
        if self.learning_rate is not None and not (np.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate must be a positive number, got {self.learning_rate!r}")
        if not (isinstance(self.rows_per_sample, Integral) and self.rows_per_sample >= 1):
            raise ValueError(f"rows_per_sample must be a positive integer, got {self.rows_per_sample!r}")
        own = {name: getattr(self, name) for name in ("weight", "bias", "weight_grad", "bias_grad")}
        arrays = checked_arrays({**own, "next_weight_grad": next_weight_grad, "next_weight": next_weight})
        following = arrays.pop("next_weight_grad", None)
        if following is not None and not np.isfinite(following).all():
            warnings.warn(
                "next_weight_grad contains NaN or infinity and counts as missing, with the layers after it",
                UserWarning,
                stacklevel=4,
            )
            following, behind, head = None, (), None
        check_downstream(len(arrays["weight"]), behind, head)
        if rest is None and self.activation == HEAD.name:
            rest = RestOfNetwork.of_head()
        elif isinstance(rest, nn.Module):
            rest = RestOfNetwork(rest)
        if rest is not None:
            rest.check(len(arrays["weight"]))
        layers = following_layers(following, arrays.pop("next_weight", None), behind)
        vars(self).update(arrays, layers=layers, tail=NetworkTail(rest, head))

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs of the layer, ``(m, n)``."""
        return self.weight.shape

    @property
    def next_layer(self) -> Layer:
        """The next layer; one without any array where none is known."""
        return self.layers[0] if self.layers else Layer(None)

    def in_range(self) -> tuple[LayerGradient, float]:
        """Return the gradient times the power of two that takes its largest entry into [1/2, 1), and that factor.

        It is exact: results are the same to the last bit at any scale of the gradient.
        """
        exponent = min(-power_of_two(self.weight_grad), 1022)
        if exponent == 0:
            return self, 1.0
        scaled = copy(self)  # nothing that was checked changes
        layers = tuple(
            layer if layer.weight_grad is None else replace(layer, weight_grad=np.ldexp(layer.weight_grad, exponent))
            for layer in self.layers
        )
        gradients = {name: np.ldexp(getattr(self, name), exponent) for name in ("weight_grad", "bias_grad")}
        vars(scaled).update(gradients, layers=layers)
        if self.learning_rate is not None:
            vars(scaled).update(learning_rate=float(np.ldexp(self.learning_rate, -exponent)))
        return scaled, float(np.ldexp(1.0, exponent))

    def in_units(self, units: np.ndarray) -> LayerGradient:
        """Return the layer with outputs ``units * z``, for units of shape (m,); the network after it takes ``z``."""
        return replace(
            self,
            weight=self.weight * units[:, None],
            bias=self.bias * units,
            weight_grad=self.weight_grad / units[:, None],
            bias_grad=self.bias_grad / units,
            rest=None if self.tail.rest is None else self.tail.rest.in_units(torch.from_numpy(units)),
        )

    @property
    def is_update(self) -> bool:
        """Whether this is a FedAvg update: the initial and the final weights of the client are known."""
        return self.learning_rate is not None

    def preactivations(self, inputs: np.ndarray) -> np.ndarray:
        """Return ``Z = W X + bias`` of shape (m, b), at the initial weights, for inputs of shape (b, n)."""
        return times(self.weight, inputs.T) + self.bias[:, None]

    @classmethod
    @neutral_modes(gradients=True)
    def from_model(
        cls,
        model: nn.Module,
        gradients: Sequence[torch.Tensor] | Mapping[str, torch.Tensor],
        layer: int | str = 0,
        example: torch.Tensor | None = None,
        loss: str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    ) -> LayerGradient:
        """Take one linear layer of a torch module.

        The model is run once on an example, to see in which order its layers run, what follows each, and where its
        activation goes next. Batch normalisation in evaluation mode between the layer and its activation is folded into
        the weights.

        Parameters
        ----------
        model : torch.nn.Module
            The model at the parameters at which the gradient was taken.
        gradients : sequence of tensors or mapping of name to tensor
            In the order of ``model.parameters()``, or by the names of ``model.named_parameters()``.
        layer : int or str, default=0
            Index among the linear layers of the model in the order in which they run, or the layer's name.
        example : torch.Tensor or None, default=None
            An input of the model, any numbers of the right shape (with as many tokens as the client's samples have,
            see ``rows_per_sample``); None makes one up.
        loss : {"cross_entropy", "binary_cross_entropy", "mse"} or callable, default=None
            Of the client, ``loss(outputs, labels)``; None is cross-entropy, the binary one for a single output. With a
            wrong one less is certified, and nothing wrongly.

        Raises
        ------
        TypeError
            If the model or the gradients are not what they should be.
        ValueError
            If the layer is not there, its weight is computed from other parameters, or a gradient is missing.

        Warns
        -----
        UserWarning
            If the model could not be run: what follows the layer is then not known.
        """
        named = without_non_finite(named_gradients(model, gradients), stacklevel=4)
        check_finite(model)
        return layer_of_model(cls, model, named, layer, trace_model(model, example), loss)

    @classmethod
    @neutral_modes(gradients=True)
    def from_update(
        cls,
        before: Mapping[str, torch.Tensor],
        after: Mapping[str, torch.Tensor],
        learning_rate: float,
        layer: int | str = 0,
        *,
        n_steps: int | None = None,
        momentum: float = 0.0,
        weight_decay: float | None = 0.0,
    ) -> LayerGradient:
        """Take one linear layer of a FedAvg update: ``G = (W0 - W_E) / learning_rate`` sums the local gradients.

        ``next_weight_grad`` is taken from the state where a linear layer with as many inputs comes next. A state does
        not say what is between; if that is not a ReLU alone, set it to None with `dataclasses.replace`.

        Parameters
        ----------
        before, after : mapping of name to tensor
            State of the model before and after local training (``model.state_dict()``).
        learning_rate : float
            The client's learning rate.
        layer : int or str, default=0
            Index among the two-dimensional weights of the state, or the layer's name.
        n_steps, momentum, weight_decay
            Of the client, as of `sparsedl_fl.models.gradients_of_update`. One step counts as a gradient.

        References
        ----------
        SPEAR (2024), Appendix F.
        """
        client: dict[str, Any] = {"n_steps": n_steps, "momentum": momentum, "weight_decay": weight_decay}
        sent = gradients_of_update(before, after, learning_rate, **client)
        tensors: dict[str, Any] = layer_of_state(before, sent, layer)
        return cls(**tensors, learning_rate=None if n_steps == 1 else learning_rate)


# Set here, since in the class they would be defaults of its constructor; `dataclasses.replace` reads them.
for _name, _part in {
    "next_weight_grad": lambda given: given.next_layer.weight_grad,
    "next_weight": lambda given: given.next_layer.weight,
    "behind": lambda given: as_given(given.layers),
    "rest": lambda given: given.tail.rest,
    "head": lambda given: given.tail.head,
}.items():
    setattr(LayerGradient, _name, property(_part))

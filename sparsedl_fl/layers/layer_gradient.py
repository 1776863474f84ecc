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
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from sparsedl.process import neutral_modes
from sparsedl_fl.activations import HEAD, Activation
from sparsedl_fl.layers.blocks import power_of_two, times
from sparsedl_fl.layers.network_tail import RestOfNetwork
from sparsedl_fl.layers.next_layers import Head, LayerBehind, as_float_array, check_activation_given, check_chain
from sparsedl_fl.layers.of_model import layer_of_model
from sparsedl_fl.layers.updates import tensors_of_update
from sparsedl_fl.tracing.finite import check_finite, without_non_finite
from sparsedl_fl.tracing.naming import named_gradients
from sparsedl_fl.tracing.tracing import trace_model

__all__ = ["Head", "LayerBehind", "LayerGradient", "RestOfNetwork"]

_SETTINGS = ("learning_rate", "activation", "behind", "head", "rest", "rows_per_sample", "constant_input")


@dataclass(frozen=True, eq=False)
class LayerGradient:
    """One linear layer and its activation, ``Z = X W^T + bias``, and the gradient of its parameters.

    Arrays and tensors of any floating type are welcome; half precision counts as rounding of known size. They are
    copied; ``weight`` and ``weight_grad`` stay in single precision where they come in it, since they may be large, and
    everything is computed in float64.

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
        Gradient of the weights of the linear layer behind the activation, where there is one.
    next_weight : array-like or torch.Tensor of shape (k, m), optional
        Those weights: where inputs have much in common, they say what zeros leave open.
    learning_rate : float, optional
        Given for a FedAvg update: the client's weights moved from ``weight`` to ``weight - learning_rate *
        weight_grad``, and a unit may have been active at either end.
    activation : str, Activation or None, default="relu"
        What follows the layer, by name ("relu", "relu6", "gelu", ...) or as one of `sparsedl_fl.activations`; None
        where that is not known. "softmax" is a classifier's last layer with cross-entropy behind it.
    behind : sequence of LayerBehind, default=()
        The next layer and those behind it, one after the other, as far as each follows the one before through an
        activation alone; used where ``next_weight_grad`` is given.
    head : Head or None, default=None
        The model's last layer, where it follows the last of ``behind``, or the layer itself, through an activation.
    rest : RestOfNetwork, torch.nn.Module or None, default=None
        Everything between the layer's outputs and the loss, the activation first: behind smooth activations no other
        gradient is needed, and it shows the labels. A module counts as followed by cross-entropy.
    rows_per_sample : int, default=1
        Inputs that each sample of the batch makes in the layer: the tokens of a text, the patches of a picture. Where
        the rank is no multiple of it, several of them came back as one, or the loss does not see them all, and an
        expected error holds how far apart several may lie. `from_model` takes it from its example.

    Raises
    ------
    ValueError
        If a shape does not fit, an entry is NaN or infinite, the gradient is all zeros, the bias is missing, or the
        tensors are on different devices. (A next layer's gradient with NaN or infinity counts as missing, and a warning
        says so.)
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
    next_weight_grad: Any = None
    learning_rate: float | None = None
    activation: str | Activation | None = "relu"
    next_weight: Any = None
    behind: Sequence[LayerBehind] = ()
    rest: RestOfNetwork | nn.Module | None = None
    rows_per_sample: int = 1
    head: Head | None = None
    constant_input: ClassVar[float | None] = None
    """Value of the last input, where that is the one of the bias (see `sparsedl_fl.layers.bias_as_input`)."""

    @neutral_modes(gradients=True)
    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _SETTINGS}
        check_activation_given(self.activation)
        if self.learning_rate is not None and not (np.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate must be a positive number, got {self.learning_rate!r}")
        if not (isinstance(self.rows_per_sample, Integral) and self.rows_per_sample >= 1):
            raise ValueError(f"rows_per_sample must be a positive integer, got {self.rows_per_sample!r}")
        for name in ("bias", "bias_grad"):
            if given[name] is None:
                raise ValueError(f"{name} is missing: the scale of each input comes from the bias gradient (Thm 3.5)")
        _check_devices(given)
        arrays = {name: as_float_array(name, value) for name, value in given.items() if value is not None}
        weight = arrays["weight"]
        if weight.ndim != 2 or 0 in weight.shape:
            raise ValueError(f"weight must have shape (outputs, inputs), both positive, got {weight.shape}")
        m, n = weight.shape
        expected = {"bias": (m,), "weight_grad": (m, n), "bias_grad": (m,)}
        for name, shape in expected.items():
            if arrays[name].shape != shape:
                raise ValueError(f"{name} must have shape {shape} to go with weight {(m, n)}, got {arrays[name].shape}")
        following = arrays.get("next_weight_grad")
        if following is not None and (following.ndim != 2 or following.shape[1] != m):
            raise ValueError(f"next_weight_grad must have shape (outputs, {m}), got {following.shape}")
        behind = arrays.get("next_weight")
        if behind is not None and behind.shape[1:] != (m,):
            raise ValueError(f"next_weight must have shape (outputs, {m}), got {behind.shape}")
        if behind is not None and following is not None and behind.shape != following.shape:
            raise ValueError(
                f"next_weight must have the shape of next_weight_grad {following.shape}, got {behind.shape}"
            )
        for name, array in list(arrays.items()):
            if np.isfinite(array).all():
                continue
            if name != "next_weight_grad":
                raise ValueError(f"{name} contains NaN or infinity: a layer needs all of it")
            warnings.warn(
                "next_weight_grad contains NaN or infinity and counts as missing, with what lies behind",
                UserWarning,
                stacklevel=4,
            )
            del arrays[name]
            for other in ("next_weight_grad", "head"):
                object.__setattr__(self, other, None)
            object.__setattr__(self, "behind", ())
        if not arrays["weight_grad"].any():
            raise ValueError("weight_grad is all zeros: the batch was empty, has no loss, or the layer is dead")
        for name, array in arrays.items():
            object.__setattr__(self, name, array)
        check_chain(m, self.behind, self.head)
        if self.rest is None and self.activation == HEAD.name:
            object.__setattr__(self, "rest", RestOfNetwork.of_head())
        elif isinstance(self.rest, nn.Module):
            object.__setattr__(self, "rest", RestOfNetwork(self.rest))
        if self.rest is not None:
            self.rest.check(m)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs of the layer, ``(m, n)``."""
        return self.weight.shape

    def in_range(self) -> tuple[LayerGradient, float]:
        """Return the gradient times the power of two that takes its largest entry into [1/2, 1), and that factor.

        It is exact: whatever is computed of the gradient is the same to the last bit at any scale it was sent at.
        """
        exponent = min(-power_of_two(self.weight_grad), 1022)
        if exponent == 0:
            return self, 1.0
        scaled = copy(self)  # nothing that was checked changes
        for name in ("weight_grad", "bias_grad", "next_weight_grad"):
            given = getattr(self, name)
            object.__setattr__(scaled, name, None if given is None else np.ldexp(given, exponent))
        object.__setattr__(scaled, "behind", [layer.scaled(exponent) for layer in self.behind])
        if self.learning_rate is not None:
            object.__setattr__(scaled, "learning_rate", float(np.ldexp(self.learning_rate, -exponent)))
        return scaled, float(np.ldexp(1.0, exponent))

    def in_units(self, units: np.ndarray) -> LayerGradient:
        """Return the same layer with outputs ``units * z``, for units of shape (m,); what lies behind takes ``z``."""
        return replace(
            self,
            weight=self.weight * units[:, None],
            bias=self.bias * units,
            weight_grad=self.weight_grad / units[:, None],
            bias_grad=self.bias_grad / units,
            rest=None if self.rest is None else self.rest.in_units(torch.from_numpy(units)),
        )

    @property
    def is_update(self) -> bool:
        """Whether this is a FedAvg update: the client's weights moved, and both ends of the way are known."""
        return self.learning_rate is not None

    def preactivations(self, inputs: np.ndarray) -> np.ndarray:
        """Return ``Z = W X + bias`` of shape (m, b), at the weights sent out, for inputs of shape (b, n)."""
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
            Of the client, ``loss(outputs, labels)``; None is cross-entropy, the binary one for a single output. A wrong
            one costs time and never the truth.

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

        ``next_weight_grad`` is filled where the state goes on with a linear layer of as many inputs. A state does not
        say what lies between; if that is not a ReLU alone, set it to None with `dataclasses.replace`.

        Parameters
        ----------
        before, after : mapping of name to tensor
            State of the model before and after local training (``model.state_dict()``).
        learning_rate : float
            The client's learning rate.
        layer : int or str, default=0
            Index among the two-dimensional weights of the state, or the layer's name.
        n_steps, momentum, weight_decay
            Of the client, as of `sparsedl_fl.models.gradients_of_update`. One step counts as a gradient: no unit
            switches on the way.

        References
        ----------
        SPEAR (2024), Appendix F.
        """
        tensors = tensors_of_update(before, after, learning_rate, layer, n_steps, momentum, weight_decay)
        return cls(**tensors, learning_rate=None if n_steps == 1 else learning_rate)


def _check_devices(given: Mapping[str, Any]) -> None:
    devices = {name: str(value.device) for name, value in given.items() if isinstance(value, torch.Tensor)}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"all tensors must be on one device, got {listed}")
    if "meta" in devices.values():
        raise ValueError("the tensors are on the device 'meta' and hold no data; move the model to a real device")

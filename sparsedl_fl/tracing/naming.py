"""Names of parameters without prefixes of wrappers, and gradients by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

__all__ = [
    "check_same_tensors",
    "named_gradients",
    "plain_modules",
    "plain_name",
    "plain_names",
    "plain_parameters",
    "unwrapped",
    "with_names_of",
]

Value = TypeVar("Value")

WRAPPERS = ("module", "_orig_mod", "_module", "_fsdp_wrapped_module")
"""Prefixes that DataParallel, torch.compile, Opacus and FSDP add to a parameter's name."""

IN_ADAPTERS = re.compile(r"(?<=\.lora_[A-Z])\.default(?=\.|$)|\.modules_to_save\.default(?=\.|$)")
"""The name of PEFT's first adapter in that of a parameter; `get_peft_model_state_dict` leaves it out."""


def plain_name(name: str) -> str:
    """Return a parameter's name without prefixes of wrappers.

    Examples
    --------
    >>> plain_name("_orig_mod.module.fc1.weight")
    'fc1.weight'
    """
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in WRAPPERS:
        parts = parts[1:]
    return ".".join(parts)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return a model without its wrappers."""
    while True:
        inner = next((model._modules[name] for name in WRAPPERS if model._modules.get(name) is not None), None)
        if inner is None or len(model._modules) > 1:
            return model
        model = inner


def plain_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return a model's parameters by plain name."""
    return {plain_name(name): tensor for name, tensor in model.named_parameters()}


def plain_modules(model: nn.Module, kind: type[nn.Module] = nn.Module) -> dict[str, nn.Module]:
    """Return a model's modules of one class by plain name; the model itself is called ""."""
    return {
        plain_name(f"{name}.x")[:-2] if name else "": module
        for name, module in model.named_modules()
        if isinstance(module, kind)
    }


def with_names_of(own: Collection[str], given: Mapping[str, Value]) -> dict[str, Value]:
    """Return a mapping with the names of a model where it has those of PEFT's files, which leave the adapter's out.

    Examples
    --------
    >>> with_names_of(["fc.lora_A.default.weight", "head.weight"], {"fc.lora_A.weight": 1, "head.weight": 2})
    {'fc.lora_A.default.weight': 1, 'head.weight': 2}
    """
    full = {IN_ADAPTERS.sub("", name): name for name in own}
    return {name if name in own else full.get(name, name): value for name, value in given.items()}


def check_same_tensors(
    expected: Mapping[str, torch.Tensor],
    given: Mapping[str, torch.Tensor],
    what: str,
    *,
    needed: Iterable[str] | None = None,
) -> None:
    """Raise ``ValueError`` that names the first tensor which is not the model's: unknown, missing, or reshaped.

    Parameters
    ----------
    expected, given : mapping of name to tensor
        The model's tensors, and those to check, by plain name.
    what : str
        Name of the given tensors, for the message.
    needed : iterable of str or None, default=None
        Names that may not be missing; None for all of the model's.
    """
    strange = next((name for name in given if name not in expected), None)
    missing = next((name for name in (expected if needed is None else needed) if name not in given), None)
    if strange is not None:
        raise ValueError(f"{what} has a tensor {strange!r} that the model lacks: they are not of the same model")
    if missing is not None:
        raise ValueError(f"{what} lacks the tensor {missing!r} of the model: they are not of the same model")
    for name, tensor in given.items():
        if tuple(tensor.shape) != tuple(expected[name].shape):
            raise ValueError(
                f"{what} has {name!r} of shape {tuple(tensor.shape)}, and the model {tuple(expected[name].shape)}: "
                "they are not of the same model"
            )


def plain_names(argument: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping by plain names, after checking that it is one of names to tensors."""
    if not isinstance(tensors, Mapping):
        hint = ": pass its state_dict()" if isinstance(tensors, nn.Module) else ""
        raise TypeError(f"{argument} must map parameter names to tensors, got {type(tensors).__name__}{hint}")
    wrong = next((name for name in tensors if not isinstance(name, str)), None)
    if wrong is not None:
        raise TypeError(f"{argument} must map parameter names to tensors; {wrong!r} is no name")
    return {plain_name(name): tensor for name, tensor in tensors.items()}


def named_gradients(
    model: nn.Module, gradients: Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return gradients by the plain names of a model's parameters.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    gradients : sequence of tensors or mapping of name to tensor
        In the order of ``model.parameters()``, of those that require a gradient, or by name. A wrapper's prefix
        (``module.``, ``_orig_mod.``) may be on either side.

    Raises
    ------
    TypeError
        If the model is no module or the gradients are no tensors.
    ValueError
        If the gradients are not as many as the parameters, or none was computed.
    """
    if not isinstance(model, nn.Module):
        hint = "; from_update takes states" if isinstance(model, Mapping) else ""
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}{hint}")
    if isinstance(gradients, nn.Module):
        raise TypeError("gradients must be tensors, got a module: pass [p.grad for p in model.parameters()]")
    parameters = plain_parameters(model)
    if not isinstance(gradients, Mapping):
        gradients = list(gradients)
        trainable = [name for name, tensor in parameters.items() if tensor.requires_grad]
        names = next((names for names in (list(parameters), trainable) if len(names) == len(gradients)), None)
        if names is None:
            raise ValueError(f"gradients has {len(gradients)} tensors, the model has {len(parameters)} parameters")
        gradients = dict(zip(names, gradients, strict=True))
    named = with_names_of(parameters, plain_names("gradients", gradients))
    if not named:
        raise ValueError("gradients is empty: the client sent nothing")
    if all(tensor is None for tensor in named.values()):
        raise ValueError("every gradient is None: call loss.backward() before reading them")
    for name, tensor in named.items():
        if name in parameters and tensor is not None and tuple(tensor.shape) != tuple(parameters[name].shape):
            raise ValueError(
                f"the gradient of {name!r} has shape {tuple(tensor.shape)} and the parameter "
                f"{tuple(parameters[name].shape)}: they are not of the same model"
            )
    return named

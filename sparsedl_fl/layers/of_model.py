"""One linear layer of a model, with its gradient, as the constructor of a `LayerGradient` takes it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from sparsedl_fl.activations import HEAD, KNOWN, Activation, Identity
from sparsedl_fl.layers.losses import usable_loss
from sparsedl_fl.layers.next_layers import Head, LayerBehind
from sparsedl_fl.layers.tail_of_model import rest_of_model
from sparsedl_fl.tracing.naming import named_gradients, plain_modules, plain_name, plain_parameters
from sparsedl_fl.tracing.tracing import LinearUse, Trace, mixing
from sparsedl_fl.tracing.uses import transposed_if
from sparsedl_fl.wording import argument_with, pass_example

__all__ = ["NO_SUM", "get_tensor", "layer_of_model", "passes_on", "pick_layer"]

Layer = TypeVar("Layer")

MOST_DOWNSTREAM = 8
"""Largest number of downstream layers that are used: each adds equations, and none of the networks measured had more
than five. With a thousand layers one step of a search would take minutes."""

NO_SUM = (
    "its weight is also that of an embedding, or it runs several times with other biases, a normalisation or its "
    "weight transposed: its gradient is a sum over all uses, which this attack does not separate"
)
"""Why a layer is out of reach whose runs do not form one batch."""


def pick_layer(what: str, wanted: int | str, names: list[str]) -> str:
    """Return the name of a layer given by index or by name, or raise ``ValueError`` that lists the names."""
    if isinstance(wanted, str) and wanted in names:
        return wanted
    if isinstance(wanted, int) and not isinstance(wanted, bool) and -len(names) <= wanted < len(names):
        return names[wanted]
    raise ValueError(f"{argument_with(what, wanted)} is not one of the {len(names)} linear layers {names}")


def get_tensor(argument: str, mapping: Mapping[str, torch.Tensor], key: str) -> torch.Tensor:
    """Return a tensor by name, or raise ``ValueError`` that lists what there is."""
    if mapping.get(key) is None:
        what = "None (frozen, unused by the loss, or spoilt by NaN or infinity)" if key in mapping else "no tensor"
        raise ValueError(f"{argument} has {what} for {key!r}; it has {list(mapping)}")
    return mapping[key]


def layer_of_model(
    make: Callable[..., Layer],
    model: nn.Module,
    gradients: Any,
    layer: int | str,
    trace: Trace,
    loss: Any = None,
    sums: torch.Tensor | None = None,
) -> Layer:
    """Return one linear layer of a model with its gradient; see `LayerGradient.from_model`.

    ``sums`` stands for the bias gradient of a layer without one: the gradients at its outputs, summed over the batch.
    """
    named = named_gradients(model, gradients)
    use = _pick_use(model, layer, trace)
    loss = usable_loss(loss, trace.n_outputs)
    parameters = plain_parameters(model)
    if trace.n_uses(use.name) > 1 or use.also:
        found = trace.all_of(use.name)
        if found is None:
            raise ValueError(f"the layer {use.name!r}: {NO_SUM}")
        use = found
    if use.norm is not None and use.norm.training:
        raise ValueError(mixing())
    tensors = parameters[use.weight], get_tensor("gradients", named, use.weight)
    weight, weight_grad = (transposed_if(tensor, use.is_transposed) for tensor in tensors)
    bias: torch.Tensor | None = parameters.get(use.bias)
    bias_grad = named.get(use.bias) if sums is None else sums
    if bias is None and sums is not None:
        bias = torch.zeros_like(sums)
    if bias is not None and bias_grad is None and use.norm is None:
        raise ValueError(
            f"gradients has no tensor for {use.bias!r}: without the bias gradient (is the bias frozen, or spoilt by "
            "NaN or infinity?) the scale of each input is not known (Thm 3.5); audit_model searches for it by the "
            "next layer's gradient"
        )
    next_grad = transposed_if(named.get(use.next_weight), use.next_is_transposed)
    next_weight = transposed_if(parameters.get(use.next_weight), use.next_is_transposed)
    arrays = {"weight": weight, "bias": bias, "weight_grad": weight_grad, "bias_grad": bias_grad}
    if use.norm is not None:
        arrays = _folded(arrays, model, use.norm, named)
    downstream, last = _downstream_layers(use, trace, parameters, named) if next_grad is not None else ([], None)
    whole_tail = rest_of_model(model, use, trace, loss)
    return make(
        **arrays,
        next_weight_grad=next_grad,
        next_weight=next_weight,
        activation=_follows(use, loss, whole_tail is not None),
        behind=downstream,
        head=None if last is None else _head(model, last, trace, parameters, loss),
        rest=whole_tail,
        rows_per_sample=use.rows,
    )


def _follows(use: LinearUse, loss: Any, has_tail: bool) -> str | Activation | None:
    """Return the activation of a layer, by name where it has no parameters of its own."""
    if use.is_last:
        return HEAD.name if loss in (None, "cross_entropy") or not isinstance(loss, str) else Identity()
    found = use.activation
    if found is None and has_tail:
        return Identity()  # what follows is no activation, and the tail includes it
    return found.name if found is not None and KNOWN.get(found.name) == found else found


def passes_on(use: LinearUse, trace: Trace) -> bool:
    """Return whether a layer ran once and is followed by an activation without normalisation."""
    return use.activation is not None and use.norm is None and trace.n_uses(use.name) == 1


def _downstream_layers(
    use: LinearUse, trace: Trace, parameters: dict[str, Any], named: dict[str, Any]
) -> tuple[list[LayerBehind], LinearUse | None]:
    """Return the layers after the next, as far as each follows the one before through an activation alone and ran once.

    Also returns the layer after these, where there is one.
    """
    found: list[LayerBehind] = []
    current = trace.using(use.next_weight)
    while (
        current is not None
        and len(found) < MOST_DOWNSTREAM
        and passes_on(current, trace)
        and named.get(current.next_weight) is not None
    ):
        weight = transposed_if(parameters[current.weight], current.is_transposed)
        gradient = transposed_if(named[current.next_weight], current.next_is_transposed)
        found.append(LayerBehind(weight, parameters.get(current.bias), current.activation, gradient))
        current = trace.using(current.next_weight)
    return found, None if len(found) == MOST_DOWNSTREAM else current


def _head(model: nn.Module, use: LinearUse, trace: Trace, parameters: dict[str, Any], loss: Any) -> Head | None:
    """Return a layer as a head where it is the model's last, else None."""
    if not use.is_last or use.norm is not None or trace.n_uses(use.name) > 1:
        return None
    tail, weight = rest_of_model(model, use, trace, loss), parameters[use.weight]
    if tail is None:
        return None
    return Head(transposed_if(weight, use.is_transposed), parameters.get(use.bias), tail)


def _pick_use(model: nn.Module, layer: int | str, trace: Trace) -> LinearUse:
    """Return the layer by index in the order of running, or by name."""
    linear = plain_modules(model, nn.Linear)
    if isinstance(layer, str):
        layer = plain_name(layer)
        module = linear.get(layer)
        if module is not None and (hasattr(module, "parametrizations") or hasattr(module, "weight_g")):
            raise ValueError(
                f"the weight of {layer!r} is computed from other parameters (weight or spectral normalisation): the "
                "gradient of these is not the gradient of a weight; remove the parametrisation first"
            )
    if trace.failure:
        warnings.warn(
            f"the model could not be run on a made-up input ({trace.failure}), so that what follows the layer is not "
            f"known, and layers are counted in the order of declaration: {pass_example()}",
            UserWarning,
            stacklevel=5,
        )
        name = pick_layer("layer", layer, list(linear))
        prefix = f"{name}." if name else ""
        return LinearUse(name, f"{prefix}weight", f"{prefix}bias" if linear[name].bias is not None else "")
    names = list(dict.fromkeys(use.name for use in trace.layers))
    if not names:
        raise ValueError("the model has no linear layer that runs on the example with a weight of its own")
    return trace.use_of(pick_layer("layer", layer, names))


def _folded(arrays: dict[str, Any], model: nn.Module, norm: nn.BatchNorm1d, named: dict[str, Any]) -> dict[str, Any]:
    """Fold batch normalisation in evaluation mode into a layer: ``a (W x + b - mean) + shift``, gradient over ``a``.

    The gradient of the shift is that of the bias, so that the layer needs no bias of its own.
    """
    name = next(plain_name(f"{key}.bias") for key, module in model.named_modules() if module is norm)
    slope = 1 / (norm.running_var.double() + norm.eps).sqrt()
    shift = torch.zeros_like(slope)
    if norm.weight is not None:
        slope, shift = slope * norm.weight.detach().double(), norm.bias.detach().double()
    if not slope.all():
        raise ValueError(
            "a unit's batch normalisation has the weight zero, so that its outputs do not depend on the input"
        )
    bias = torch.zeros_like(slope) if arrays["bias"] is None else arrays["bias"].detach().double()
    bias_grad = named.get(name)
    if bias_grad is None and arrays["bias_grad"] is not None:
        bias_grad = arrays["bias_grad"].double() / slope
    return {
        "weight": slope[:, None] * arrays["weight"].detach().double(),
        "bias": slope * (bias - norm.running_mean.double()) + shift,
        "weight_grad": arrays["weight_grad"].double() / slope[:, None],
        "bias_grad": bias_grad,
    }

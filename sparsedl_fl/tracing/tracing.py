"""Run a model once on an example, and find its linear layers by comparing numbers, not by the order of modules.

Every operation of the forward pass is recorded. A linear layer is a product with a two-dimensional parameter, whatever
module computes it; its activation is the first tensor that equals a known function of its output; and the next linear
layer is one whose input equals that tensor, up to its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from sparsedl.process import neutral_modes
from sparsedl_fl.tracing.example_inputs import made_up_examples
from sparsedl_fl.tracing.following import find_factor, find_next, follow
from sparsedl_fl.tracing.naming import plain_name
from sparsedl_fl.tracing.recording import Call, Dropouts, Recorder, readers_of
from sparsedl_fl.tracing.uses import LinearUse, Trace
from sparsedl_fl.wording import argument, first_line, is_option

__all__ = ["LinearUse", "Trace", "hooked", "in_evaluation", "mixing", "product_of", "trace_model"]

PRODUCTS = {"addmm": (1, 2), "mm": (0, 1), "linear": (0, 1), "mv": (1, 0), "addmv": (2, 1), "bmm": (0, 1)}
"""Positions of input and weight among the arguments of a product."""

OTHERS = {"embedding", "_embedding_bag", "convolution"}
"""Other operations that may use the matrix of a linear layer; its gradient is then a sum over both uses."""

MIXED = 1e-3
"""Difference, relative to the outputs' size, above which a sample's outputs depend on the batch: far above the rounding
of half precision within a sum, and far below the change by attention or a mean over the batch."""

_RUNNING = RLock()
"""Held while a user's model runs: its modes and hooks are the same for all threads."""


@neutral_modes(gradients=True)
def trace_model(model: nn.Module, example: torch.Tensor | None = None) -> Trace:
    """Run a model in evaluation mode on an example, and return what its linear layers do.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it is left as it was.
    example : torch.Tensor or None, default=None
        Input of the model, one or more samples. None makes one up from the shape of the first layers.

    Returns
    -------
    Trace
        With a ``failure`` where no example ran through.

    Raises
    ------
    TypeError
        If the example is no tensor.
    """
    if example is not None and not isinstance(example, torch.Tensor):
        raise TypeError(
            f"example must be a tensor, one input of the model, got {type(example).__name__}: wrap a model of several "
            "inputs so that its forward takes one tensor, and keep the names of its parameters"
        )
    examples = [example] if example is not None else list(made_up_examples(model))
    failure, mixed = "the model has no linear or convolutional layer to make up an example for", None
    for candidate in examples:
        if isinstance(candidate, torch.Tensor) and candidate.is_inference():
            candidate = candidate.clone()  # autograd cannot record inference tensors
        recorder, dropouts = Recorder(), Dropouts()
        try:
            with in_evaluation(model), torch.no_grad(), dropouts, recorder:
                output = model(candidate)
            is_mixed = _is_mixed(model, candidate, output)
        except (Exception, SystemExit) as error:  # a model may raise anything on an input that it was not made for
            failure = first_line(error)
            continue
        found = _trace(model, recorder, dropouts, candidate, output, is_mixed)
        if not is_mixed:
            return found
        mixed = mixed or found
    return mixed or Trace([], failure)


def _is_mixed(model: nn.Module, example: torch.Tensor, output: Any) -> bool:
    """Return whether the rows of an output depend on each other: then they are positions of one sample."""
    if not isinstance(output, torch.Tensor) or output.ndim != 2 or not 1 < len(output) == len(example):
        return False
    with in_evaluation(model), torch.no_grad():
        alone = model(example[:1])
    scale = output.abs().max()
    return alone.shape != output[:1].shape or bool((alone - output[:1]).abs().max() > MIXED * scale)


def _trace(
    model: nn.Module, recorder: Recorder, dropouts: Dropouts, example: torch.Tensor, output: Any, is_mixed: bool
) -> Trace:
    is_table = isinstance(output, torch.Tensor) and output.ndim == 2 and not is_mixed
    uses, outputs = _linear_uses(model, recorder, example, output)
    for use in uses:
        use.is_last = use.is_last and not is_mixed
    if model.training:
        dropouts.set_shares(uses, outputs, recorder)
        if dropouts.hides(example):
            for use in uses:
                use.feeds = "features" if use.feeds == "the model's input" else use.feeds
    return Trace(uses, example=example, n_outputs=output.shape[1] if is_table else 0)


def mixing() -> str:
    """Return why a layer is out of reach whose outputs go through batch normalisation in training mode."""
    remedy = f"pass {argument('mode')}" if is_option("mode") else "call model.eval() first"
    return (
        "batch normalisation in training mode follows, which mixes the inputs of a batch; if the gradient was taken in "
        f"evaluation mode, {remedy}"
    )


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Keep a model in evaluation mode within a context; random draws of the model do not change torch's seed.

    Transformers take their slow path, as in training: the fast one is a single operation, in which no linear layer can
    be traced.
    """
    with _RUNNING, torch.random.fork_rng(devices=[]):
        modes = {module: module.training for module in model.modules()}
        is_fast = torch.backends.mha.get_fastpath_enabled()
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            model.eval()
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(is_fast)
            for module, mode in modes.items():
                module.training = mode


@contextmanager
def hooked(hooks: Mapping[nn.Module, Callable[..., Any]], *, before: bool = False) -> Iterator[None]:
    """Call hooks after modules have run, or before they run, within a context."""
    register = "register_forward_pre_hook" if before else "register_forward_hook"
    handles = [getattr(module, register)(hook) for module, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _linear_uses(
    model: nn.Module, recorder: Recorder, example: torch.Tensor, output: Any
) -> tuple[list[LinearUse], list[int]]:
    """Return every run of a linear layer, and the call whose output is the layer's."""
    names = {tensor.untyped_storage().data_ptr(): plain_name(name) for name, tensor in model.named_parameters()}
    shapes = {plain_name(name): tuple(tensor.shape) for name, tensor in model.named_parameters()}
    kind = nn.modules.batchnorm._BatchNorm
    norms = {id(m.running_mean): m for m in model.modules() if isinstance(m, kind) and m.running_mean is not None}
    calls = recorder.calls
    uses, inputs, outputs = [], [], []
    for number, call in enumerate(calls):
        found = product_of(call, names, shapes)
        if found is None:
            continue
        use, value = found
        end = number
        if not use.bias:
            end, use.bias = _added_bias(calls, number, names, shapes)
        is_input = value.numel() == example.numel() and torch.equal(value.reshape(-1), example.reshape(-1))
        use.width = call.output.shape[-1]
        use.rows = max(1, value.numel() // max(1, value.shape[-1]) // max(1, len(example)))
        use.feeds = "the model's input" if is_input else "features" if use.rows == 1 else "tokens"
        uses.append(use)
        inputs.append(value.detach().clone())
        outputs.append(end)
    last = {recorder.source_of(leaf) for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)}
    for call in calls:
        if call.operation in OTHERS:
            read = {_name_of(part, names) for part in call.arguments[:2]}
            for use in uses:
                use.also = call.operation.strip("_") if use.weight in read else use.also
    for use, end in zip(uses, outputs, strict=True):
        follow(use, end, calls, norms, last)
    for position, (use, end) in enumerate(zip(uses, outputs, strict=True)):
        later = uses[position + 1 :], inputs[position + 1 :]
        find_next(use, calls[end].output, *later)
        if use.width < inputs[position].shape[-1]:
            find_factor(use, calls[end].output, *later)
    # The gradient of a layer that runs several times contains more than the activations of the layer before.
    own = {use.weight for use in uses if not use.also and sum(other.weight == use.weight for other in uses) == 1}
    for use in uses:
        use.next_weight = use.next_weight if use.next_weight in own else ""
    return uses, outputs


def _name_of(part: Any, names: dict[int, str]) -> str:
    """Return the name of the parameter that an argument of a call is, or an empty text."""
    return names.get(part.untyped_storage().data_ptr(), "") if isinstance(part, torch.Tensor) else ""


def product_of(call: Call, names: dict, shapes: dict) -> tuple[LinearUse, torch.Tensor] | None:
    """Return the layer that a call computes and its input, or None if it is no product with a parameter.

    Parameters
    ----------
    call : Call
        The operation.
    names, shapes : dict
        Plain names of the parameters by the addresses of their storage, and their shapes by name.
    """
    if call.operation not in PRODUCTS:
        return None
    input_at, weight_at = PRODUCTS[call.operation]
    value, matrix = call.arguments[input_at], call.arguments[weight_at]
    weight = _name_of(matrix, names)
    if not weight or len(shapes[weight]) != 2 or set(matrix.shape[-2:]) - set(shapes[weight]):
        return None
    n_outputs, n_inputs = call.output.shape[-1], value.shape[-1]
    # W of shape (m, n) is used as its transpose; a square one shows by its strides.
    is_used_as_stored = call.operation in ("mm", "addmm", "bmm") and matrix.stride(-1) == 1
    is_transposed = shapes[weight] != (n_outputs, n_inputs) or (n_outputs == n_inputs and is_used_as_stored)
    name = "" if weight == "weight" else weight.removesuffix(".weight")
    use = LinearUse(name, weight, is_transposed=is_transposed)
    biases = {"addmm": 0, "addmv": 0, "linear": 2}
    bias_at = biases.get(call.operation, len(call.arguments))
    if bias_at < len(call.arguments):
        use.bias = _name_of(call.arguments[bias_at], names)
    return use, value


def _added_bias(calls: list[Call], number: int, names: dict, shapes: dict) -> tuple[int, str]:
    """Return the call that adds a vector of parameters to a product, and the vector's name; or the product itself."""
    for reader, call in readers_of(calls, number):
        if call.operation == "add":
            for argument in call.arguments:
                name = _name_of(argument, names)
                if name and shapes[name] == (calls[number].output.shape[-1],):
                    return reader, name
    return number, ""

"""Run a model once on an example, and see what its linear layers do: by numbers, not by the order of modules.

Every operation of the forward pass is recorded. A linear layer is a product with a two-dimensional parameter, whoever
computes it; the activation behind it is the first tensor that equals a known function of its output; and the next
linear layer is one whose input equals that tensor, up to its shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from sparsedl.process import neutral_modes
from sparsedl_fl.activations import KNOWN, Activation, of_call
from sparsedl_fl.models.examples import made_up_examples
from sparsedl_fl.models.naming import plain_name
from sparsedl_fl.models.recording import SHAPING, Call, Recorder, readers_of
from sparsedl_fl.models.uses import LinearUse, Trace
from sparsedl_fl.wording import first_line

__all__ = ["LinearUse", "Trace", "in_evaluation", "trace_model"]

MIXING = (
    "batch normalisation in training mode follows, which mixes the inputs of a batch; if the gradient was taken in "
    "evaluation mode, call model.eval() first"
)
"""Why a layer is out of reach whose outputs go through batch normalisation in training mode."""

PRODUCTS = {"addmm": (1, 2), "mm": (0, 1), "linear": (0, 1), "mv": (1, 0), "addmv": (2, 1), "bmm": (0, 1)}
"""Where a product has its input and its weight among its arguments."""

OTHERS = {"embedding", "_embedding_bag", "convolution"}
"""What else may use the matrix of a linear layer; the gradient is then a sum with what is no product."""

_RUNNING = RLock()
"""Held while a user's model runs: its modes and hooks are the same for all threads."""

SAME = 1e-5
"""Largest difference of equal numbers, relative to their size."""


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
    """
    examples = [example] if example is not None else list(made_up_examples(model))
    failure = "the model has no linear or convolutional layer to make up an example for"
    for candidate in examples:
        if isinstance(candidate, torch.Tensor) and candidate.is_inference():
            candidate = candidate.clone()  # one that nothing could be kept of for a gradient
        recorder = Recorder()
        try:
            with in_evaluation(model), torch.no_grad(), recorder:
                output = model(candidate)
        except (Exception, SystemExit) as error:  # a model may raise anything on an input that it was not made for
            failure = first_line(error)
            continue
        n_outputs = output.shape[1] if isinstance(output, torch.Tensor) and output.ndim == 2 else 0
        return Trace(_linear_uses(model, recorder, candidate, output), example=candidate, n_outputs=n_outputs)
    return Trace([], failure)


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Keep a model in evaluation mode for a while; draws that it makes even then leave torch's seed alone.

    Transformers take their slow path meanwhile, as they do in training: the fast one is a single operation, in which no
    linear layer is seen to run.
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


def _linear_uses(model: nn.Module, recorder: Recorder, example: torch.Tensor, output: Any) -> list[LinearUse]:
    names = {tensor.untyped_storage().data_ptr(): plain_name(name) for name, tensor in model.named_parameters()}
    shapes = {plain_name(name): tuple(tensor.shape) for name, tensor in model.named_parameters()}
    kind = nn.modules.batchnorm._BatchNorm
    norms = {id(m.running_mean): m for m in model.modules() if isinstance(m, kind) and m.running_mean is not None}
    calls = recorder.calls
    uses, inputs, ends = [], [], []
    for number, call in enumerate(calls):
        found = _product(call, names, shapes)
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
        ends.append(end)
    last = {recorder.source_of(leaf) for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)}
    for call in calls:
        if call.operation in OTHERS:
            read = {names.get(part.untyped_storage().data_ptr()) for part in call.arguments[:2] if _is_tensor(part)}
            for use in uses:
                use.also = call.operation.strip("_") if use.weight in read else use.also
    for use, end in zip(uses, ends, strict=True):
        _follow(use, end, calls, norms, last)
    for position, (use, end) in enumerate(zip(uses, ends, strict=True)):
        _find_next(use, calls[end].output, uses[position + 1 :], inputs[position + 1 :])
    # Of a layer that runs several times the gradient has more in it than the activations of the one before.
    own = {use.weight for use in uses if not use.also and sum(other.weight == use.weight for other in uses) == 1}
    for use in uses:
        use.next_weight = use.next_weight if use.next_weight in own else ""
    return uses


def _is_tensor(part: Any) -> bool:
    return isinstance(part, torch.Tensor)


def _product(call: Call, names: dict, shapes: dict) -> tuple[LinearUse, torch.Tensor] | None:
    """Return the layer that a call computes and its input, or None if it is no product with a parameter."""
    if call.operation not in PRODUCTS:
        return None
    input_at, weight_at = PRODUCTS[call.operation]
    value, matrix = call.arguments[input_at], call.arguments[weight_at]
    weight = names.get(matrix.untyped_storage().data_ptr())
    if weight is None or len(shapes[weight]) != 2 or set(matrix.shape[-2:]) - set(shapes[weight]):
        return None
    n_outputs, n_inputs = call.output.shape[-1], value.shape[-1]
    # W of shape (m, n) is used as its transpose; a square one shows by its strides.
    is_used_as_stored = call.operation in ("mm", "addmm", "bmm") and matrix.stride(-1) == 1
    is_transposed = shapes[weight] != (n_outputs, n_inputs) or (n_outputs == n_inputs and is_used_as_stored)
    use = LinearUse(weight.removesuffix("weight").removesuffix("."), weight, is_transposed=is_transposed)
    biases = {"addmm": 0, "addmv": 0, "linear": 2}
    bias_at = biases.get(call.operation, len(call.arguments))
    if bias_at < len(call.arguments) and call.arguments[bias_at] is not None:
        use.bias = names.get(call.arguments[bias_at].untyped_storage().data_ptr(), "")
    return use, value


def _added_bias(calls: list[Call], number: int, names: dict, shapes: dict) -> tuple[int, str]:
    """Return the call behind a product that adds a vector of parameters, and its name; or the product itself."""
    for reader, call in readers_of(calls, number):
        if call.operation == "add":
            for argument in call.arguments:
                name = names.get(argument.untyped_storage().data_ptr()) if isinstance(argument, torch.Tensor) else None
                if name is not None and shapes[name] == (calls[number].output.shape[-1],):
                    return reader, name
    return number, ""


def _follow(use: LinearUse, end: int, calls: list[Call], norms: dict, last: set[int | None]) -> None:
    """Fill in what follows a layer."""
    readers = readers_of(calls, end)
    for number, call in readers:
        if "batch_norm" in call.operation:
            statistics = [id(argument) for argument in call.arguments if id(argument) in norms]
            if statistics:
                use.norm, end = norms[statistics[0]], number
                readers = readers_of(calls, end)
                break
    z = calls[end].output
    reachable, waiting = set(), [reader for reader, _ in readers]
    while waiting:
        number = waiting.pop()
        if number not in reachable:
            reachable.add(number)
            waiting += calls[number].readers
    for number in sorted(reachable):
        found = _activation_of(z, calls[number])
        if found is not None:
            is_alone = not _passes_by(calls, end, number, last)
            use.activation = found if is_alone else None
            use.behind = found.name if is_alone else f"{found.name}, and a path around it (a residual connection),"
            return
    if not readers:
        use.is_last = _reaches(calls, end, last)
        use.behind = "nothing: it is the last layer" if use.is_last else "nothing reads it"
        return
    use.behind = ", ".join(dict.fromkeys(call.operation for _, call in readers))


def _reaches(calls: list[Call], number: int, wanted: set[int | None]) -> bool:
    waiting = [number]
    while waiting:
        current = waiting.pop()
        if current in wanted:
            return True
        waiting += [reader for reader in calls[current].readers if calls[reader].operation in SHAPING]
    return False


def _passes_by(calls: list[Call], start: int, activation: int, last: set[int | None]) -> bool:
    """Return whether the output of a layer reaches the model's output on a path around its activation."""
    waiting, seen = [reader for reader in calls[start].readers if reader != activation], {activation}
    while waiting:
        number = waiting.pop()
        if number not in seen:
            seen.add(number)
            if number in last:
                return True
            waiting += calls[number].readers
    return False


def _activation_of(z: torch.Tensor, call: Call) -> Activation | None:
    """Return the activation that makes the output of a call of ``z``, or None; its arguments say more than numbers."""
    output = call.output
    if output.numel() != z.numel() or not output.is_floating_point():
        return None
    candidates = [*of_call(call.operation, call.arguments), *KNOWN.values()]
    return next((activation for activation in candidates if _equal(activation.value(z), output)), None)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = one.reshape(-1), other.reshape(-1)
    return bool((one - other).abs().max() <= SAME * one.abs().max().clamp(min=torch.finfo(one.dtype).tiny))


def _find_next(use: LinearUse, z: torch.Tensor, later: list[LinearUse], inputs: list[torch.Tensor]) -> None:
    """Fill in the next linear layer: one whose input is this layer's activation."""
    if use.activation is None:
        return
    if use.norm is not None:
        norm = use.norm
        z = functional.batch_norm(z, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)
    y = use.activation.value(z)
    for candidate, value in zip(later, inputs, strict=True):
        if value.numel() == y.numel() and value.shape[-1] == y.shape[-1] and _equal(y, value):
            use.next_weight, use.next_is_transposed = candidate.weight, candidate.is_transposed
            return

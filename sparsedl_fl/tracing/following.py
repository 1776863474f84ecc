"""What follows a linear layer in a recorded run: its activation, its next layer, the model's output."""

from __future__ import annotations

import torch
from torch.nn import functional

from sparsedl_fl.activations import KNOWN, Activation, of_call
from sparsedl_fl.tracing.recording import SHAPING, Call, readers_of, walk
from sparsedl_fl.tracing.uses import LinearUse

__all__ = ["find_factor", "find_next", "follow"]

SAME = 1e-5
"""Largest difference of equal numbers, relative to their size."""

BENDING = {"clamp", "clamp_min", "clamp_max", "maximum", "minimum", "where", "threshold"}
"""Operations of activations that may return their input unchanged."""


def follow(use: LinearUse, end: int, calls: list[Call], norms: dict, last: set[int | None]) -> None:
    """Set what follows a layer."""
    readers = readers_of(calls, end)
    for number, call in readers:
        if "batch_norm" in call.operation:
            statistics = [id(argument) for argument in call.arguments if id(argument) in norms]
            if statistics:
                use.norm, end = norms[statistics[0]], number
                readers = readers_of(calls, end)
                break
    z = calls[end].output
    for number in sorted(walk([reader for reader, _ in readers], lambda reader: calls[reader].readers)):
        found = _activation_of(z, calls[number])
        if found is not None:
            is_alone = not _passes_by(calls, end, number, last)
            use.activation = found if is_alone else None
            use.behind = found.name if is_alone else f"{found.name}, and a path around it (a residual connection),"
            return
    use.is_read = bool(readers)
    if not readers:
        is_output = _reaches(calls, end, last)
        use.is_last = is_output and use.rows == 1
        otherwise = (
            "nothing: the model returns its outputs, several rows of a sample" if is_output else "nothing reads it"
        )
        use.behind = "nothing: it is the last layer" if use.is_last else otherwise
        return
    use.behind = ", ".join(dict.fromkeys(call.operation for _, call in readers))


def _reaches(calls: list[Call], number: int, wanted: set[int | None]) -> bool:
    def onward(current: int) -> list[int]:
        return [reader for reader in calls[current].readers if calls[reader].operation in SHAPING]

    return any(current in wanted for current in walk([number], onward))


def _passes_by(calls: list[Call], start: int, activation: int, last: set[int | None]) -> bool:
    """Return whether the output of a layer reaches the model's output on a path around its activation."""
    return any(number in last for number in walk(calls[start].readers, lambda n: calls[n].readers, activation))


def _activation_of(z: torch.Tensor, call: Call) -> Activation | None:
    """Return the activation that maps ``z`` to the output of a call, or None; its arguments count before numbers.

    Hardtanh and the like are linear at small numbers: an operation that returns ``z`` unchanged, such as the sum with
    an adapter that is still zero, is none of them, nor is one that returns a constant.
    """
    output = call.output
    if output.numel() != z.numel() or not output.is_floating_point():
        return None
    named = [*of_call(call.operation, call.arguments), *filter(None, [KNOWN.get(call.operation)])]
    found = next((activation for activation in named if _equal(activation.value(z), output)), None)
    if found is not None or (call.operation not in BENDING and (_equal(z, output) or output.amin() == output.amax())):
        return found
    return next((activation for activation in KNOWN.values() if _equal(activation.value(z), output)), None)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = one.reshape(-1), other.reshape(-1)
    return bool((one - other).abs().max() <= SAME * one.abs().max().clamp(min=torch.finfo(one.dtype).tiny))


def find_next(use: LinearUse, z: torch.Tensor, later: list[LinearUse], inputs: list[torch.Tensor]) -> None:
    """Set the next linear layer: one whose input is this layer's activation."""
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


def find_factor(use: LinearUse, z: torch.Tensor, later: list[LinearUse], inputs: list[torch.Tensor]) -> None:
    """Set the second factor of a product of low rank: a layer whose input is this one's output, times any number."""
    if use.activation is not None or use.norm is not None:
        return
    z = z.reshape(-1)
    for candidate, value in zip(later, inputs, strict=True):
        if value.numel() != z.numel() or value.shape[-1] != use.width or candidate.width <= use.width:
            continue
        scale = (value.reshape(-1) * z).sum() / z.square().sum()
        if bool(scale.isfinite()) and scale != 0 and _equal(scale * z, value):
            use.factor = candidate.weight
            return

"""Record every operation of a forward pass, with the outputs that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["SHAPING", "Call", "Dropouts", "Recorder", "readers_of", "walk"]

SHAPING = {"view", "_unsafe_view", "reshape", "t", "transpose", "permute", "detach", "alias", "unsqueeze", "squeeze"}
SHAPING |= {"expand", "clone", "contiguous", "_reshape_alias", "flatten", "unflatten", "dropout", "native_dropout"}
"""Operations that return the same numbers."""

PRODUCING = {"addmm", "mm", "linear", "mv", "addmv", "bmm", "baddbmm", "convolution"}
"""Operations of layers with weights, and of attention."""

MOST_ENTRIES = 50_000_000
"""Number of entries of outputs that are copied; beyond that an operation in place may overwrite an earlier output."""


@dataclass
class Call:
    """One operation: its short name, arguments, the calls its inputs came from, and a copy of its output."""

    operation: str
    arguments: tuple
    sources: list[int]
    output: torch.Tensor
    readers: list[int] = field(default_factory=list)


class Recorder(TorchDispatchMode):
    """Records every operation, with the tensors kept alive so that their identities stay unique."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._source: dict[int, int] = {}
        self._alive: list[Any] = []
        self._entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        sources = [self._source[id(tensor)] for tensor in tensors if id(tensor) in self._source]
        result = func(*args, **(kwargs or {}))
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if outputs:
            number, operation = len(self.calls), func.overloadpacket.__name__.rstrip("_")
            # An operation in place changes its input, which is needed later.
            kept = outputs[0].detach().clone() if self._entries < MOST_ENTRIES else outputs[0]
            self._entries += outputs[0].numel()
            self.calls.append(Call(operation, args, sources, kept))
            self._alive.append((tensors, outputs))
            for source in set(sources):
                self.calls[source].readers.append(number)
            for output in outputs:
                self._source[id(output)] = number
        return result

    def source_of(self, tensor: torch.Tensor) -> int | None:
        """Return the call that made a tensor of the run."""
        return self._source.get(id(tensor))


class Dropouts(TorchFunctionMode):
    """Records tensors that go through dropout, which is no operation in evaluation mode: an alias marks it there."""

    def __init__(self) -> None:
        super().__init__()
        self._found: list[tuple[torch.Tensor, float]] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if "dropout" not in getattr(func, "__name__", "") or not args or not isinstance(args[0], torch.Tensor):
            return func(*args, **kwargs)
        share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        is_training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
        if not isinstance(share, float | int) or not 0 < share < 1:
            return func(*args, **kwargs)
        result = func(*args, **kwargs) if is_training else torch.ops.aten.alias(args[0])
        self._found.append((result, float(share)))
        return result

    def hides(self, example: torch.Tensor) -> bool:
        """Return whether the model applies dropout to its input, so that no layer is fed all of it."""
        rows = example.reshape(-1)
        return any(
            result.numel() == rows.numel() and torch.equal(result.reshape(-1), rows) for result, _ in self._found
        )

    def set_shares(self, uses: list, outputs: list[int], recorder: Recorder) -> None:
        """Set the share of each layer's outputs that is dropped, where no other layer reads them before."""
        calls = recorder.calls
        for result, share in self._found:
            dropout = recorder.source_of(result)
            if dropout is None:
                continue
            for number in walk(
                calls[dropout].sources, lambda source: () if source in outputs else calls[source].sources
            ):
                if number in outputs and not _reaches_layer(calls, number, dropout):
                    uses[outputs.index(number)].dropout = share


def _reaches_layer(calls: list[Call], start: int, without: int) -> bool:
    """Return whether the output of a call reaches a product on a path without another call."""
    found = walk(calls[start].readers, lambda number: calls[number].readers, without)
    return any(calls[number].operation in PRODUCING for number in found)


def readers_of(calls: list[Call], number: int) -> list[tuple[int, Call]]:
    """Return the operations that read an output, through changes of its shape."""

    def onward(reader: int) -> Sequence[int]:
        return calls[reader].readers if calls[reader].operation in SHAPING else ()

    found = walk(calls[number].readers, onward)
    return [(reader, calls[reader]) for reader in found if calls[reader].operation not in SHAPING]


def walk(start: Iterable[int], onward: Callable[[int], Iterable[int]], *without: int) -> Iterator[int]:
    """Yield numbers of calls and of all that are reached from them, each once, the nearest first."""
    waiting, seen = list(start), set(without)
    while waiting:
        number = waiting.pop(0)
        if number not in seen:
            seen.add(number)
            yield number
            waiting += onward(number)

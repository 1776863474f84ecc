"""Every operation of a forward pass, and which outputs it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["SHAPING", "Call", "Recorder", "readers_of"]

SHAPING = {"view", "_unsafe_view", "reshape", "t", "transpose", "permute", "detach", "alias", "unsqueeze", "squeeze"}
SHAPING |= {"expand", "clone", "contiguous", "_reshape_alias", "flatten", "unflatten", "dropout", "native_dropout"}
"""Operations that hand on the same numbers."""

MOST_ENTRIES = 50_000_000
"""Numbers of outputs that are copied; beyond that an operation in place may hide what came before it."""


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
            # An operation in place changes its input: what it was is needed later.
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
        """Return which call a tensor of the run came from."""
        return self._source.get(id(tensor))


def readers_of(calls: list[Call], number: int) -> list[tuple[int, Call]]:
    """Return the operations that read an output, whatever its shape on the way."""
    found, waiting = [], list(calls[number].readers)
    while waiting:
        reader = waiting.pop(0)
        if calls[reader].operation in SHAPING:
            waiting += calls[reader].readers
        else:
            found.append((reader, calls[reader]))
    return found

"""What linear layers are fed, whatever module computes them: every product with a matrix of parameters, in order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsedl_fl.tracing.naming import plain_name
from sparsedl_fl.tracing.recording import Call
from sparsedl_fl.tracing.tracing import PRODUCTS, in_evaluation, product_of
from sparsedl_fl.tracing.uses import LinearUse

__all__ = ["FedLayers", "fed_layers"]


@dataclass(frozen=True, eq=False)
class FedLayers:
    """Linear layers that are fed the same rows.

    Attributes
    ----------
    uses : tuple of LinearUse
        The layers, such as queries, keys and values.
    rows : torch.Tensor of shape (n_rows, n)
        What they are fed.
    """

    uses: tuple[LinearUse, ...]
    rows: torch.Tensor


class _Enough(Exception):  # noqa: N818
    """All layers that are asked for have run."""


class _Products(TorchDispatchMode):
    """Records the inputs of products with matrices of parameters."""

    def __init__(self, model: nn.Module, until: Collection[str]) -> None:
        super().__init__()
        self.names = {part.untyped_storage().data_ptr(): plain_name(name) for name, part in model.named_parameters()}
        self.shapes = {plain_name(name): tuple(part.shape) for name, part in model.named_parameters()}
        self.waiting = set(until)
        self.until = frozenset(until)
        self.found: list[FedLayers] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operation = func.overloadpacket.__name__.rstrip("_")
        if operation in PRODUCTS:
            outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            product = product_of(Call(operation, args, [], outputs[0]), self.names, self.shapes)
            if product is not None and (not self.until or product[0].weight in self.until):
                use, rows = product
                self.found.append(FedLayers((use,), rows.detach().reshape(-1, rows.shape[-1]).clone()))
                self.waiting.discard(use.weight)
                if self.until and not self.waiting:
                    raise _Enough
        return result


def fed_layers(
    model: nn.Module, inputs: torch.Tensor, until: Collection[str] = (), *, as_is: bool = False
) -> list[FedLayers]:
    """Run a model in evaluation mode, and return what its linear layers are fed.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it is left as it was.
    inputs : torch.Tensor
        Its input. Whatever the model raises on it is raised.
    until : collection of str, default=()
        Plain names of weights: the run ends when all of these have been used, and no other counts. Empty: to the end.
    as_is : bool, default=False
        Whether to run it in its own mode, with dropout where it is in training.

    Returns
    -------
    list of FedLayers
        In the order in which they run; layers that are fed the same numbers together, at the place of the first.
    """
    products = _Products(model, until)
    try:
        with torch.random.fork_rng(devices=[]) if as_is else in_evaluation(model), torch.no_grad(), products:
            model(inputs)
    except _Enough:
        pass
    groups: list[FedLayers] = []
    for one in products.found:
        same = next((i for i, group in enumerate(groups) if _is_same(group.rows, one.rows)), None)
        if same is None:
            groups.append(one)
        else:
            groups[same] = FedLayers(groups[same].uses + one.uses, one.rows)
    return groups


def _is_same(rows: torch.Tensor, others: torch.Tensor) -> bool:
    return rows.shape == others.shape and torch.equal(rows, others)

"""Which tables a model's input ids index: the non-zero rows of their gradients are the tokens of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sparsedl.process import neutral_modes
from sparsedl_fl.tracing.naming import plain_name
from sparsedl_fl.tracing.tracing import in_evaluation

__all__ = ["token_tables"]

LOOKUPS = {"embedding", "_embedding_bag"}


class _Lookups(TorchDispatchMode):
    """Records which rows of which parameter are looked up."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names
        self.found: list[tuple[str, torch.Tensor, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func.overloadpacket.__name__ in LOOKUPS and len(args) > 1:
            name = self.names.get(args[0].untyped_storage().data_ptr())
            if name is not None:
                self.found.append((name, args[1].detach().clone(), args[1].untyped_storage().data_ptr()))
        return func(*args, **(kwargs or {}))


@neutral_modes(gradients=True)
def token_tables(model: nn.Module, example: torch.Tensor | None) -> tuple[str, ...]:
    """Return the plain names of the parameters whose rows the model's input ids pick, without positions and types.

    The model runs on random ids: a table counts where these are the rows that are looked up.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    example : torch.Tensor or None
        An input of the model. Where it is of whole numbers they are ids, and else columns of it may be, such as the
        categories of a table. Without one, or where the model does not run on it, the largest `torch.nn.Embedding` is
        taken for the table of tokens.
    """
    names = {tensor.untyped_storage().data_ptr(): plain_name(name) for name, tensor in model.named_parameters()}
    sizes = {plain_name(name): len(tensor) for name, tensor in model.named_parameters() if tensor.ndim == 2}
    if example is None:
        tables = [
            plain_name(f"{name}.weight") for name, part in model.named_modules() if isinstance(part, nn.Embedding)
        ]
        return tuple(sorted(tables, key=lambda name: -sizes.get(name, 0))[:1])
    if example.is_floating_point():
        return _tables_of_columns(model, example, names, sizes)
    try:
        seen = _looked_up(model, example, names)
    except Exception:  # a model may raise anything on an input that it was not made for
        return token_tables(model, None)
    # Columns of the input, one for each table, share its storage.
    columns = [
        name for name, rows, address in seen if address == example.untyped_storage().data_ptr() and name in sizes
    ]
    likely = dict.fromkeys(name for name, rows, _ in seen if _is_same(rows, example) and name in sizes)
    found = list(dict.fromkeys(columns))
    for name in [name for name in likely if name not in found]:
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(sizes[name], tuple(example.shape), generator=generator).to(example)
        try:
            rows = _looked_up(model, drawn, names)
        except Exception:  # ids beyond another table, or values that the model refuses: the example decides
            rows = seen if example.unique().numel() > 2 else []
            drawn = example
        if any(other == name and _is_same(there, drawn) for other, there, _ in rows):
            found.append(name)
    return tuple(found)


def _tables_of_columns(
    model: nn.Module, example: torch.Tensor, names: dict[int, str], sizes: dict[str, int]
) -> tuple[str, ...]:
    """Return the tables whose rows a column of numbers picks: the next rows, where these are one larger."""
    if example.ndim != 2:
        return ()
    found: dict[str, None] = {}
    try:
        for name, rows, _ in _looked_up(model, example, names):
            ids = example.to(rows.dtype)
            same = [c for c in range(example.shape[1]) if _is_same(rows, ids[:, c])] if name in sizes else []
            for column in same:
                other = example.clone()
                other[:, column] = (ids[:, column] + 1) % sizes[name]
                again = _looked_up(model, other, names)
                if any(which == name and _is_same(there, other[:, column].to(rows.dtype)) for which, there, _ in again):
                    found[name] = None
                    break
    except Exception:  # a model may raise anything on an input that it was not made for
        return ()
    return tuple(found)


def _looked_up(model: nn.Module, ids: torch.Tensor, names: dict[int, str]) -> list[tuple[str, torch.Tensor, int]]:
    with in_evaluation(model), torch.no_grad(), _Lookups(names) as lookups:
        model(ids)
    return lookups.found


def _is_same(rows: torch.Tensor, ids: torch.Tensor) -> bool:
    """Return whether the same ids are looked up, in this order or, where time is the first dimension, in the other."""
    if rows.numel() != ids.numel():
        return False
    return torch.equal(rows.reshape(-1).sort().values, ids.reshape(-1).to(rows).sort().values)

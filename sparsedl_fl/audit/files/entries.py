"""Which entry of a file fits a model, and under which names: checkpoints, lists of arrays, prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from sparsedl_fl.tracing.naming import check_same_tensors, plain_names, unwrapped, with_names_of
from sparsedl_fl.wording import argument

__all__ = ["entry_of", "named_for"]

MOST_DEEP = 3
"""How deep a checkpoint is searched for a state."""

MOST_NAMED = 8
"""Keys that a message names."""

Tensors = Mapping[str, torch.Tensor] | Sequence[torch.Tensor]


def entry_of(
    found: Any, fits: Callable[[Tensors], dict[str, torch.Tensor]], what: str, key: str | None = None
) -> dict[str, torch.Tensor]:
    """Return the one entry of a file that fits, by plain names.

    Parameters
    ----------
    found : mapping, sequence or tensor
        The contents of the file.
    fits : callable
        Returns the tensors of an entry by the model's names, or raises ``ValueError``.
    what : str
        Name of the file, for messages.
    key : str or None, default=None
        Name of the entry to take; None takes the only one that fits. A file of tensors alone needs none.

    Raises
    ------
    ValueError
        If there is no such entry, none fits, or several do.
    """
    entries = dict(_entries(found))
    if not entries:
        keys = list(map(str, found))[:MOST_NAMED] if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise ValueError(f"{what} must hold tensors by name, or a list of them; it has {keys}")
    if list(entries) == [""]:
        return fits(entries[""])
    if key is not None:
        picked = [name for name in entries if key in (name, name.rpartition(".")[2])]
        if len(picked) != 1:
            raise ValueError(f"{what} has {'several entries' if picked else 'no entry'} {key!r}; {_listed(entries)}")
        return fits(entries[picked[0]])
    fitting, failed = {}, []
    for name, tensors in entries.items():
        try:
            fitting[name] = fits(tensors)
        except (ValueError, TypeError) as error:
            failed.append(error)
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    if len(entries) == 1:
        raise failed[0]
    several = f"several entries that fit the model, {sorted(fitting)}" if fitting else "no entry that fits the model"
    raise ValueError(f"{what} has {several}: name one by {argument('key')}; {_listed(entries)}")


def _listed(entries: Mapping[str, Any]) -> str:
    names = [name for name in entries if name]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"it has {names[:MOST_NAMED]}{more}"


def _entries(found: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensors]]:
    """Yield every mapping or list of tensors in a checkpoint, by the keys that lead to it."""
    if isinstance(found, list | tuple):
        if found and all(isinstance(part, torch.Tensor) for part in found):
            yield path, found
        return
    if not isinstance(found, Mapping) or depth > MOST_DEEP:
        return
    tensors = {name: part for name, part in found.items() if isinstance(part, torch.Tensor)}
    inside = {name: part for name, part in found.items() if isinstance(part, Mapping | list | tuple)}
    if tensors and all(isinstance(name, str) for name in tensors):
        yield path, tensors
    for name, part in inside.items():
        yield from _entries(part, f"{path}.{name}" if path else str(name), depth + 1)


def named_for(model: nn.Module, given: Tensors, what: str, *, is_update: bool = False) -> dict[str, torch.Tensor]:
    """Return tensors by the plain names of a model's state.

    A list is in the order of ``state_dict()`` or of ``parameters()``; a prefix of all names, or of all the model's
    names, is dropped or added where exactly one makes them fit; scalars may have any shape.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    given : mapping of name to tensor or sequence of tensors
        What the file holds.
    what : str
        Its name, for messages.
    is_update : bool, default=False
        Whether it is what a client sent: it may have some of the parameters only.

    Raises
    ------
    ValueError
        If it does not fit; the first tensor that does not is named.
    """
    own = _Own(unwrapped(model), what, is_update)
    if not isinstance(given, Mapping):
        return own.checked(own.in_order(list(given)))
    names = with_names_of(own.state, plain_names(what, given))
    if any(name in own.state for name in names):
        return own.checked(names)
    renamed = [{name.removeprefix(first): t for name, t in names.items()} for first in _shared(names)]
    prefixed = [{first + name: t for name, t in names.items()} for first in _shared(own.parameters)]
    fitting = {}
    for candidate in renamed + [found for found in prefixed if found.keys() >= own.parameters.keys()]:
        with suppress(ValueError):
            fitting[tuple(candidate)] = own.checked(candidate)
    if len(fitting) > 1:
        raise ValueError(
            f"{what}: several prefixes of its names, such as {next(iter(names))!r}, make them fit the model: save it "
            "under the names of the model's state_dict()"
        )
    return next(iter(fitting.values())) if fitting else own.checked(names)


@dataclass(frozen=True, eq=False)
class _Own:
    """The tensors of a model, with which a file is compared."""

    model: nn.Module
    what: str
    is_update: bool

    @cached_property
    def state(self) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in self.model.state_dict().items() if isinstance(tensor, torch.Tensor)}

    @cached_property
    def parameters(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_parameters())

    def checked(self, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return tensors in the shapes of the model's, after checking that they fit."""
        state, parameters = self.state, self.parameters
        given = {name: t if t.layout is torch.strided else t.to_dense() for name, t in given.items()}
        numbers = [name for name, t in given.items() if name in state and t.numel() == state[name].numel() == 1]
        given |= {name: given[name].reshape(state[name].shape) for name in numbers}
        if self.is_update:
            known = {name: tensor for name, tensor in given.items() if name in parameters or name not in state}
            check_same_tensors(parameters, known, self.what, needed=() if known else None)
            return given
        counters = {n: tensor for n, tensor in state.items() if n not in parameters and not tensor.is_floating_point()}
        check_same_tensors(state, given, self.what, needed=[name for name in state if name not in counters])
        return counters | given

    def in_order(self, given: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return a list by the names whose order it has: of the state, or of the parameters."""
        state, parameters = self.state, self.parameters
        orders = [
            list(state),
            list(parameters),
            [name for name, tensor in parameters.items() if tensor.requires_grad],
            [name for name, tensor in state.items() if tensor.is_floating_point()],
        ]
        named = [dict(zip(order, given, strict=True)) for order in orders if len(order) == len(given)]
        if not named:
            raise ValueError(
                f"{self.what} has {len(given)} arrays, and the model {len(state)} in its state, {len(parameters)} of "
                "them parameters: they are not of the same model"
            )
        sizes = {name: tensor.numel() for name, tensor in (*state.items(), *parameters.items())}
        alike = (found for found in named if all(sizes[name] == t.numel() for name, t in found.items()))
        return next(alike, named[0])


def _shared(names: Iterable[str]) -> Iterator[str]:
    """Yield the first, first two, ... parts of names, as far as all of them have these."""
    parts = [name.split(".") for name in names]
    for n in range(1, min(map(len, parts), default=1)):
        if any(part[:n] != parts[0][:n] for part in parts):
            return
        yield ".".join(parts[0][:n]) + "."

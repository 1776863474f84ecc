"""What the caller of an audit declared, and what was assumed where nothing was; the audit checks little of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["Assumed", "declared", "loss_in_words", "mode_of", "of_audit", "with_more"]

WORDS = {
    "kind": "what the update is",
    "loss": "loss",
    "optimizer": "optimiser",
    "n_steps": "local steps",
    "learning_rate": "learning rate",
    "momentum": "momentum",
    "weight_decay": "weight decay",
    "batch_size": "records of the batch",
    "noise_level": "noise, deviation on each entry of the gradient",
    "dp": "noise and clipping of an optimiser",
    "mode": "mode in which the client ran the model",
    "example": "shape of one input",
    "layers": "layers to attack",
    "records": "records to test for membership",
    "max_effort": "budget of the searches, effort",
    "max_seconds": "cap on the searches, seconds",
    "pictures": "pictures to be searched for",
    "peel": "other layers and a replay to follow",
}
"""What can be declared, in words, in the order of the report."""

ASSUMED = {
    "loss": "cross-entropy was assumed where an attack needs a loss",
    "optimizer": "SGD was assumed",
    "n_steps": "several were assumed",
    "weight_decay": "to be found from the update",
    "batch_size": "taken from the update, where it shows",
    "noise_level": "estimated from the update",
    "example": "made up from the layers",
    "layers": "all",
    "max_effort": "none",
    "max_seconds": "none",
    "pictures": "where features hold them alone, and there is no budget",
}
"""What holds where nothing was declared."""


class Assumed(str):
    """What was assumed, or seen in the update, in the place of something that was not declared."""


def declared(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what was declared as entries of a report, each with its name, words, value and what was assumed instead.

    Parameters
    ----------
    given : mapping of str to object
        Arguments by their name; None for one that was left open. Names without words are left out.

    Examples
    --------
    >>> declared({"loss": None, "momentum": 0.9})[1]
    {'name': 'momentum', 'what': 'momentum', 'value': '0.9', 'assumed': ''}
    """
    return [_entry(name, what, given[name]) for name, what in WORDS.items() if name in given]


def _entry(name: str, what: str, value: Any) -> dict[str, Any]:
    if value is None:
        value = Assumed(ASSUMED.get(name, ""))
    is_open = isinstance(value, Assumed)
    shown = {"value": None, "assumed": str(value)} if is_open else {"value": _in_words(value), "assumed": ""}
    return {"name": name, "what": what, **shown}


def with_more(entries: Iterable[Mapping[str, Any]], **given: Any) -> list[dict[str, Any]]:
    """Return entries with those of further arguments, which replace entries of their names."""
    found = {entry["name"]: dict(entry) for entry in [*entries, *declared(given)]}
    return [found[name] for name in WORDS if name in found]


def of_audit(
    model: nn.Module,
    inverter: Any,
    layers: Iterable[int | str] | None,
    example: torch.Tensor | None,
    loss: Any,
    learning_rate: float | None,
    peel: bool,
    pictures: bool | None,
    max_effort: float | None,
    max_seconds: float | None,
    attacked: Iterable[str],
) -> list[dict[str, Any]]:
    """Return what the arguments of `sparsedl_fl.audit.audit_model` declare; layers by their names."""
    given = {"loss": loss_in_words(loss), "batch_size": inverter.batch_size, "noise_level": inverter.noise_level}
    given |= {"mode": mode_of(model), "example": example, "layers": None if layers is None else list(attacked)}
    given |= {"pictures": pictures, "max_effort": max_effort, "max_seconds": max_seconds}
    given |= {} if learning_rate is None else {"learning_rate": learning_rate, "n_steps": "several"}
    return declared(given if peel else {**given, "peel": peel})


def loss_in_words(loss: str | Callable | None) -> str | None:
    """Return the name of a loss; None where none was given."""
    if loss is None or isinstance(loss, str):
        return loss
    return f"{getattr(loss, '__module__', '')}.{getattr(loss, '__qualname__', type(loss).__qualname__)}".strip(".")


def mode_of(model: nn.Module) -> str:
    """Return the mode of a model in words; modules may have different ones."""
    modes = {module.training for module in model.modules()}
    return "training for some modules, evaluation for others" if len(modes) > 1 else _MODES[modes.pop()]


_MODES = {True: "training", False: "evaluation"}


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return " x ".join(map(str, value.shape[1:])) or "one number"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_in_words(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return str(value)

"""Checks of the arguments on clients and on an audit's budget, before any training begins.

`RULES` has a check for each argument.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedl_fl.layers.losses import LOSSES

__all__ = ["check_arguments"]

OPTIMIZERS = sorted(
    name.lower()
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)
"""Names of optimisers. All but "sgd" are out of range; any other word is an error."""


def check_arguments(**arguments: Any) -> None:
    """Raise ``ValueError`` or ``TypeError`` that names the first argument that makes no sense."""
    for name, value in arguments.items():
        RULES[name](name, value)
    if arguments.get("weight_decay") and arguments["n_steps"] is None:
        raise ValueError("n_steps is needed to undo weight_decay; pass weight_decay=None to estimate it from the rank")


def _number(
    name: str, value: Any, *, is_positive: bool = True, is_whole: bool = False, is_optional: bool = True
) -> None:
    if value is None and is_optional:
        return
    is_number = isinstance(value, Integral if is_whole else Real) and not isinstance(value, bool)
    if is_number and np.isfinite(value) and (value > 0 or (value == 0 and not is_positive)):
        return
    kind = f"a {'positive' if is_positive else 'non-negative'} {'integer' if is_whole else 'number'}"
    raise ValueError(f"{name} must be {kind}{' or None' if is_optional else ''}, got {value!r}")


def _one_of(name: str, value: Any, choices: tuple[str, ...] | list[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def _model(name: str, value: Any) -> None:
    if not isinstance(value, nn.Module) and not callable(value):
        raise TypeError(f"{name} must be a torch.nn.Module or a function that returns one, got {type(value).__name__}")


def _example(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, torch.Tensor):
        raise ValueError(f"{name} must be a tensor or None, got {type(value).__name__}")


def _loss(name: str, value: Any) -> None:
    if not (value is None or callable(value) or (isinstance(value, str) and value in LOSSES)):
        raise ValueError(f"{name} must be None, one of {sorted(LOSSES)} or a function, got {value!r}")


def _folder(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str | Path):
        raise ValueError(f"{name} must be a path or None, got {type(value).__name__}")
    if value is not None and os.path.lexists(value) and not os.path.isdir(value):
        raise ValueError(f"{name} must be a folder, and {str(value)!r} is a file")


def _jobs(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value == 0:
        raise ValueError(f"{name} must be an integer other than zero, got {value!r}")


RULES: dict[str, Callable[[str, Any], None]] = {
    "model": _model,
    "mode": partial(_one_of, choices=("report", "warn", "block")),
    "out_of_range": partial(_one_of, choices=("hold", "release")),
    "learning_rate": partial(_number, is_optional=False),
    "n_steps": partial(_number, is_whole=True),
    "momentum": partial(_number, is_positive=False, is_optional=False),
    "weight_decay": partial(_number, is_positive=False),
    "optimizer": partial(_one_of, choices=OPTIMIZERS),
    "batch_size": partial(_number, is_whole=True),
    "max_effort": _number,
    "max_seconds": _number,
    "example": _example,
    "loss": _loss,
    "n_jobs": _jobs,
    "every": partial(_number, is_whole=True, is_optional=False),
    "out": _folder,
}
"""What raises where an argument makes no sense; called with its name and value."""

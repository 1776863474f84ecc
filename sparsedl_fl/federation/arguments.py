"""What can be said of the clients and of an audit's budget, checked before any training begins."""

from __future__ import annotations

import os
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedl_fl.layers.losses import LOSSES

__all__ = ["check_audit", "check_choice", "check_client", "check_folder", "check_model", "check_number"]

OPTIMIZERS = sorted(
    name.lower()
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)
"""Names of optimisers. All but "sgd" are out of range; any other word is a slip."""


def check_client(
    *,
    learning_rate: float,
    n_steps: int | None,
    momentum: float,
    weight_decay: float | None,
    optimizer: str,
    **audit: Any,
) -> None:
    """Raise ``ValueError`` that names the first argument of `check_update` that makes no sense."""
    check_number("learning_rate", learning_rate, is_positive=True)
    check_number("n_steps", n_steps, is_positive=True, is_whole=True, is_optional=True)
    check_number("momentum", momentum)
    check_number("weight_decay", weight_decay, is_optional=True)
    check_choice("optimizer", optimizer, OPTIMIZERS)
    if weight_decay and n_steps is None:
        raise ValueError("n_steps is needed to undo weight_decay; pass weight_decay=None to find it by the rank")
    check_audit(**audit)


def check_audit(
    *,
    batch_size: int | None,
    example: torch.Tensor | None,
    loss: Any,
    max_effort: float | None,
    max_seconds: float | None,
) -> None:
    """Raise ``ValueError`` that names the first argument of an audit that makes no sense."""
    check_number("batch_size", batch_size, is_positive=True, is_whole=True, is_optional=True)
    check_number("max_effort", max_effort, is_positive=True, is_optional=True)
    check_number("max_seconds", max_seconds, is_positive=True, is_optional=True)
    if example is not None and not isinstance(example, torch.Tensor):
        raise ValueError(f"example must be a tensor or None, got {type(example).__name__}")
    if not (loss is None or callable(loss) or (isinstance(loss, str) and loss in LOSSES)):
        raise ValueError(f"loss must be None, one of {sorted(LOSSES)} or a function, got {loss!r}")


def check_number(
    name: str, value: Any, *, is_positive: bool = False, is_whole: bool = False, is_optional: bool = False
) -> None:
    """Raise ``ValueError`` that names an argument which is not a number of its kind, zero or more by default."""
    if value is None and is_optional:
        return
    is_number = isinstance(value, Integral if is_whole else Real) and not isinstance(value, bool)
    if is_number and np.isfinite(value) and (value > 0 or (value == 0 and not is_positive)):
        return
    kind = f"a {'positive' if is_positive else 'non-negative'} {'integer' if is_whole else 'number'}"
    raise ValueError(f"{name} must be {kind}{' or None' if is_optional else ''}, got {value!r}")


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Raise ``ValueError`` that names an argument which is none of the words it may be."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_model(model: Any) -> None:
    """Raise ``TypeError`` for what is neither a model nor makes one."""
    if not isinstance(model, nn.Module) and not callable(model):
        raise TypeError(f"model must be a torch.nn.Module or a function that returns one, got {type(model).__name__}")


def check_folder(name: str, value: Any) -> None:
    """Raise ``ValueError`` that names an argument which cannot be a folder."""
    if value is None:
        return
    if not isinstance(value, str | Path):
        raise ValueError(f"{name} must be a path or None, got {type(value).__name__}")
    if os.path.lexists(value) and not os.path.isdir(value):
        raise ValueError(f"{name} must be a folder, and {str(value)!r} is a file")

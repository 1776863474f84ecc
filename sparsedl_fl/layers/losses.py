"""The client's loss, by name or as a user gave it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

__all__ = ["LOSSES", "Loss", "mean_loss", "total_loss", "usable_loss"]

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _binary_cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.to(outputs.dtype), reduction="sum")


def _squared_error(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if outputs.shape[1] == 1:  # a number, and no class
        return (outputs[:, 0] - labels).square().sum()
    return (outputs - functional.one_hot(labels, outputs.shape[1])).square().sum()


LOSSES: dict[str, Loss] = {
    "cross_entropy": partial(functional.cross_entropy, reduction="sum"),
    "binary_cross_entropy": _binary_cross_entropy,
    "mse": _squared_error,
}
"""Losses by name: of logits, of one logit and labels 0 and 1, and squared errors of labels as unit vectors."""


class _AllIn(TorchFunctionMode):
    """Converts every tensor that a user's loss works with to one precision, such as the weights of classes."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        args, kwargs = tree_map(self._converted, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _converted(self, part: Any) -> Any:
        is_other = isinstance(part, torch.Tensor) and part.is_floating_point() and part.dtype != self.dtype
        return torch.Tensor.to(part, self.dtype) if is_other else part


def total_loss(loss: str | Loss | None, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of outputs of shape (n, n_outputs) and labels of shape (n,), by name or as a user gave it.

    None is cross-entropy, the binary one for a single output. A user's loss is evaluated in the precision of the
    outputs, and summed where it returns a number for each input.
    """
    loss = loss or ("cross_entropy" if outputs.shape[1] > 1 else "binary_cross_entropy")
    if isinstance(loss, str):
        return LOSSES[loss](outputs, labels)
    if isinstance(loss, nn.Module):
        loss = deepcopy(loss).to(outputs.dtype)  # its weights, if it has any
    with _AllIn(outputs.dtype):
        found = loss(outputs, labels)
    return found.sum() if isinstance(found, torch.Tensor) and found.ndim else found


def mean_loss(loss: str, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean over the inputs of a loss given by name, as clients compute it."""
    return total_loss(loss, outputs, labels) / len(outputs)


def usable_loss(loss: str | Loss | None, n_outputs: int) -> str | Loss | None:
    """Return a loss, by its name where it is cross-entropy, or None where it cannot be evaluated.

    Warns in that case, unless the loss takes targets that are numbers or several labels at a time.

    Parameters
    ----------
    loss : str, callable or None
        As of `total_loss`.
    n_outputs : int
        Outputs of the model, where they are known, else zero.
    """
    if loss is None or isinstance(loss, str) or not callable(loss) or n_outputs == 0:
        return loss
    labels = torch.arange(max(2, n_outputs))
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn((len(labels), n_outputs), generator=generator, dtype=torch.float64)
    try:
        found = _gradients(loss, outputs, labels)
        if not found.any() or not found.isfinite().all():
            raise ValueError("its gradient is zero, NaN or infinite")
    except Exception as error:  # a user's loss may raise anything
        if _takes_targets(loss, outputs):
            return None
        warnings.warn(
            f"loss could not be evaluated on outputs of shape {tuple(outputs.shape)} in double precision and integer "
            f"labels ({type(error).__name__}: {error}), and cross-entropy is assumed instead: pass "
            "loss(outputs, labels), a sum or a mean over the inputs",
            UserWarning,
            stacklevel=5,
        )
        return None
    expected = _gradients(None, outputs, labels)
    scale = (found * expected).sum() / expected.square().sum()
    is_cross_entropy = n_outputs > 1 and torch.allclose(found, scale * expected, rtol=0, atol=1e-9 * float(scale.abs()))
    return "cross_entropy" if is_cross_entropy else loss


def _takes_targets(loss: Loss, outputs: torch.Tensor) -> bool:
    """Return whether a loss takes targets of the shape of the outputs."""
    try:
        with torch.no_grad():
            return bool(loss(outputs, torch.rand_like(outputs)).isfinite().all())
    except Exception:  # a user's loss may raise anything
        return False


def _gradients(loss: str | Loss | None, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        z = outputs.clone().requires_grad_()
        return torch.autograd.grad(total_loss(loss, z, labels), z)[0]

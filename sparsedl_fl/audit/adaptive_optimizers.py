"""Optimisers whose first step is a function of the gradient, entry by entry, and how a client rounds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sparsedl_fl.layers.updates import plain_optimizer
from sparsedl_fl.lowrank.saturated_steps import Steps
from sparsedl_fl.tracing.uses import LinearUse

__all__ = ["FIRST_STEPS", "Client", "Optimizer", "is_first_step"]

N_EMULATED = 2**14
"""Steps from zero that show how an optimiser rounds."""


@dataclass(frozen=True)
class Optimizer:
    """The first step of an optimiser, ``learning_rate * reach * g / (|g| + eps)``."""

    kind: type[torch.optim.Optimizer]
    eps: float = 1e-8
    reach: float = 1.0
    is_decoupled: bool = False

    def scale(self, learning_rate: float, dtype: torch.dtype) -> float:
        """Return the mean length of long steps in a client's precision, over what they are exactly.

        The constants of an optimiser are rounded as well: Adam's steps are 6e-8 too short, which is as much as an entry
        a million times ``eps`` differs from the largest.
        """
        weights = nn.Parameter(torch.zeros(N_EMULATED, dtype=dtype))
        gradient = self.eps * torch.logspace(3, 7, N_EMULATED, dtype=torch.float64)
        weights.grad = gradient.to(dtype)
        with torch.enable_grad():
            self.kind([weights], lr=learning_rate, weight_decay=0.0).step()  # type: ignore[call-arg]
        exact = weights.grad.double()
        exact = exact / (exact + self.eps) * learning_rate * self.reach
        return float((-weights.detach().double() / exact).mean())


FIRST_STEPS: Mapping[str, Optimizer] = {
    "adam": Optimizer(torch.optim.Adam),
    "adamax": Optimizer(torch.optim.Adamax),
    "adamw": Optimizer(torch.optim.AdamW, is_decoupled=True),
    "adagrad": Optimizer(torch.optim.Adagrad, eps=1e-10),
    # g / (0.1 |g| + 1e-8), with PyTorch's smoothing constant of 0.99
    "rmsprop": Optimizer(torch.optim.RMSprop, eps=1e-7, reach=10.0),
}
"""Optimisers whose first step is a function of the gradient, with PyTorch's constants. Another ``eps`` in all tensors
scales all gradients by one factor, and no input."""


def is_first_step(optimizer: str, n_steps: int | None) -> bool:
    """Return whether an update may be the first step of an adaptive optimiser that is in range."""
    return plain_optimizer(optimizer) in FIRST_STEPS and n_steps in (None, 1)


@dataclass(frozen=True)
class Client:
    """What is known of the client's optimiser."""

    optimizer: Optimizer
    learning_rate: float
    weight_decay: float

    def steps(self, before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor], use: LinearUse) -> Steps:
        """Return the steps of a layer, its bias as a last column, and an output a row."""
        parts = [self._of(before[use.weight], after[use.weight])]
        parts[0] = parts[0].transposed if use.is_transposed else parts[0]
        if use.bias and after.get(use.bias) is not None:
            parts.append(self._of(before[use.bias][:, None], after[use.bias][:, None]))
        values, deviations, offsets = (np.hstack(part) for part in zip(*map(_arrays, parts), strict=True))
        return Steps(values, deviations, self.optimizer.eps, offsets)

    def _of(self, initial: torch.Tensor, final: torch.Tensor) -> Steps:
        precision = torch.finfo(final.dtype).eps
        start, end = (tensor.detach().cpu().double().numpy() for tensor in (initial, final))
        decay = self.weight_decay * start
        length = self.learning_rate * self.optimizer.reach * self.optimizer.scale(self.learning_rate, final.dtype)
        moved = start - end - (self.learning_rate * decay if self.optimizer.is_decoupled else 0.0)
        # Weights are rounded to nearest, and once more where they decay; a step has the rounding of its arithmetic.
        unit = np.exp2(np.floor(np.log2(np.maximum(np.maximum(np.abs(start), np.abs(end)), 1e-300)))) * precision
        n_roundings = 2 if self.optimizer.is_decoupled and self.weight_decay else 1
        values = moved / length
        deviations = np.hypot(unit / length * np.sqrt(n_roundings / 12), precision * np.abs(values))
        return Steps(values, deviations, self.optimizer.eps, 0.0 * decay if self.optimizer.is_decoupled else decay)


def _arrays(steps: Steps) -> tuple[np.ndarray, ...]:
    return steps.values, steps.deviations, np.broadcast_to(steps.offset, steps.values.shape)

"""What a client's own run shows: the inputs of every linear layer, as they were, masks of dropout included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn import functional

__all__ = ["Truth", "recorded"]


@dataclass
class Truth:
    """What the server is not to know.

    Attributes
    ----------
    runs : list of dict of str to ndarray of shape (rows, n)
        For each step of the client, what every linear layer was fed, tokens as rows; by the weight's name without
        "weight", which is what `sparsedl_fl.models` calls the layer.
    n_parts : int
        Mini-batches that the steps go through in turn.
    tokens : frozenset of int
        Token ids that the client's run looked up or was to predict.
    labels : frozenset of int
        Classes of the records; empty where they have none.
    of_records : ndarray of shape (b,) of int
        The class of each record of the first step, in its order; empty where they have none.
    """

    runs: list[dict[str, np.ndarray]] = field(default_factory=list)
    n_parts: int = 1
    tokens: frozenset[int] = frozenset()
    labels: frozenset[int] = frozenset()
    of_records: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))

    def fed(self, layer: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return what a layer was fed of each record at its first and its last step; None for one that did not run.

        An update sums up the steps, so that what comes back of a record's features is a mean of both.
        """
        if not self.runs or layer not in self.runs[0]:
            return None
        of_parts = [self.runs[part :: self.n_parts] for part in range(self.n_parts)]
        first, last = (np.concatenate([runs[i][layer] for runs in of_parts]) for i in (0, -1))
        return first, last


@contextmanager
def recorded(model: nn.Module, truth: Truth) -> Iterator[None]:
    """Add one run of the model to the truth.

    Torch's own modules, attention too, reach every product with a weight through one function, which is watched.
    """
    names = {id(tensor): name.removesuffix("weight").removesuffix(".") for name, tensor in model.named_parameters()}
    linear, run = functional.linear, {}

    def watched(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if id(weight) in names:
            run.setdefault(names[id(weight)], []).append(x.detach().double().reshape(-1, x.shape[-1]).numpy())
        return linear(x, weight, bias)

    with mock.patch.object(functional, "linear", watched):
        yield
    truth.runs.append({name: np.concatenate(parts) for name, parts in run.items()})

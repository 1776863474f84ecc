"""Run the client again with what was recovered, and compare every tensor of its gradient with the one sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch

from sparsedl.process import neutral_modes
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.layers.losses import Loss, total_loss
from sparsedl_fl.layers.running_model import RunFrom
from sparsedl_fl.propagate.backward import KnownBatch
from sparsedl_fl.propagate.checks import sizes_of
from sparsedl_fl.propagate.draws import drawn_inputs
from sparsedl_fl.tracing.naming import plain_parameters
from sparsedl_fl.tracing.tracing import hooked

__all__ = ["Replay", "replay"]


@dataclass(frozen=True)
class Replay:
    """The result of running the client again.

    Attributes
    ----------
    deviations : dict of str to float
        By parameter, ``|G' - G| / |G|`` of the replayed gradient ``G'`` and the one sent.
    tolerance : float
        Deviation up to which a tensor counts as the same: ten times noise and expected errors.
    weights : ndarray of shape (b,)
        Share of the loss that each recovered input has: ``1 / b`` for a mean, more for one that is in the batch twice.
    weight_errors : ndarray of shape (b,)
        What these may be off by, relative: what is left of an input's column of gradients, and what the input's own
        error makes of it (a record that the model knows well has a small gradient, whose direction hardly changes and
        whose length does). Infinite where none was computed.
    start : str
        The layer from which the client was run.
    """

    deviations: Mapping[str, float]
    tolerance: float
    weights: np.ndarray
    weight_errors: np.ndarray
    start: str = ""

    @property
    def n_matching(self) -> int:
        """Number of tensors that match."""
        return sum(deviation <= self.tolerance for deviation in self.deviations.values())

    @property
    def is_match(self) -> bool:
        """Whether all tensors that were compared match."""
        return len(self.deviations) > 0 and self.n_matching == len(self.deviations)

    def __str__(self) -> str:
        worst = max(self.deviations.values(), default=np.inf)
        where = f" from layer {self.start!r} on" if self.start else ""
        return (
            f"replayed: {self.n_matching} of {len(self.deviations)} tensors of the gradient{where} match the update, "
            f"the worst to {worst:.1g} of its size (tolerance {self.tolerance:.1g})"
        )


@neutral_modes(gradients=True)
def replay(
    run: RunFrom,
    known: KnownBatch,
    gradients: Mapping[str, torch.Tensor],
    *,
    loss: str | Loss | None = None,
    noise: float = 1e-6,
) -> Replay:
    """Run the client again from a layer whose whole batch is known.

    Parameters
    ----------
    run : RunFrom
        The model, from that layer on.
    known : KnownBatch
        The batch, with all labels.
    gradients : mapping of str to torch.Tensor
        What the client sent, by plain names of the parameters.
    loss : str, callable or None, default=None
        As of `sparsedl_fl.layers.network_tail.RestOfNetwork`.
    noise : float, default=1e-6
        Share of the gradient that is noise.

    Raises
    ------
    ValueError
        If a label is not known.
    """
    if (known.labels == NO_LABEL).any():
        raise ValueError(f"{int(np.sum(known.labels == NO_LABEL))} of {len(known.labels)} labels are not known")
    labels = torch.as_tensor(known.labels)
    weights, weight_errors = _weights(run, known, labels, loss)
    outputs = run(known.inputs)
    total = sum(
        weight * total_loss(loss, outputs[i : i + 1], labels[i : i + 1]) for i, weight in enumerate(weights.tolist())
    )
    parameters = plain_parameters(run.model)
    returned = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    deviations = {}
    for name, tensor in zip(parameters, returned, strict=True):
        sent = gradients.get(name)
        if tensor is None or sent is None:
            continue
        sent = sent.detach().cpu().double()
        size = float(sent.norm()) or float(tensor.norm()) or 1.0
        deviations[name] = float((tensor - sent).norm()) / size
    explained = noise + float(np.max(known.errors / sizes_of(known.inputs)))
    return Replay(deviations, float(np.clip(10 * explained, 1e-5, 0.1)), weights, weight_errors)


def _weights(run: RunFrom, known: KnownBatch, labels: torch.Tensor, loss: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of each input in the loss, the length of its column over that for its loss alone, and errors."""
    b = len(known.inputs)
    if run.layer is None:
        return np.full(b, 1 / b), np.full(b, np.inf)
    alone = _gradients_alone(run, known.inputs, labels, loss)
    weights = _shares(alone, known.gradients.T)
    explained = weights[:, None] * alone
    sizes = np.maximum(np.linalg.norm(explained, axis=1), np.finfo(float).tiny)
    left = np.linalg.norm(known.gradients.T - explained, axis=1) / sizes
    drawn = [_shares(_gradients_alone(run, inputs, labels, loss), known.gradients.T) for inputs in drawn_inputs(known)]
    off = np.max([np.abs(shares - weights) for shares in drawn], axis=0)
    return weights, np.hypot(left, off / np.maximum(np.abs(weights), np.finfo(float).tiny))


def _gradients_alone(run: RunFrom, inputs: np.ndarray, labels: torch.Tensor, loss: Any) -> np.ndarray:
    """Return the gradient of each input's loss alone at the outputs of the layer, of shape (b, m)."""
    outputs: list[torch.Tensor] = []
    with hooked({run.layer: lambda part, given, found: outputs.append(found)}):
        found = run(inputs)
    each = reduce(torch.add, (total_loss(loss, found[i : i + 1], labels[i : i + 1]) for i in range(len(inputs))))
    (returned,) = torch.autograd.grad(each, outputs[0])
    return returned.flatten(1).numpy()


def _shares(alone: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return by which number each row has to be multiplied to come next to another."""
    return np.sum(alone * columns, axis=1) / np.maximum(np.sum(alone**2, axis=1), np.finfo(float).tiny)

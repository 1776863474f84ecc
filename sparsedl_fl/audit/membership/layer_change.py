"""How training changed a linear layer, without the decay of its initial weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedl_fl.audit.membership.row_space import RowSpace
from sparsedl_fl.layers.decayed_start import decay_by_rank
from sparsedl_fl.layers.formats import rounding_noise
from sparsedl_fl.layers.stored_weights import rounding_of_stored
from sparsedl_fl.tracing.naming import check_same_tensors, plain_names, unwrapped
from sparsedl_fl.wording import argument

__all__ = ["KINDS", "LayerChange", "SentTensors", "change_of_layer", "key_of"]

KINDS = ("weights", "delta", "gradient")
"""What a client sent: its weights after training, these less the weights before, or a gradient."""

STEPS, ONCE = 300.0, 3.0
"""Rounding over that of one step in single precision, after 90,000 of them if they are independent; and over that of
the format of what was sent, whose numbers need not be evenly spread."""


@dataclass(frozen=True)
class SentTensors:
    """The floating tensors of a model before training, and what the client sent, by plain name.

    Parameters
    ----------
    initial, sent : mapping of name to torch.Tensor
        By plain name.
    kind : str
        One of `KINDS`.
    """

    initial: Mapping[str, torch.Tensor]
    sent: Mapping[str, torch.Tensor]
    kind: str

    @classmethod
    def of(cls, before: Any, after: Any, kind: str) -> SentTensors:
        """Check two states or models.

        Raises
        ------
        ValueError
            If they are not of one model, or not finite.
        """
        if kind not in KINDS:
            raise ValueError(f"{argument('kind')} must be one of {KINDS}, got {kind!r}")
        initial, sent = _floating("before", before), _floating("after", after)
        check_same_tensors(initial, sent, argument("after"), needed=())
        for name, tensors in (("before", initial), ("after", sent)):
            wrong = next((key for key, tensor in tensors.items() if not tensor.isfinite().all()), None)
            if wrong is not None:
                raise ValueError(f"{argument(name)} has NaN or infinity in {wrong!r}: no client sends that")
        return cls(initial, sent, kind)

    def change(self, name: str) -> np.ndarray:
        """Return the initial less the final weights, or the gradient, in double precision; zeros where nothing came."""
        if name not in self.sent:
            return np.zeros(self.initial[name].shape)
        sent = self.sent[name].double()
        if self.kind == "weights":
            return (self.initial[name].double() - sent).numpy()
        return (sent if self.kind == "gradient" else -sent).numpy()

    def rounding(self, name: str) -> float:
        """Return the largest root mean square of what rounding adds to an entry.

        Weights are rounded in single precision at each step, and what was sent once, maybe coarser.
        """
        sent = self.sent[name].double().numpy()
        weights = sent if self.kind == "gradient" else self.initial[name].double().numpy()
        coarse = rounding_noise(sent)
        once = rounding_of_stored(sent) if coarse is None else float(np.sqrt(np.mean(coarse**2)))
        each = rounding_of_stored(weights.astype(np.float32)) if (weights != 0).any() else rounding_of_stored(sent)
        return max(STEPS * min(each, once), ONCE * once)


def _floating(name: str, given: Any) -> dict[str, torch.Tensor]:
    given = unwrapped(given).state_dict() if isinstance(given, nn.Module) else given
    tensors = plain_names(argument(name), given)
    return {
        key: tensor.detach().cpu()
        for key, tensor in tensors.items()
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    }


@dataclass(frozen=True)
class LayerChange:
    """How training changed a linear layer, the bias as one more column.

    Parameters
    ----------
    name : str
        The layer's.
    space : RowSpace
        Of the change.
    rounding : float
        Largest root mean square of what rounding adds to an entry.
    constant : float or None
        Input that belongs to the bias, on the scale of the others; None without bias.
    """

    name: str
    space: RowSpace
    rounding: float
    constant: float | None

    @property
    def is_whole(self) -> bool:
        """Whether all inputs show that left more than rounding."""
        return self.space.is_whole(self.rounding)

    def with_constant(self, inputs: np.ndarray) -> np.ndarray:
        """Return inputs of shape (k, n) with that of the bias."""
        if self.constant is None:
            return inputs
        return np.hstack([inputs, np.full((len(inputs), 1), self.constant)])


def key_of(name: str) -> str:
    """Return the name of a layer's weight."""
    return f"{name}.weight" if name else "weight"


def change_of_layer(tensors: SentTensors, name: str, scale: float) -> LayerChange:
    """Return how training changed a layer; the rank shows how much of its initial weights had decayed.

    Parameters
    ----------
    tensors : SentTensors
        The model's.
    name : str
        The layer's.
    scale : float
        Typical size of an input, which that of the bias is given.
    """
    key = key_of(name)
    bias = key.removesuffix("weight") + "bias"
    has_bias = bias in tensors.sent
    initial = [tensors.initial[one].double().numpy() for one in (key, bias) if one in tensors.sent]
    change = [tensors.change(one) for one in (key, bias) if one in tensors.sent]

    def without_decay(kept: float, kept_of_bias: float) -> LayerChange:
        parts = [change[0] - (1 - kept) * initial[0]]
        if has_bias:
            parts.append(scale * (change[1] - (1 - kept_of_bias) * initial[1])[:, None])
        return LayerChange(name, RowSpace.of(np.hstack(parts)), tensors.rounding(key), scale if has_bias else None)

    found = without_decay(1.0, 1.0)
    if found.is_whole or tensors.kind == "gradient":
        return found
    before = torch.from_numpy(initial[0])
    try:
        kept = decay_by_rank({key: (before, before - torch.from_numpy(change[0]))})
    except ValueError:
        return found
    decayed = [without_decay(kept, 1.0), *([without_decay(kept, kept)] if has_bias else [])]
    return min([found, *decayed], key=lambda one: (not one.is_whole, one.space.noise))

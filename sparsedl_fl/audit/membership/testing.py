"""Test whether records were trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedl.arrays import draw_seed
from sparsedl.process import neutral_modes
from sparsedl_fl.audit.membership.hidden_changes import WITHIN, hides_pairs, hides_small_changes
from sparsedl_fl.audit.membership.layer_change import LayerChange, SentTensors, change_of_layer
from sparsedl_fl.audit.membership.layer_inputs import OutOfRange, inputs_of_layer
from sparsedl_fl.audit.membership.strangers import Strangers, made_up
from sparsedl_fl.audit.writing import written
from sparsedl_fl.wording import argument, plain_json

__all__ = ["Membership", "members"]

SIGNIFICANCE = 1e-3
"""Chance that any record is found that was not trained on, over all records that are tested."""

CLEARLY_OUTSIDE = 10.0
"""The same ratio, from which on a tested record counts as one that was not trained on. Between the two it is near one
that was, or the noise is larger in some columns than in others: nothing is said of it."""


@dataclass(frozen=True)
class Membership:
    """Which records a layer's change shows to have been trained on.

    Attributes
    ----------
    is_member : ndarray of shape (n_records,) of bool
        Whether the record was trained on, or several whose weighted mean it is.
    p_values : ndarray of shape (n_records,)
        Chance that a record that was not trained on lies as near the row space; one outside it.
    in_range : ndarray of shape (n_records,) of bool
        Whether the record would be found if it was trained on and its gradient left more than rounding.
    distances, expected_distances : ndarray of shape (n_records,)
        From the row space, relative to the record, and what is expected of one that was trained on. A record that
        differs from one trained on by less than twice that looks the same.
    reasons : tuple of str
        Why a record is out of range, else "".
    reason : str
        Why all are, else "".
    layer : str
        Name of the layer.
    shape : (int, int) or None
        Its outputs and inputs.
    n_directions : int
        Different inputs that its change shows, at least.
    """

    is_member: np.ndarray
    p_values: np.ndarray
    in_range: np.ndarray
    distances: np.ndarray
    expected_distances: np.ndarray
    reasons: tuple[str, ...]
    reason: str = ""
    layer: str = ""
    shape: tuple[int, int] | None = None
    n_directions: int = 0

    @classmethod
    def out_of_range(cls, n_records: int, reason: str) -> Membership:
        """Return the result where nothing can be said of any record."""
        none, far = np.zeros(n_records, dtype=bool), np.full(n_records, np.nan)
        return cls(none, np.ones(n_records), none.copy(), far, far.copy(), (reason,) * n_records, reason)

    @property
    def n_members(self) -> int:
        """Number of records that were trained on."""
        return int(self.is_member.sum())

    @property
    def exit_status(self) -> int:
        """1 where a record was found, 0 where none was and all are in range, 3 else."""
        return 1 if self.n_members else 0 if self.in_range.all() else 3

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        rows = [
            {
                "record": number,
                "trained_on": bool(self.is_member[number]),
                "p_value": float(self.p_values[number]),
                "in_range": bool(self.in_range[number]),
                "distance": _or_none(self.distances[number]),
                "expected_distance": _or_none(self.expected_distances[number]),
                "reason": self.reasons[number],
            }
            for number in range(len(self.is_member))
        ]
        return {
            "summary": str(self),
            "n_records": len(rows),
            "n_members": self.n_members,
            "n_in_range": int(self.in_range.sum()),
            "reason": self.reason,
            "layer": self.layer,
            "shape": None if self.shape is None else list(self.shape),
            "n_directions": self.n_directions,
            "records": rows,
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the result as JSON, and write it where a path is given."""
        return written(plain_json(self.to_dict()) + "\n", path)

    def __str__(self) -> str:
        n = len(self.is_member)
        if self.reason and not self.n_members:
            return f"OUT OF RANGE: nothing can be said of these {n} records: {self.reason}"
        found = f"{self.n_members} of {n} records were trained on"
        n_open = int((~self.in_range & ~self.is_member).sum())
        rest = f"; of {n_open} nothing can be said" if n_open else ""
        shown = f"{self.layer or 'the layer'} shows {self.n_directions} different inputs at least"
        return f"{found}{rest} ({shown}; records with gradients below rounding leave no trace)"


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


@neutral_modes()
def members(
    before: Mapping[str, torch.Tensor] | nn.Module,
    after: Mapping[str, torch.Tensor] | nn.Module,
    records: Any,
    *,
    others: Any = None,
    kind: str = "weights",
    layer: str | None = None,
    n_trained: int | None = None,
    random_state: Any = 0,
) -> Membership:
    """Test for each record whether a client trained on it, by a model before and after any number of steps of SGD.

    A linear layer changes by a sum of ``d x^T`` over its inputs, whatever the steps: its change has each of them in its
    row space, up to rounding of known size, and others lie outside. Momentum and a falling learning rate change
    nothing; how far weight decay shrank the initial weights is found by the rank. A weighted mean of trained records
    lies there too, and so does what differs from one by less than rounding shows; without bias, a multiple of one.

    Parameters
    ----------
    before : torch.nn.Module or mapping of name to tensor
        The model that the client was given, in the mode in which the client trained it, or its state: then the first
        layer that takes as many numbers as a record has must take records as they are.
    after : torch.nn.Module or mapping of name to tensor
        What the client sent.
    records : array-like or torch.Tensor of shape (n_records, ...)
        Records to test, on the scale that the model takes.
    others : array-like or torch.Tensor of shape (n_others, ...), default=None
        Records like these that were not trained on, twenty or more: p-values come from them. None takes tested records
        that clearly lie outside, and made-up ones.
    kind : {"weights", "delta", "gradient"}, default="weights"
        What ``after`` is: weights after training, these less the weights before, or a gradient.
    layer : str or None, default=None
        Name of the layer to look at; None takes the largest whose inputs training leaves the same.
    n_trained : int or None, default=None
        Number of different records that the client trained on, where that is known: where fewer show, records that
        are not found are out of range.
    random_state : int, RandomState or None, default=0
        Seed of the made-up records.

    Returns
    -------
    Membership
        A p-value for each record, and whether it is in range.

    Raises
    ------
    TypeError, ValueError
        If the states are not of one model, or the records do not fit it.

    Notes
    -----
    In range are records below the width and the number of features of the layer. Not finding a record says that it
    left no trace above rounding, not that it was not trained on.
    """
    tensors = SentTensors.of(before, after, kind)
    tested = _checked("records", records)
    strange = None if others is None else _checked("others", others)
    model = before if isinstance(before, nn.Module) else None
    both = tested if strange is None else torch.cat([tested, _reshaped(strange, tested)])
    try:
        name, inputs = inputs_of_layer(model, tensors, both, layer)
    except OutOfRange as why:
        return Membership.out_of_range(len(tested), str(why))
    scale = float(np.sqrt(np.mean(inputs**2))) or 1.0
    change = change_of_layer(tensors, name, scale)
    if not change.space.n_directions:
        return Membership.out_of_range(len(tested), f"the change of {name!r} shows no input above its noise")
    rng = np.random.default_rng(draw_seed(random_state))
    return _judged(change, inputs[: len(tested)], inputs[len(tested) :], n_trained, rng)


def _checked(name: str, given: Any) -> torch.Tensor:
    found = torch.as_tensor(given).detach().cpu()
    found = found if found.is_floating_point() else found.float()
    if found.ndim < 2 or not found.numel():
        raise ValueError(
            f"{argument(name)} must have shape (n_records, ...) with a number in it, got {tuple(found.shape)}"
        )
    if not found.isfinite().all():
        raise ValueError(f"{argument(name)} has NaN or infinity")
    return found


def _reshaped(others: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
    if others[0].numel() != records[0].numel():
        raise ValueError(
            f"{argument('others')} has records of shape {tuple(others.shape[1:])}, and {argument('records')} of "
            f"{tuple(records.shape[1:])}"
        )
    return others.reshape(len(others), *records.shape[1:]).to(records.dtype)


def _judged(
    change: LayerChange, inputs: np.ndarray, others: np.ndarray, n_trained: int | None, rng: np.random.Generator
) -> Membership:
    """Return the result for inputs of shape (n_records, rows, n)."""
    distances, expected, norms = _measured(change, inputs)
    is_near, is_outside = distances <= WITHIN * expected, distances >= CLEARLY_OUTSIDE * expected
    away, spread = others, 0.0
    if not len(others):
        made, spread = made_up(inputs.reshape(len(inputs), -1), rng)
        away = np.concatenate([made.reshape(-1, *inputs.shape[1:]), inputs[is_outside]])
    strangers = Strangers(_measured(change, away)[0], spread)
    limit = SIGNIFICANCE / len(inputs)
    p_values = np.where(is_near, strangers.chance_of(distances), 1.0)
    rows, pool = inputs.reshape(-1, inputs.shape[-1]), np.concatenate([inputs, others]).reshape(-1, inputs.shape[-1])
    visible = np.repeat(WITHIN * expected * norms, inputs.shape[1])
    is_hidden = hides_small_changes(change.space, rows, pool, visible).reshape(inputs.shape[:2]).any(axis=1)
    outside = change.with_constant(away.reshape(-1, away.shape[-1]))
    obstacles = {
        "a record of zeros leaves no trace in a layer without bias": norms == 0,
        "a record that differs in one feature, or in a swap of two, would look the same": is_hidden,
        "other records differ by what the row space hides": np.full(len(inputs), hides_pairs(change.space, outside)),
        "records that were not trained on lie as near as it would": strangers.chance_of(WITHIN * expected) > limit,
    }
    is_member = is_near & (p_values <= limit) & ~np.any(list(obstacles.values()), axis=0)
    obstacles["it lies near what was trained on, but not as near as rounding explains"] = ~is_near & ~is_outside
    beyond = "" if change.is_whole else _why_hidden(change)
    if not beyond and n_trained is not None and change.space.n_directions < n_trained:
        beyond = f"{change.space.n_directions} inputs show, of {n_trained} that were trained on"
    reasons = [
        "" if is_member[number] else next((why for why, applies in obstacles.items() if applies[number]), beyond)
        for number in range(len(inputs))
    ]
    return Membership(
        is_member=is_member,
        p_values=p_values,
        in_range=np.array([not reason for reason in reasons]),
        distances=distances,
        expected_distances=expected,
        reasons=tuple(reasons),
        reason=beyond,
        layer=change.name,
        shape=change.space.shape,
        n_directions=change.space.n_directions,
    )


def _measured(change: LayerChange, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distances of records from the row space and the expected ones, relative to their norms, and these."""
    flat, shape = change.with_constant(inputs.reshape(-1, inputs.shape[-1])), inputs.shape[:2]
    found = (change.space.distances(flat), change.space.expected_distances(flat), np.linalg.norm(flat, axis=1))
    distances, expected, norms = (np.linalg.norm(part.reshape(shape), axis=1) for part in found)
    relative = np.maximum(norms, np.finfo(float).tiny)
    return distances / relative, expected / relative, norms


def _why_hidden(change: LayerChange) -> str:
    space = change.space
    beyond = (
        f"beyond {space.n_directions} inputs the change of {change.name or 'the layer'!r}, of shape {space.shape}, has"
    )
    if space.noise <= change.rounding and space.n_open[0] >= 2:
        return f"{beyond} rounding as large as the weakest of them: it may hide others"
    times = space.noise / change.rounding
    return (
        f"{beyond} {times:.2g} times as much as rounding can be: more records were trained on than the layer is wide, "
        "noise was added, or the optimiser is not SGD"
    )

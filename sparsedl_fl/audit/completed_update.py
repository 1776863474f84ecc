"""An update of which not every gradient was sent as it is: completed, fitted, or worked out from what was.

By what filters left (`filtered`), from the first step of an adaptive optimiser (`first_step`), from adapters
(`adapted`). What could not be had whole is not used: units whose rows are open are taken out of their layer, features
are estimated, and their errors count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.open_columns import Estimates
from sparsedl_fl.tracing.uses import LinearUse

__all__ = ["CompletedUpdate"]

MOST_ESTIMATED = 0.5
"""Share of a layer's features that may be estimates: more of them would make up most of its inputs."""


@dataclass(frozen=True, eq=False)
class CompletedUpdate:
    """The gradients of an update, sent or worked out.

    Attributes
    ----------
    gradients : dict of str to torch.Tensor or None
        By plain name: completed, and None where that was not possible or not to the whole.
    partly : dict of str to torch.Tensor
        Those that are completed but for some rows or columns.
    open_rows, open_columns : dict of str to ndarray of bool
        These, by the weight's name.
    estimates : dict of str to Estimates
        Of the open columns, by the weight's name.
    reasons : dict of str to str
        Why a matrix is not known, by its name.
    notes : tuple of str
        What was done, in sentences.
    doubt : str
        Why a layer that gives nothing has not resisted; empty where it may have.
    """

    gradients: dict[str, torch.Tensor | None]
    partly: dict[str, torch.Tensor] = field(default_factory=dict)
    open_rows: dict[str, np.ndarray] = field(default_factory=dict)
    open_columns: dict[str, np.ndarray] = field(default_factory=dict)
    estimates: dict[str, Estimates] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    doubt: str = ""

    @property
    def sent(self) -> dict[str, torch.Tensor | None]:
        """All gradients, completed to the whole or in part."""
        return self.gradients | self.partly

    @property
    def is_worked_out(self) -> bool:
        """Whether any gradient is another than the one sent."""
        return bool(self.notes)

    def tensors_of(self, use: LinearUse) -> dict[str, torch.Tensor | None]:
        """Return the gradients that a layer's attack may use; raises ``ValueError`` where its own is not completed."""
        if use.weight in self.reasons:
            raise ValueError(self.reasons[use.weight])
        _, columns = self._open(use.weight, use.is_transposed)
        is_estimated = use.weight in self.estimates and not use.is_transposed
        if columns is not None and np.mean(columns) > (MOST_ESTIMATED if is_estimated else 0):
            raise ValueError(
                f"the update was filtered, and {int(columns.sum())} of {len(columns)} features of the layer have too "
                "few entries left in its gradient to complete it"
            )
        own = {name: self.partly[name] for name in (use.weight, use.bias, use.next_weight) if name in self.partly}
        return self.gradients | own

    def without_open_units(self, given: LayerGradient, use: LinearUse) -> LayerGradient:
        """Return a layer without the units of which its own gradient or the next layer's has too few entries.

        Then the next layer's gradient is all that is used of the downstream network: it would need all units.
        """
        own, _ = self._open(use.weight, use.is_transposed)
        next_rows, next_columns = self._open(use.next_weight, use.next_is_transposed)
        is_open = np.zeros(given.shape[0], dtype=bool)
        for part in (own, next_columns):
            is_open |= False if part is None else part
        if not is_open.any() and (next_rows is None or not next_rows.any()):
            return given
        kept, following = ~is_open, given.next_layer
        has_weight = following.weight is not None and (next_rows is None or not next_rows.any())
        return LayerGradient(
            weight=given.weight[kept],
            bias=given.bias[kept],
            weight_grad=given.weight_grad[kept],
            bias_grad=given.bias_grad[kept],
            next_weight_grad=None if following.weight_grad is None else following.weight_grad[:, kept],
            next_weight=following.weight[:, kept] if has_weight and following.weight_grad is not None else None,
            learning_rate=given.learning_rate,
            activation=given.activation,
            rows_per_sample=given.rows_per_sample,
        )

    def estimates_of(self, use: LinearUse) -> Estimates | None:
        """Return the estimates of a layer's features that have too few entries left; None where all have enough."""
        return self.estimates.get(use.weight)

    def _open(self, name: str, is_transposed: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
        parts = self.open_rows.get(name), self.open_columns.get(name)
        return parts[::-1] if is_transposed else parts

"""Constraints of the samples that are not known yet: each known one leaves the others more equations."""

from __future__ import annotations

import torch

from sparsedl_fl.constraints import Constraint, DownstreamSubspaces, Inputs
from sparsedl_fl.search.knowledge import Knowledge
from sparsedl_fl.search.single_fits import SingleFits

__all__ = ["Remaining"]


class Remaining:
    """The constraints of a search, deflated by known samples.

    With a zero-slope region they are not deflated: few units are active, which hardly determines the columns of
    downstream layers.

    Parameters
    ----------
    constraints : dict of str to Constraint or None
        By name.
    left : torch.Tensor of shape (m, b)
        ``U``, from columns ``q`` to gradients ``d``.

    Attributes
    ----------
    whole : dict of str to Constraint or None
        The constraints without deflation.
    """

    def __init__(self, constraints: dict[str, Constraint | None], left: torch.Tensor) -> None:
        self.whole, self._deflated, self._left, self._n_deflated = constraints, constraints, left, 0

    def __getitem__(self, name: str) -> Constraint | None:
        """Return a deflated constraint."""
        return self._deflated[name]

    @property
    def first(self) -> DownstreamSubspaces:
        """The next layer's activation subspace, deflated, where there is one."""
        first = self._deflated["first"]
        assert isinstance(first, DownstreamSubspaces)
        return first

    def leave_out(self, knowledge: Knowledge, fits: SingleFits) -> None:
        """Deflate by samples that are known since the last time, with their columns."""
        inputs, columns = knowledge.pairs(self._n_deflated)
        self._n_deflated = knowledge.n_found
        if knowledge.coordinates.activation.has_flat_part or len(inputs) == 0:
            return
        known = Inputs(inputs, fits.preactivations(inputs), columns @ self._left.T)
        distinct = {id(constraint): constraint for constraint in self._deflated.values() if constraint is not None}
        reduced = {key: constraint.without(known) for key, constraint in distinct.items()}
        self._deflated = {
            name: None if constraint is None else reduced[id(constraint)] for name, constraint in self._deflated.items()
        }

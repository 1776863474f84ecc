"""What the inputs fulfil that are not known yet: each that is found leaves the others more equations."""

from __future__ import annotations

import torch

from sparsedl_fl.constraints import Constraint, DownstreamSubspaces, Inputs
from sparsedl_fl.search.knowledge import Knowledge
from sparsedl_fl.search.single_fits import SingleFits

__all__ = ["Remaining"]


class Remaining:
    """The views of a search, without what is known.

    Behind flat parts all stay as they are: few units are on, and say next to nothing of the layers behind.

    Parameters
    ----------
    views : dict of str to Constraint or None
        By name.
    left : torch.Tensor of shape (m, b)
        What takes columns ``q`` to gradients ``d``.

    Attributes
    ----------
    whole : dict of str to Constraint or None
        The views as they were given.
    """

    def __init__(self, coordinates: dict[str, Constraint | None], left: torch.Tensor) -> None:
        self.whole, self._views, self._left, self._n_left_out = coordinates, coordinates, left, 0

    def __getitem__(self, name: str) -> Constraint | None:
        """Return what is left of a view."""
        return self._views[name]

    @property
    def first(self) -> DownstreamSubspaces:
        """What is left of the next layer's activation subspace, where there is one."""
        first = self._views["first"]
        assert isinstance(first, DownstreamSubspaces)
        return first

    def leave_out(self, knowledge: Knowledge, fits: SingleFits) -> None:
        """Leave out what is known since the last time, and has its column."""
        inputs, columns = knowledge.pairs(self._n_left_out)
        self._n_left_out = knowledge.n_found
        if knowledge.coordinates.activation.has_flat_part or len(inputs) == 0:
            return
        known = Inputs(inputs, fits.preactivations(inputs), columns @ self._left.T)
        distinct = {id(constraint): constraint for constraint in self._views.values() if constraint is not None}
        reduced = {key: constraint.without(known) for key, constraint in distinct.items()}
        self._views = {
            name: None if constraint is None else reduced[id(constraint)] for name, constraint in self._views.items()
        }

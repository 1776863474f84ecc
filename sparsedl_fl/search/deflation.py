"""What the inputs fulfil that are not known yet: each that is found leaves the others more equations."""

from __future__ import annotations

import torch

from sparsedl_fl.constraints import Inputs, SpansBehind, View
from sparsedl_fl.search.single_fits import InputFits
from sparsedl_fl.search.state import Knowledge

__all__ = ["Others"]


class Others:
    """The views of a search, without what is known.

    Behind flat parts all stay as they are: few units are on, and say next to nothing of the layers behind.

    Parameters
    ----------
    views : dict of str to View or None
        Those that starts descend, by the name of the stage; the first span, where there is one, is added.
    behind : SpansBehind or None
        All spans.
    left : torch.Tensor of shape (m, b)
        What takes columns ``q`` to gradients ``d``.
    """

    def __init__(self, views: dict[str, View | None], behind: SpansBehind | None, left: torch.Tensor) -> None:
        first = None if behind is None else behind.first
        self._views, self._left, self._n_left_out = {**views, "first": first}, left, 0

    def __getitem__(self, name: str) -> View | None:
        """Return what is left of a view."""
        return self._views[name]

    def leave_out(self, knowledge: Knowledge, fits: InputFits) -> None:
        """Leave out what is known since the last time, and has its column."""
        inputs, columns = knowledge.pairs(self._n_left_out)
        self._n_left_out = knowledge.n_found
        if knowledge.views.activation.has_flat_part or len(inputs) == 0:
            return
        known = Inputs(inputs, fits.preactivations(inputs), columns @ self._left.T)
        distinct = {id(view): view for view in self._views.values() if view is not None}
        reduced = {key: view.besides(known) for key, view in distinct.items()}
        self._views = {name: None if view is None else reduced[id(view)] for name, view in self._views.items()}

"""The best search known."""

from __future__ import annotations

from sparsedl import SparseDictionaryRecovery
from sparsedl_fl.directions.activation import ActivationDirections
from sparsedl_fl.directions.dictionary import DictionaryDirections
from sparsedl_fl.directions.strategy import Directions

__all__ = ["best_known"]


def best_known(max_seconds: float | None = None, max_effort: float | None = None) -> Directions:
    """Return the best search known, today `ActivationDirections`.

    Parameters
    ----------
    max_seconds, max_effort : float or None, default=None
        Cap on its time, and budget of its starts by their cost, as of `ActivationDirections`. Without either,
        `DictionaryDirections` searches for missing columns, and gives up after three rounds without a new one.
    """
    if max_seconds is not None or max_effort is not None:
        return ActivationDirections(max_seconds=max_seconds, max_effort=max_effort)
    return ActivationDirections(fallback=DictionaryDirections(SparseDictionaryRecovery(patience=3)))

"""The best search known."""

from __future__ import annotations

from sparsedl import SparseDictionaryRecovery
from sparsedl_fl.directions._base import Directions
from sparsedl_fl.directions.activation import ActivationDirections
from sparsedl_fl.directions.dictionary import DictionaryDirections

__all__ = ["best_known"]


def best_known(max_seconds: float | None = None) -> Directions:
    """Return the best search known, today `ActivationDirections`.

    Parameters
    ----------
    max_seconds : float or None, default=None
        Cap on its time. Without one `DictionaryDirections` tries what is left over: what three of its rounds without a
        new column leave over stays so.
    """
    if max_seconds is not None:
        return ActivationDirections(max_seconds=max_seconds)
    return ActivationDirections(fallback=DictionaryDirections(SparseDictionaryRecovery(patience=3)))

"""Checks of what users pass in."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from sparsedl.arrays import as_numpy


def check_observations(estimator: Any, X: Any, *, reset: bool) -> np.ndarray:
    """Validate observations as scikit-learn does: two-dimensional, finite, real, float32 or float64.

    Parameters
    ----------
    estimator : BaseEstimator
        Receives ``n_features_in_`` and ``feature_names_in_`` when ``reset`` is true.
    X : array-like or torch.Tensor of shape (n_samples, n_features)
        Observations.
    reset : bool
        True in ``fit``, False afterwards.
    """
    return validate_data(
        estimator,
        as_numpy(X),
        reset=reset,
        dtype=[np.float64, np.float32],
        ensure_min_samples=2 if reset else 1,
    )


def check_positive(owner: Any, name: str, value: Any, *, integer: bool = False) -> None:
    """Raise ``ValueError`` naming the parameter unless ``value`` is a positive finite number (or integer)."""
    kinds = (int, np.integer) if integer else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, kinds) or not np.isfinite(value) or value <= 0:
        kind = "a positive integer" if integer else "a positive finite number"
        raise ValueError(f"{type(owner).__name__}: {name} must be {kind}, got {value!r}")


def pick_strategy(name: str, given: Any, kind: type, default: type) -> Any:
    """Return a clone of a strategy or the default, after checking its kind and its parameters."""
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"{name} must be an instance of {kind.__name__} or None, got {given!r}")
    strategy = default() if given is None else clone(given)
    strategy.check_parameters()
    return strategy

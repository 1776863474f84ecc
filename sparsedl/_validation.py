"""Checks of what users pass in."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import ClassVar, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import validate_data

from sparsedl.arrays import Matrix, as_numpy

EPS = float(np.finfo(np.float64).eps)


class Strategy(BaseEstimator, ABC):
    """What an estimator is given as a parameter, with parameters of its own."""

    positive: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that have to be positive."""

    counts: ClassVar[tuple[str, ...]] = ()
    """Names of those that have to be positive integers."""

    def check_parameters(self) -> None:
        """Raise ``ValueError`` for a parameter out of its range. Called once by ``fit``."""
        for name in (*self.positive, *self.counts):
            check_positive(self, name, getattr(self, name), integer=name in self.counts)


S = TypeVar("S", bound=Strategy)


def rounding_of(X: Matrix) -> float:
    """Return the rounding of the number format that observations come in; whole numbers have that of double precision.

    Half precision is read into a wider format, and its entries are as rough as they were.
    """
    if isinstance(X, torch.Tensor):
        return max(torch.finfo(X.dtype).eps, EPS) if X.dtype.is_floating_point else EPS
    dtype = np.asarray(X).dtype
    return max(float(np.finfo(dtype).eps), EPS) if np.issubdtype(dtype, np.floating) else EPS


def check_observations(estimator: BaseEstimator, X: Matrix, *, reset: bool) -> np.ndarray:
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
    if isinstance(X, np.ma.MaskedArray):
        raise ValueError(
            f"{type(estimator).__name__}: X is a masked array, and every entry is needed: give only rows without "
            "masked entries, as X[~np.ma.getmaskarray(X).any(axis=1)].data, or X.data if none is masked"
        )
    if isinstance(X, torch.Tensor) and X.dtype == torch.bfloat16:
        X = X.double()  # NumPy has no such format
    return validate_data(
        estimator,
        as_numpy(X),
        reset=reset,
        dtype=[np.float64, np.float32],
        ensure_min_samples=2 if reset else 1,
    )


def check_positive(owner: object, name: str, value: object, *, integer: bool = False) -> None:
    """Raise ``ValueError`` naming the parameter unless ``value`` is a positive finite number (or integer)."""
    kinds = (int, np.integer) if integer else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, kinds) or not np.isfinite(value) or value <= 0:
        kind = "a positive integer" if integer else "a positive finite number"
        raise ValueError(f"{type(owner).__name__}: {name} must be {kind}, got {value!r}")


def pick_strategy(name: str, given: S | None, kind: type, default: Callable[[], S]) -> S:
    """Return a clone of a strategy or the default, after checking its kind and its parameters."""
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"{name} must be an instance of {kind.__name__} or None, got {given!r}")
    strategy = default() if given is None else clone(given)
    strategy.check_parameters()
    return strategy


def check_settings(estimator: BaseEstimator) -> None:
    """Raise ``ValueError`` naming a parameter of the estimator that is out of its range."""
    for name in ("n_components", "n_starts", "max_rounds", "patience"):
        if getattr(estimator, name) is not None:
            check_positive(estimator, name, getattr(estimator, name), integer=True)
    if not isinstance(estimator.fit_intercept, bool | np.bool_) and estimator.fit_intercept != "auto":
        raise ValueError(f"fit_intercept must be True, False or 'auto', got {estimator.fit_intercept!r}")
    if estimator.deflation is not None and estimator.deflation != "auto":
        if not isinstance(estimator.deflation, tuple) or not estimator.deflation:
            raise ValueError(
                f"deflation must be a tuple of positive numbers, 'auto' or None, got {estimator.deflation!r}"
            )
        for strength in estimator.deflation:
            check_positive(estimator, "deflation", strength)
    if estimator.noise_level is not None:
        noise = np.asarray(estimator.noise_level, dtype=float)
        if noise.ndim > 1 or not np.isfinite(noise).all() or (noise < 0).any():
            raise ValueError("noise_level must be a non-negative number, or one for each observation")

"""Synthetic data with a known dictionary."""

from __future__ import annotations

import numpy as np
from sklearn.utils import check_random_state

from sparsedl.arrays import RandomState

__all__ = ["make_sparse_dictionary"]


def make_sparse_dictionary(
    n_samples: int,
    n_components: int,
    *,
    n_features: int | None = None,
    sparsity: float = 0.5,
    condition_number: float = 10.0,
    noise_level: float = 0.0,
    random_state: RandomState = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw Bernoulli-Gaussian codes and a random dictionary of bounded condition number.

    Parameters
    ----------
    n_samples : int
        Number of observations.
    n_components : int
        Number of components.
    n_features : int or None, default=None
        Number of features, at least ``n_components``; None makes the dictionary square.
    sparsity : float, default=0.5
        Probability that an entry of the codes is zero.
    condition_number : float, default=10.0
        Ratio of the largest singular value of the dictionary to the smallest, before its rows are scaled.
    noise_level : float, default=0.0
        Standard deviation of the Gaussian noise added to the observations.
    random_state : int, RandomState or None, default=None
        Seed.

    Returns
    -------
    X : ndarray of shape (n_samples, n_features)
        Observations, ``codes @ components`` plus noise.
    codes : ndarray of shape (n_samples, n_components)
        Sparse codes, standard Gaussian where not zero.
    components : ndarray of shape (n_components, n_features)
        Dictionary, rows of unit length.

    References
    ----------
    The model of Spielman, Wang and Wright, "Exact recovery of sparsely-used dictionaries", COLT 2012.
    """
    n_features = n_components if n_features is None else n_features
    if not 1 <= n_components <= n_features:
        raise ValueError(f"n_components={n_components} must be between 1 and n_features={n_features}")
    if n_samples < 1:
        raise ValueError(f"n_samples must be positive, got {n_samples}")
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity must be in [0, 1), got {sparsity}")
    if condition_number < 1:
        raise ValueError(f"condition_number must be at least 1, got {condition_number}")
    rng = check_random_state(random_state)
    codes = rng.standard_normal((n_samples, n_components)) * (rng.uniform(size=(n_samples, n_components)) >= sparsity)
    left = np.linalg.qr(rng.standard_normal((n_components, n_components)))[0]
    right = np.linalg.qr(rng.standard_normal((n_features, n_components)))[0]
    components = left * np.geomspace(1.0, condition_number, n_components) @ right.T
    components /= np.linalg.norm(components, axis=1, keepdims=True)
    X = codes @ components + noise_level * rng.standard_normal((n_samples, n_features))
    return X, codes, components

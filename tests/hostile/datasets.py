"""Data sets made to mislead the dictionary recovery: what ``recovered_`` has to survive, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparsedl.datasets import make_sparse_dictionary

__all__ = ["DATA_TWISTS", "HostileData", "hostile_data"]


@dataclass
class HostileData:
    """Observations, and the codes behind them.

    Attributes
    ----------
    X : ndarray of shape (n_samples, n_features)
        Observations.
    codes : ndarray of shape (n_samples, n_components)
        True codes, whatever was done to the observations.
    components : ndarray of shape (n_components, n_features)
        True dictionary.
    told : dict
        Parameters of the estimator.
    description : str
        What was done.
    """

    X: np.ndarray
    codes: np.ndarray
    components: np.ndarray
    rng: np.random.Generator
    told: dict
    description: str


def hostile_data(seed: int, twist: str | None = None) -> HostileData:
    """Draw a data set; the twist is a name in `DATA_TWISTS`, or drawn."""
    rng = np.random.default_rng(seed)
    twist = list(DATA_TWISTS)[rng.integers(len(DATA_TWISTS))] if twist is None else twist
    k = int(rng.integers(3, 16))
    n = int(k * rng.choice([8, 15, 30]))
    n_features = k if rng.random() < 0.5 else k + int(rng.integers(1, 10))
    sparsity = float(rng.choice([0.3, 0.5, 0.7]))
    X, codes, components = make_sparse_dictionary(
        n, k, n_features=n_features, sparsity=sparsity, random_state=int(rng.integers(2**31))
    )
    description = f"seed {seed}: {twist}, {n} x {n_features}, k={k}, sparsity {sparsity:g}"
    data = HostileData(X, codes, components, rng, {}, description)
    DATA_TWISTS[twist](data)
    return data


def _plain(data: HostileData) -> None:
    pass


def _offset(data: HostileData) -> None:
    data.X = data.X + data.rng.choice([0.1, 1.0, 5.0, 100.0]) * data.rng.standard_normal(data.X.shape[1])


def _same_offset(data: HostileData) -> None:
    data.X = data.X + data.rng.choice([0.5, 5.0])


def _centred(data: HostileData) -> None:
    data.X = data.X - data.X.mean(axis=0)


def _scaled(data: HostileData) -> None:
    data.X = (data.X - data.X.mean(axis=0)) / data.X.std(axis=0)


def _half_centred(data: HostileData) -> None:
    data.X = data.X - 0.5 * data.X.mean(axis=0)


def _scaled_columns(data: HostileData) -> None:
    data.X = data.X * 10.0 ** data.rng.uniform(-6, 6, size=data.X.shape[1])


def _scaled_rows(data: HostileData) -> None:
    sizes = 10.0 ** data.rng.uniform(-3, 3, size=(len(data.X), 1))
    data.X, data.codes = data.X * sizes, data.codes * sizes


def _noise_not_told(data: HostileData) -> None:
    data.X = data.X + 10 ** data.rng.uniform(-12, -1) * data.rng.standard_normal(data.X.shape)
    if data.rng.random() < 0.5:
        data.told["n_components"] = data.codes.shape[1]


def _noise_told(data: HostileData) -> None:
    noise = 10 ** data.rng.uniform(-8, -1)
    data.X = data.X + noise * data.rng.standard_normal(data.X.shape)
    data.told = {"n_components": data.codes.shape[1], "noise_level": noise * data.rng.choice([0.3, 1.0, 3.0])}


def _dense(data: HostileData) -> None:
    data.codes = data.rng.standard_normal(data.codes.shape)
    data.X = data.codes @ data.components


def _some_dense(data: HostileData) -> None:
    some = data.rng.random(data.codes.shape[1]) < 0.4
    data.codes[:, some] = data.rng.standard_normal((len(data.X), int(some.sum())))
    data.X = data.codes @ data.components


def _dense_rows(data: HostileData) -> None:
    some = data.rng.random(len(data.X)) < 0.3
    data.codes[some] = data.rng.standard_normal((int(some.sum()), data.codes.shape[1]))
    data.X = data.codes @ data.components


def _rounded(data: HostileData) -> None:
    digits = int(data.rng.integers(1, 9))
    data.X = np.round(data.X, digits)
    data.description += f", {digits} digits"


def _six_digits(data: HostileData) -> None:
    data.X = np.vectorize(lambda value: float(f"{value:.6g}"))(data.X)


def _float32(data: HostileData) -> None:
    data.X = data.X.astype(np.float32)
    if data.rng.random() < 0.5:
        data.X = data.X.astype(np.float64)


def _repeated_rows(data: HostileData) -> None:
    index = data.rng.integers(max(2, len(data.X) // int(data.rng.choice([2, 5, 10]))), size=len(data.X))
    data.X, data.codes = data.X[index], data.codes[index]


def _repeated_rows_with_noise(data: HostileData) -> None:
    _repeated_rows(data)
    data.X = data.X + 10 ** data.rng.uniform(-10, -3) * data.rng.standard_normal(data.X.shape)
    data.told["n_components"] = data.codes.shape[1]


def _repeated_dense_rows(data: HostileData) -> None:
    _dense(data)
    _repeated_rows(data)


def _positive(data: HostileData) -> None:
    data.codes = np.abs(data.codes)
    data.X = data.codes @ data.components


def _signs(data: HostileData) -> None:
    data.codes = np.sign(data.codes)
    data.X = data.codes @ data.components


def _counts(data: HostileData) -> None:
    data.codes = np.round(2 * np.abs(data.codes))
    data.X = data.codes @ data.components


def _centred_positive(data: HostileData) -> None:
    _positive(data)
    _centred(data)


def _too_few(data: HostileData) -> None:
    n = data.codes.shape[1] + int(data.rng.integers(2, 8))
    data.X, data.codes = data.X[:n], data.codes[:n]


def _sum_to_zero(data: HostileData) -> None:
    half = len(data.X) // 2
    data.codes[half:] = -data.codes[: len(data.X) - half] * data.rng.choice([1.0, 2.0])
    data.X = data.codes @ data.components


DATA_TWISTS: dict[str, Callable[[HostileData], None]] = {
    "plain": _plain,
    "offset": _offset,
    "same offset": _same_offset,
    "centred": _centred,
    "half centred": _half_centred,
    "standardised": _scaled,
    "scaled columns": _scaled_columns,
    "scaled rows": _scaled_rows,
    "noise, not told": _noise_not_told,
    "noise, told": _noise_told,
    "dense": _dense,
    "some dense": _some_dense,
    "dense rows": _dense_rows,
    "rounded": _rounded,
    "six digits": _six_digits,
    "float32": _float32,
    "repeated rows": _repeated_rows,
    "repeated rows with noise": _repeated_rows_with_noise,
    "repeated dense rows": _repeated_dense_rows,
    "positive codes": _positive,
    "codes of signs": _signs,
    "counts": _counts,
    "centred positive codes": _centred_positive,
    "too few": _too_few,
    "rows and their negatives": _sum_to_zero,
}
"""What is done to a data set, by name; `hostile_data` draws one of them."""

"""Symmetric FastICA as a start under noise: directions that are nearly orthonormal where the signal is white."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch

from sparsedl.symmetric_fixed_point import symmetric_fixed_point

__all__ = ["are_mixtures", "contrast_variances", "first_components"]

FEW_ROWS, ROWS_EACH = 4000, 100
"""Rows, and for each component, from which an estimation starts where there are more than twice as many."""

STEPS, STEPS_ON_SOME, LAST_STEPS, TOLERANCE = 300, 60, 15, 1e-4
"""Steps of the fixed point; where rows are many, on some and then on all; the change of a cosine at which it stops."""

CENTRED = 0.9
"""Share of the mean that is taken off: all of it would leave nothing of a code that is constant."""

LARGE_MEAN = 0.2
"""Share of the mean square of the observations, over all directions, from which on the mean is worth another start."""

N_ANGLES, LEAST_WIDTH, MOST_SUSPECTS = 48, 0.1, 12
"""Rotations of a pair of codes, what counts as zero of them at least (between two rotations a zero moves by 0.07), and
codes of which all pairs are looked at."""


def first_components(
    inside: np.ndarray, known: float | None, start: np.ndarray | None, generator: torch.Generator
) -> np.ndarray:
    """Return components to start from: those of ``start``, completed by FastICA, decorrelated with the noise taken off.

    Where the codes have large means, as positive ones have, it runs twice: about the mean, where independent codes are
    uncorrelated, and about zero, where sparse ones have more contrast (codes of zeros and ones have none about their
    mean, where a fifth of them are ones). What has the smaller mean modulus about zero is the sparser.

    Parameters
    ----------
    inside : ndarray of shape (n_samples, k)
        Observations, in an orthonormal basis of the span of the components.
    known : float or None
        The noise, where it is known.
    start : ndarray of shape (k, n_found) or None
        Directions found beforehand.
    generator : torch.Generator
        Source of randomness.
    """
    mean = inside.mean(axis=0)
    share = float(mean @ np.linalg.solve(inside.T @ inside / len(inside), mean))
    found = [_decorrelated(inside, inside - CENTRED * mean, known, start, generator)]
    if share > LARGE_MEAN:
        found.append(_decorrelated(inside, inside, known, start, generator))
    return min(found, key=lambda components: _mean_modulus(np.linalg.solve(components.T, inside.T)))


def _mean_modulus(codes: np.ndarray) -> float:
    return float(np.sum(np.mean(np.abs(codes), axis=1) / np.sqrt(np.mean(codes**2, axis=1))))


def _decorrelated(
    inside: np.ndarray, centred: np.ndarray, known: float | None, start: np.ndarray | None, generator: torch.Generator
) -> np.ndarray:
    """Return components whose codes are uncorrelated in the signal: where noise is as large, no more is known of it."""
    values, axes = np.linalg.eigh(centred.T @ centred / len(inside))
    size = np.sqrt(np.maximum(values, np.finfo(np.float64).eps * values[-1]))
    found = np.zeros((0, len(size))) if start is None else (size[:, None] * (axes.T @ start)).T
    found = found / np.linalg.norm(found, axis=1, keepdims=True)
    rest = np.linalg.qr(found.T, mode="complete")[0][:, len(found) :]
    directions = np.vstack([found, _fixed_point(centred @ (axes / size) @ rest, generator) @ rest.T])
    signal = size if known is None else np.sqrt(np.maximum(size**2 - known**2, 0.05 * size**2))
    # Directions for white observations, as components, in units in which the signal is white.
    components = np.linalg.inv(directions).T * size / signal
    left, _, right = np.linalg.svd(components / np.linalg.norm(components, axis=1, keepdims=True))
    return left @ right * signal @ axes.T


def _fixed_point(white: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """Return orthonormal directions of symmetric FastICA, as rows: from some of many rows, and then from all."""
    k = white.shape[1]
    rows, few = torch.from_numpy(white).to(torch.float32), max(FEW_ROWS, ROWS_EACH * k)
    directions = torch.randn((1, k, k), generator=generator, dtype=torch.float64)
    if len(rows) > 2 * few:
        part = rows[torch.randperm(len(rows), generator=generator)[:few]]
        directions = symmetric_fixed_point(part, directions, max_iter=STEPS_ON_SOME, tolerance=TOLERANCE)
    steps = STEPS if len(rows) <= 2 * few else LAST_STEPS
    return symmetric_fixed_point(rows, directions, max_iter=steps, tolerance=TOLERANCE)[0].double().numpy()


def are_mixtures(codes: np.ndarray, noise: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Return which codes are mixtures of two columns, stuck in pairs: a rotation of the pair has more zeros.

    Two mixtures of the same two columns have zeros where both columns have, a share of ``z^2`` instead of ``z``. Only
    codes with so few are looked at, as some codes just have fewer zeros than others.

    Parameters
    ----------
    codes : ndarray of shape (k, n_samples)
        Of mean square about one.
    noise : ndarray of shape (k, k)
        Covariance of their noise.
    zeros : ndarray of shape (k,)
        Share of zeros of each.
    """
    usual = float(np.median(zeros))
    least = (usual - usual**2) / 2
    few = np.flatnonzero(zeros < usual - least)[:MOST_SUSPECTS]
    angles = np.arange(N_ANGLES) * np.pi / N_ANGLES
    turns = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    mixed = np.zeros(len(codes), dtype=bool)
    for i, j in combinations(few, 2):
        pair = [i, j]
        widths = np.maximum(2 * np.sqrt(np.einsum("ai,ij,aj->a", turns, noise[np.ix_(pair, pair)], turns)), LEAST_WIDTH)
        shares = np.mean(np.abs(turns @ codes[pair]) < widths[:, None], axis=1)
        mixed[pair] |= shares.max() > max(shares[0], shares[N_ANGLES // 2]) + least
    return mixed


def contrast_variances(codes: np.ndarray) -> np.ndarray:
    """Return the variance of the share of component ``i`` in the error of ``j``, for codes of mean square one.

    Parameters
    ----------
    codes : ndarray of shape (k, n_samples)
        As symmetric FastICA finds them.

    References
    ----------
    Tichavsky, Koldovsky and Oja, "Performance analysis of the FastICA algorithm and Cramer-Rao bounds for linear
    independent component analysis", IEEE Trans. Signal Process. 2006.
    """
    slopes = np.tanh(codes)
    along = np.mean(slopes * codes, axis=1)
    spread = np.mean(slopes**2, axis=1) - along**2
    gap = np.abs(along - np.mean(1 - slopes**2, axis=1))
    variances = (spread[:, None] + spread + gap**2) / (gap[:, None] + gap) ** 2 / codes.shape[1]
    np.fill_diagonal(variances, 0.0)
    return variances

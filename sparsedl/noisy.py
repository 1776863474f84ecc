"""The dictionary of noisy observations, with the error that is to be expected of each component.

Where the noise is small, zeros prove components and nothing here is needed. Where noise covers the zeros, the contrasts
that independent component analysis uses stop at what the whitening allows, and a search for zeros finds the quiet
directions. Here the likelihood of all components is maximised together, from where any of these ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike

from sparsedl.contrast import FEW_ROWS, ROWS_EACH, are_mixtures, contrast_variances, first_components
from sparsedl.monte_carlo_em import N_BURNED, SCALES, Fit, fit_codes_and_components

__all__ = ["NoisyEstimate", "estimate_under_noise"]

N_WARM = 15
"""Sweeps over all rows before the averages, where it started on some: with 6 the errors made were 1.3 times as large as
expected (20 components, 100,000 rows, 15 dB), with 15 as large."""

PATIENCE = 400
"""Sweeps more, times the share of the squared mean in the mean square of the codes: along it the fit is slow. Of
exponential codes, 0.7 of them zeros, 11 of 80 components were off by three times their error, and with it none (10
components, 1,000 rows, 20 dB, seeds 0 to 7)."""

MOST_NOISE = 1.1
"""Noise of a direction, relative to its code, from which on its component is none: of components asked for beyond those
there are, none had less (2 of 12, 15 features, 600 rows, noise of 0.01 to 0.1, seeds 0 to 2), and none of those there
are had more (nor at 10 dB)."""

CEILING, CONTRAST_CEILING = 0.5, 0.3
"""Expected sine from which on a component is not told from others: its error counts as 1."""

FEWEST_ZEROS = 0.27
"""Share of zeros in the codes below which the likelihood is left for the contrast. Smooth codes have up to 0.24 small
ones that pass for zeros (Laplace and Student's t with 3 degrees of freedom, 20 components, 2,000 rows, 10 to 60 dB,
seeds 5000 to 5002), and their likelihood is so flat that its iteration, at 40 sweeps, ends a fifth behind FastICA."""

DENSE = 0.6
"""Share of zeros below which the errors of the likelihood are raised in proportion: the fewer zeros, the longer the
iteration takes, and it is ended before (0.3 of zeros: off by 1.5 times the error in the median)."""

ALLOWANCE = 1.3
"""Factor on the errors of the contrast, whose formula leaves the noise out: with it the median ratio of errors made to
expected ones is 0.8 (105 draws of mostly Laplace and Student codes, 10 to 60 dB)."""


@dataclass(frozen=True)
class NoisyEstimate:
    """A dictionary estimated under noise.

    Attributes
    ----------
    directions : ndarray of shape (n_features, k)
        ``codes ~ X @ directions``, of mean square one.
    components : ndarray of shape (k, n_features)
        ``X ~ codes @ components``.
    errors : ndarray of shape (k,)
        Expected sine of the angle between each component and the true one (root mean square); 1 where the component
        is likely none. Of 7,909 components with less in 400 draws (5 to 50 components, 10 to 100 rows each, 0.3 to 0.9
        of zeros or Laplace or Student codes, 10 to 60 dB) 37 were off by more than three times it.
    noise_level : float
        Standard deviation of the noise on the entries of ``X``.
    noise_source : str
        ``"given"``, ``"singular values"`` (of those beyond ``k``) or ``"codes"``: guessed from how they spread around
        zero, which is 0.7 to 0.9 of the noise at 10 dB, 0.9 to 1 of it from 20 dB on, and means nothing for codes
        without zeros (four times the noise at 30 dB for Laplace).
    zeros : ndarray of shape (k,)
        Share of the codes of each component that the noise hides.
    n_sweeps : int
        Sweeps taken.
    """

    directions: np.ndarray
    components: np.ndarray
    errors: np.ndarray
    noise_level: float
    noise_source: str
    zeros: np.ndarray
    n_sweeps: int


def estimate_under_noise(
    X: np.ndarray,
    n_components: int,
    noise_level: ArrayLike | None = None,
    *,
    generator: torch.Generator,
    start: np.ndarray | None = None,
) -> NoisyEstimate:
    """Estimate all components together, under Gaussian noise, by maximum likelihood.

    Meant for 10 to 60 dB. It starts from symmetric FastICA in the whitening of the signal, and where the codes turn out
    to have hardly any zeros it stays there.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Observations, ``codes @ components`` plus noise, in any units. They are not centred.
    n_components : int
        Number of components, at most ``n_features``.
    noise_level : float or array-like of shape (n_samples,) or None, default=None
        Standard deviation of the noise; of several the root mean square counts. None takes it from the singular values
        beyond ``n_components``, or, where there are none, from the codes.
    generator : torch.Generator
        Source of randomness.
    start : ndarray of shape (n_features, n_found) or None, default=None
        Directions found beforehand, with ``codes ~ X @ start``; the others are searched with symmetric FastICA. It is
        enough that they are closer to their columns than to others.

    Returns
    -------
    NoisyEstimate

    References
    ----------
    Hyvarinen, "Fast and robust fixed-point algorithms for independent component analysis", IEEE Trans. Neural Netw.
    1999, for the start; `sparsedl.monte_carlo_em` for the estimate.

    Examples
    --------
    >>> from sparsedl.datasets import make_sparse_dictionary
    >>> from sparsedl.metrics import match_components
    >>> X, _, components = make_sparse_dictionary(800, 10, sparsity=0.7, noise_level=0.05, random_state=0)
    >>> found = estimate_under_noise(X, 10, 0.05, generator=torch.Generator().manual_seed(0))
    >>> bool(np.median(match_components(found.components, components).errors) < 0.05)
    True
    """
    X = np.asarray(X, dtype=np.float64)
    most = min(len(X) - 1, X.shape[1])
    if not 2 <= n_components <= most:
        raise ValueError(f"n_components={n_components} must be at least 2 and at most {most}, for X of shape {X.shape}")
    unit = np.ldexp(1.0, int(np.frexp(np.abs(X).max())[1]))  # a power of two: units change nothing
    given = None if noise_level is None else float(np.sqrt(np.mean((np.asarray(noise_level) / unit) ** 2)))
    found = _in_these_units(X / unit, n_components, given, generator, None if start is None else np.asarray(start))
    return replace(
        found,
        directions=found.directions / unit,
        components=found.components * unit,
        noise_level=found.noise_level * unit,
    )


def _in_these_units(
    X: np.ndarray, k: int, given: float | None, generator: torch.Generator, start: np.ndarray | None
) -> NoisyEstimate:
    n, m = X.shape
    values, basis = _principal_axes(X)
    if not values[k - 1] > np.finfo(np.float64).eps * max(n, m) * values[0]:
        raise ValueError(f"n_components={k} is more than the rank of X, of shape {X.shape}")
    known, source = _known_noise(given, values, n, k)
    inside = X @ basis[:, :k]
    first = first_components(inside, known, None if start is None else basis[:, :k].T @ start, generator)
    fit = _fit(inside, first, 0.7 * float(np.sqrt(values[k - 1])), known, generator)
    zeros = fit.weights[:, SCALES.index(0.0)]
    likely = bool(np.median(zeros) >= FEWEST_ZEROS)
    if likely:
        fit = replace(fit, variances=fit.variances * max(1.0, DENSE / float(np.median(zeros))) ** 2)
    else:
        fit = _of_contrast(inside, first, fit)
    components = fit.components @ basis[:, :k].T + _beyond(fit, X, basis[:, k:])
    directions, noise = np.linalg.pinv(components), fit.noise_level if known is None else known
    errors = np.sqrt(_square_errors(fit, noise, n, m) + _hidden(fit.components, values, noise, n))
    is_told = errors < (CEILING if likely else CONTRAST_CEILING)
    covariance = noise**2 * directions.T @ directions
    is_told &= ~are_mixtures(directions.T @ X[:FEW_ROWS].T, covariance, zeros)
    is_told &= noise * np.linalg.norm(directions, axis=0) < MOST_NOISE
    return NoisyEstimate(
        directions=directions,
        components=components,
        errors=np.where(is_told, errors, 1.0),
        noise_level=noise,
        noise_source=source,
        zeros=zeros,
        n_sweeps=fit.n_sweeps,
    )


def _beyond(fit: Fit, X: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Return the part of the components outside the span that they were fitted in: the regression on their codes."""
    regression = np.linalg.solve(fit.second_moments, fit.mean_codes @ (X @ axes))
    return regression / len(X) @ axes.T


def _principal_axes(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean squares along the principal axes, falling, and the axes as columns; all that are not zero."""
    n, m = X.shape
    if m > n:
        _, singular, axes = np.linalg.svd(X, full_matrices=False)
        return singular**2 / n, axes.T
    values, axes = np.linalg.eigh(X.T @ X / n)
    return np.maximum(values[::-1], 0.0), np.ascontiguousarray(axes[:, ::-1])


def _known_noise(given: float | None, values: np.ndarray, n: int, k: int) -> tuple[float | None, str]:
    """Return the noise and where it is known from; None where only the codes can tell it."""
    if given is not None:
        return given, "given"
    if len(values) > k:  # of which the components take k degrees of freedom in n
        return float(np.sqrt(np.sum(values[k:]) / (len(values) - k) * n / (n - k))), "singular values"
    return None, "codes"


def _fit(inside: np.ndarray, first: np.ndarray, level: float, known: float | None, generator: torch.Generator) -> Fit:
    """Return the fit to all rows, begun on some of them where they are many."""
    n, k = inside.shape
    codes = np.linalg.solve(first.T, inside.T)
    offset = float(np.median(np.mean(codes, axis=1) ** 2 / np.mean(codes**2, axis=1)))
    n_burned = N_BURNED + int(PATIENCE * offset)
    few = max(FEW_ROWS, ROWS_EACH * k)
    if n <= 2 * few:
        return fit_codes_and_components(inside, first, level, known, generator, n_burned)
    rows = torch.randperm(n, generator=generator)[:few].numpy()
    fit = fit_codes_and_components(inside[rows], first, level, known, generator, n_burned)
    if np.median(fit.weights[:, SCALES.index(0.0)]) < FEWEST_ZEROS:  # the contrast will be taken instead
        return fit
    return fit_codes_and_components(inside, fit.components, fit.noise_level, known, generator, N_WARM)


def _of_contrast(inside: np.ndarray, components: np.ndarray, fit: Fit) -> Fit:
    """Return the components from which the fit began instead, with their variances."""
    codes = np.linalg.solve(components.T, inside.T)
    scale = np.sqrt(np.mean(codes**2, axis=1))
    codes /= scale[:, None]
    return replace(
        fit,
        components=components * scale[:, None],
        mean_codes=codes,
        second_moments=codes @ codes.T / len(inside),
        variances=ALLOWANCE**2 * contrast_variances(codes),
    )


def _hidden(components: np.ndarray, values: np.ndarray, noise: float, n: int) -> np.ndarray:
    """Return the share of each component on principal axes that noise alone could have made.

    Where there are more features than components, these are the largest of many, and what they are is chance.

    References
    ----------
    Baik, Ben Arous and Peche, "Phase transition of the largest eigenvalue", Ann. Probab. 2005, for how large.
    """
    k, m = len(components), len(values)
    if m == k:
        return np.zeros(k)
    n_seen = int(np.count_nonzero(values > noise**2 * (1 + np.sqrt(m / n)) ** 2))
    return np.sum(components[:, n_seen:] ** 2, axis=1) / np.sum(components**2, axis=1)


def _square_errors(fit: Fit, noise: float, n: int, m: int) -> np.ndarray:
    """Return the expected squared sines: what of ``delta a_j = sum_i Q_ji a_i`` is orthogonal to ``a_j``."""
    gram = fit.components @ fit.components.T
    power = np.diag(gram)
    across = np.maximum(power - gram**2 / power[:, None], 0.0)
    finite = np.where(np.isfinite(fit.variances), fit.variances, 0.0)
    square = np.sum(finite * across, axis=1) / power
    square[np.isinf(fit.variances).any(axis=1)] = 1.0
    return square + (m - len(power)) * noise**2 * np.diag(np.linalg.inv(fit.second_moments)) / n / power

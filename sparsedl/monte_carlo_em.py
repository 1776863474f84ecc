"""Maximum likelihood of a dictionary under Gaussian noise, when the codes have to be guessed along with it.

Each code is a scale mixture of Gaussians, one of them a spike at zero, with weights of its own for each component:
Bernoulli-Gaussian, Laplace-like and heavy-tailed codes are all close to one. The posterior of the codes has ``J^k``
parts for each observation, so it is sampled, one component after the other and all observations at once, and the
dictionary and the noise are estimated again from each sample. The noise starts too high and falls by itself, which
anneals: a start that is off by a sine of 0.2 is good enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparsedl.arrays import chunks

__all__ = ["N_BURNED", "SCALES", "CodeSampler", "Fit", "fit_codes_and_components"]

SCALES = (32.0, 8.0, 2.0, 0.5, 0.0)
"""Variances of the Gaussians that a code is mixed of, where its mean square is one; the last is the spike."""

N_BURNED, MOST_BURNED, N_KEPT = 25, 300, 15
"""Sweeps before the averages, at least and at most, and sweeps that are averaged. Tuned on `make_sparse_dictionary`
at 10 to 30 dB, seeds 5000 to 5002: sixty sweeps instead of forty are 5 to 10 % better at 10 dB, and no better from
20 dB on."""

N_HASTENED, HASTE = 15, 1.5
"""First sweeps whose steps are longer than the estimate says: the iteration is slow, and more haste only adds noise."""

SETTLED = 0.03
"""Relative change of the noise, sweep by sweep, below which it no longer falls."""

LEAST_NOISE = 1e-5
"""Least noise, relative to the observations: the sampling is in single precision."""

FALL_EACH_ROW, LEAST_FALL, MOST_FALL = 0.003, 0.02, 0.05
"""How much the noise may fall in a sweep: for each row a component has where 0.7 of its codes are zeros, at least and
at most. Falling freely, components get stuck where the noise is small, the more the fewer rows and zeros there are: at
60 dB half of them with 20 rows each (50 components, seeds 5000 to 5003), and with a fall of 0.15 none. Of 29 draws with
10 to 90 rows each that this had left with some 70 components off by three times their error, 0.02 leaves 5."""

BLOCK = 5000
"""Observations that are sampled at once, so that they stay in the cache."""

LEAST_SHARE, LEAST_GAP = 0.1, 0.1
"""Least information on ``Q_ji`` relative to the median over ``i``, and least share of it that not knowing ``Q_ij``
leaves: less than that does not show in the few samples."""

LAG = 3
"""Sweeps between two samples that count as independent."""


@dataclass(frozen=True)
class Fit:
    """What the likelihood says.

    Attributes
    ----------
    components : ndarray of shape (k, n_dimensions)
        For codes of mean square one.
    noise_level : float
        Standard deviation of the noise.
    mean_codes : ndarray of shape (k, n_samples)
        Posterior means of the codes.
    second_moments : ndarray of shape (k, k)
        Mean products of the codes, their posterior variance included.
    variances : ndarray of shape (k, k)
        Variance of the share of component ``i`` in the error of component ``j``; infinite where the likelihood does
        not tell the two apart.
    weights : ndarray of shape (k, len(SCALES))
        Share of each Gaussian in the codes of each component.
    n_sweeps : int
        Sweeps taken.
    """

    components: np.ndarray
    noise_level: float
    mean_codes: np.ndarray
    second_moments: np.ndarray
    variances: np.ndarray
    weights: np.ndarray
    n_sweeps: int


class CodeSampler:
    """Draws codes from their posterior, component by component, in single precision.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_dimensions)
        Observations.
    codes : ndarray of shape (k, n_samples)
        Where to start.
    generator : torch.Generator
        Source of randomness.
    """

    def __init__(self, X: np.ndarray, codes: np.ndarray, generator: torch.Generator) -> None:
        self.observations = np.ascontiguousarray(X.T, dtype=np.float32)
        self.codes = np.ascontiguousarray(codes, dtype=np.float32)
        self.generator = generator

    def sweep(self, components: np.ndarray, noise_level: float, weights: np.ndarray) -> np.ndarray:
        """Draw all codes once, and return the share of each Gaussian, of the shape of ``weights``."""
        k, n = self.codes.shape
        gram = components @ components.T
        power = np.diag(gram).copy()
        np.fill_diagonal(gram, 0.0)
        across = (gram / power[:, None]).astype(np.float32)
        seen = (components / power[:, None]).astype(np.float32) @ self.observations
        noise = noise_level**2 / power[:, None]
        total = noise + np.array(SCALES)
        # Relative to the widest Gaussian no exponent is large, however small the noise.
        logs = np.log(weights + 1e-12) - 0.5 * np.log(total)
        logs = (logs - logs[:, :1]).astype(np.float32)
        rates = (0.5 * (1 / total[:, :1] - 1 / total)).astype(np.float32)
        shrinkage = (np.array(SCALES) / total).astype(np.float32)
        spread = np.sqrt(noise * np.array(SCALES) / total).astype(np.float32)
        shares = np.zeros_like(weights)
        for rows in chunks(n, 1, BLOCK):
            codes, at = self.codes[:, rows], seen[:, rows]
            size = codes.shape[1]
            normal = torch.randn((k, size), generator=self.generator, dtype=torch.float32).numpy()
            uniform = torch.rand((k, size), generator=self.generator, dtype=torch.float32).numpy()
            odds, below = np.ones((2, len(SCALES), size), dtype=np.float32)
            for j in range(k):
                values = at[j] - across[j] @ codes
                np.multiply(rates[j, 1:, None], values * values, out=odds[1:])
                odds[1:] += logs[j, 1:, None]
                np.exp(odds[1:], out=odds[1:])
                for i in range(1, len(SCALES)):  # many times faster than a cumulative sum along the first axis
                    np.add(below[i - 1], odds[i], out=below[i])
                threshold = uniform[j] * below[-1]
                which = (threshold > below[0]).view(np.int8)
                for edge in below[1:-1]:
                    which += (threshold > edge).view(np.int8)
                shares[j] += odds @ (1 / below[-1])
                codes[j] = shrinkage[j].take(which) * values + spread[j].take(which) * normal[j]
        return shares / n

    def residuals(self, components: np.ndarray) -> np.ndarray:
        """Return what the codes leave of the observations, along each component, of shape (k, n_samples)."""
        single = components.astype(np.float32)
        return single @ self.observations - (components @ components.T).astype(np.float32) @ self.codes


def fit_codes_and_components(
    X: np.ndarray,
    components: np.ndarray,
    noise_level: float,
    known: float | None,
    generator: torch.Generator,
    n_burned: int = N_BURNED,
) -> Fit:
    """Maximise the likelihood of components, noise and the distributions of the codes, by Monte Carlo EM.

    Parameters
    ----------
    X : ndarray of shape (n_samples, k)
        Observations, in an orthonormal basis of the span of the components.
    components : ndarray of shape (k, k)
        Where to start, rows independent.
    noise_level : float
        Where the noise starts: too high is right.
    known : float or None
        The noise, where it is known: it does not fall below.
    generator : torch.Generator
        Source of randomness.
    n_burned : int
        Sweeps before the averages, at least.

    References
    ----------
    Attias, "Independent factor analysis", Neural Computation 1999, for the model; Wei and Tanner, "A Monte Carlo
    implementation of the EM algorithm", JASA 1990, for EM with a sample of the codes.
    """
    n, k = X.shape
    components, codes = _first_codes(X, components, noise_level)
    sampler, weights = CodeSampler(X, codes, generator), np.full((k, len(SCALES)), 1 / len(SCALES))
    energy, kept, pairs = float(np.mean(np.sum(X**2, axis=1))), _Averages(), _Information()
    known = known if known is None else max(known, LEAST_NOISE * np.sqrt(energy / k))
    burned, noise = 0, noise_level if known is None else max(noise_level, known)
    while kept.count < N_KEPT:
        weights = sampler.sweep(components, noise, weights)
        second = (sampler.codes @ sampler.codes.T).astype(np.float64) / n
        mixed = (sampler.codes @ sampler.observations.T).astype(np.float64) / n
        second[np.diag_indices(k)] += np.finfo(np.float32).eps * np.trace(second) / k
        fitted = np.linalg.solve(second, mixed)
        left = energy - 2 * np.sum(fitted * mixed) + np.sum((fitted @ fitted.T) * second)
        level = np.sqrt(max(left, LEAST_NOISE**2 * energy) / k)
        level = level if known is None else max(known, min(noise, level))
        settled = level > (1 - SETTLED) * noise
        noise = max(level, (1 - _fall(n / k, weights)) * noise)
        components = components + (HASTE if burned < N_HASTENED else 1.0) * (fitted - components)
        scale = np.sqrt(np.diag(second))
        components, second = components * scale[:, None], second / scale / scale[:, None]
        sampler.codes /= scale[:, None].astype(np.float32)
        burned += 1
        if kept.count or (burned > n_burned and settled) or burned > MOST_BURNED:
            if kept.count % LAG == 0:
                pairs.add(sampler.codes, sampler.residuals(components) / np.float32(noise**2))
            kept.add(components=components, noise=noise, codes=sampler.codes, second=second, weights=weights)
    return Fit(
        components=kept["components"],
        noise_level=float(kept["noise"]),
        mean_codes=kept["codes"],
        second_moments=kept["second"],
        variances=pairs.variances(n),
        weights=kept["weights"],
        n_sweeps=burned,
    )


def _fall(rows_each: float, weights: np.ndarray) -> float:
    """Return the share by which the noise may fall in this sweep."""
    zeros = float(np.median(weights[:, -1]))
    return min(max(FALL_EACH_ROW * rows_each * (zeros / 0.7) ** 3, LEAST_FALL), MOST_FALL)


def _first_codes(X: np.ndarray, components: np.ndarray, noise_level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the components for codes of mean square one, and codes: those well above their noise."""
    inverse = np.linalg.inv(components)
    codes = (X @ inverse).T
    noise = noise_level**2 * np.sum(inverse**2, axis=0)
    power = np.mean(codes**2, axis=1)
    power = np.maximum(power - noise, 0.3 * power)
    scale = np.sqrt(power)[:, None]
    codes *= np.abs(codes) > 2 * np.sqrt(noise)[:, None]
    return components * scale, codes / scale


class _Averages:
    """Means of whatever is added under a name."""

    def __init__(self) -> None:
        self.count = 0
        self.sums: dict[str, np.ndarray] = {}

    def add(self, **values: np.ndarray | float) -> None:
        self.count += 1
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + np.asarray(value, dtype=np.float64)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.sums[name] / self.count


class _Information:
    """Fisher's information of the relative errors ``Q`` in ``(I + Q) components``, from samples of the codes.

    The score of ``Q_ji`` at one observation is the posterior mean of ``c_j e a_i / sigma^2``. Its square is the mean
    product of two independent samples, so that one product of matrices gives all of them. ``Q_ji`` and ``Q_ij`` are
    correlated, and others are not, as the codes are independent.
    """

    def __init__(self) -> None:
        self.samples: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, codes: np.ndarray, residuals: np.ndarray) -> None:
        self.samples.append((codes.copy(), residuals))

    def variances(self, n: int) -> np.ndarray:
        """Return the variances of ``Q``: the diagonals of the inverses of its two by two blocks."""
        own, across, count = 0.0, 0.0, 0
        for i, (codes, residuals) in enumerate(self.samples):
            for other_codes, other_residuals in self.samples[:i]:
                own = own + ((codes * other_codes) @ (residuals * other_residuals).T).astype(np.float64)
                mixed = ((codes * other_residuals) @ (residuals * other_codes).T).astype(np.float64)
                across, count = across + (mixed + mixed.T) / 2, count + 1
        own, across = own / count, across / count
        own = np.maximum(own, LEAST_SHARE * np.median(own, axis=1, keepdims=True))
        gap = np.maximum(own * own.T - across**2, LEAST_GAP * own * own.T)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where((gap > 0) & (own > 0) & (own.T > 0), own.T / gap, np.inf)
        np.fill_diagonal(found, 0.0)
        return found

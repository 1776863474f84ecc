"""Under noise: what the likelihood of all components together says, and which of them zeros prove all the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from sparsedl.evidence import Evidence
from sparsedl.expected_errors import component_errors
from sparsedl.linalg import normalized
from sparsedl.metrics import match_components
from sparsedl.noisy import NoisyEstimate, estimate_under_noise
from sparsedl.recovery import Recovery, proven_directions
from sparsedl.zeros import ZeroTest

__all__ = ["noise_of_directions", "with_likelihood"]

LEAST_NOISE = 3e-3
"""Noise of a direction, relative to its code, from which on the likelihood is asked, some 50 dB: below, zeros are as
exact."""

FEWEST_ROWS = 10
"""Samples a component from which on it is: fewer were not tried."""


MOST = 0.75
"""Share of the components proven by zeros from which on the likelihood must not prove fewer."""


MOST_APART, APART = 3.0, 2.0
"""Errors, of both together, up to which components of the likelihood may be off those that zeros prove. Its iteration
ends far from its maximum where components are nearly dependent: of 26 fits (Gaussian dictionaries of 20 in 20 features,
conditions of 20 to 110, 500 and 800 rows, 0.5 and 0.6 of zeros, noise of 0.0015 to 0.003) 13 were off by 8 to 41 times
what they said, and those by zeros by 1.6 times at most. Fits that were right were apart by 0.6 to 0.9 in the median. A
component that is apart by more than the second number is taken to be off by that."""

N_REFITS = 3
"""Times that directions of the likelihood are estimated again from their zeros, where these had not proven all."""


def noise_of_directions(test: ZeroTest) -> float:
    """Return the median noise of whitened directions, relative to their entries."""
    level = test.noise_level.square().mean().sqrt()
    return float(level * torch.linalg.vector_norm(test.unmixing, dim=0).median())


def with_likelihood(found: Recovery, evidence: Evidence, generator: torch.Generator) -> Recovery:
    """Return a recovery with the components of the largest likelihood, where noise covers zeros; else as it is.

    The noise is that given, or of the singular values beyond the components. Where neither tells it, the likelihood has
    its turn if zeros prove nothing.

    With few zeros and little noise the likelihood is so slow that it ends before its maximum. So the recovery stays as
    it is where the zeros prove all and leave the smaller expected errors (33 components, 595 rows, 0.34 of zeros, 54
    dB: off by 0.0019, and the likelihood by 0.0124), and where they bear out fewer directions of the likelihood: any
    fewer if most were proven, else less than half (20 components, 300 rows, 0.34 of zeros, 48 dB: 16 to 18 proven, then
    9 or 10; off by 0.005 to 0.025, then by 0.06 to 0.09). And where both prove all, they have to agree (`MOST_APART`).

    Parameters
    ----------
    found : Recovery
        What the search found, without an offset.
    evidence : Evidence
        What proves it.
    generator : torch.Generator
        Source of randomness.
    """
    k, observed = len(found.proven), found.observations
    n_rows, n_features = observed.values.shape
    if k < 2 or n_rows < FEWEST_ROWS * k or not _has_squares(evidence, k):
        return found
    is_known = observed.noise_level is not None or k < n_features
    is_noisy = is_known and noise_of_directions(evidence.part) >= LEAST_NOISE
    if not is_noisy and found.proven.any():
        return found
    whitening = evidence.whitening
    if is_noisy or k == n_features:
        noise = float(np.sqrt(np.mean(whitening.noise_level**2))) if is_noisy else None
        start = whitening.unmixing @ found.basis[:, found.proven] if found.proven.any() else None
        estimate = estimate_under_noise(np.asarray(observed.values), k, noise, generator=generator, start=start)
    else:  # what there is of noise lies in the span of the components
        inside = estimate_under_noise(whitening.whitened, k, generator=generator)
        there, back = whitening.unmixing @ inside.directions, inside.components @ whitening.mixing
        estimate = replace(inside, directions=there, components=back)
    directions = normalized(torch.from_numpy((whitening.mixing @ estimate.directions).T.copy()))
    proven = proven_directions(directions, evidence.part).numpy()
    is_closer = found.proven.all() and np.median(found.errors) <= np.median(estimate.errors)
    n_before, n_after = int(found.proven.sum()), int(proven.sum())
    if is_closer or n_after < (1.0 if n_before >= MOST * k else 0.5) * n_before:
        return found
    if found.proven.all():
        checked = _agreeing(estimate, _components(found.basis, evidence), found.errors)
        if checked is None:
            return found
        estimate = checked
    # Those that zeros prove come first, and of each kind the sparsest.
    order = np.lexsort([-estimate.zeros, ~proven])
    directions, proven, estimate = directions[order], proven[order], _in_order(estimate, order)
    by_likelihood = replace(
        found,
        basis=directions.numpy().T,
        proven=proven,
        n_zeros=evidence.count_zeros(directions).numpy() * proven,
        errors=estimate.errors,
        estimate=estimate,
    )
    return by_likelihood if found.proven.all() or not proven.all() else _borne_out(by_likelihood, estimate, evidence)


def _borne_out(found: Recovery, estimate: NoisyEstimate, evidence: Evidence) -> Recovery:
    """Return a recovery by the likelihood, or what its zeros make of it where these contradict it."""
    directions = torch.from_numpy(np.ascontiguousarray(found.basis.T))
    for _ in range(N_REFITS):
        directions = evidence.refit(directions)
    basis = directions.numpy().T
    if np.linalg.matrix_rank(basis) < len(basis):
        return replace(found, errors=np.ones_like(found.errors))
    components, test = _components(basis, evidence), evidence.part
    n_rows = len(found.observations.values)
    errors = component_errors(basis, found.proven, test, evidence.whitening.mixing, n_rows)
    checked = _agreeing(estimate, components, errors)
    if checked is not None:
        return replace(found, errors=checked.errors, estimate=checked)
    proven = proven_directions(directions, test).numpy()
    n_zeros = evidence.count_zeros(directions).numpy() * proven
    errors = np.where(proven.all(), errors, np.ones_like(errors))
    return replace(found, basis=basis, proven=proven, n_zeros=n_zeros, errors=errors, estimate=None)


def _components(basis: np.ndarray, evidence: Evidence) -> np.ndarray:
    """Return the components of whitened directions, in the units of the observations."""
    return np.linalg.solve(basis, evidence.whitening.mixing)


def _agreeing(estimate: NoisyEstimate, components: np.ndarray, errors: np.ndarray) -> NoisyEstimate | None:
    """Return an estimate with errors no smaller than zeros say, or None where their components contradict it."""
    match = match_components(components, estimate.components)
    apart = match.errors / np.hypot(estimate.errors, errors[match.permutation])
    if apart.max() > MOST_APART:
        return None
    return replace(estimate, errors=np.where(apart > APART, match.errors, estimate.errors))


def _has_squares(evidence: Evidence, k: int) -> bool:
    """Return whether the squares of all singular values are above rounding: the likelihood works on these."""
    singular, shape = evidence.whitening.singular_values, evidence.whitening.observations.shape
    # By a margin of two: eigenvalues of the squares are off by their rounding.
    return bool(singular[k - 1] > 2 * (np.finfo(np.float64).eps * max(shape)) ** 0.5 * singular[0])


def _in_order(estimate: NoisyEstimate, order: np.ndarray) -> NoisyEstimate:
    return replace(
        estimate,
        directions=estimate.directions[:, order],
        components=estimate.components[order],
        errors=estimate.errors[order],
        zeros=estimate.zeros[order],
    )

"""How many zeros are more than chance."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import binom

__all__ = ["FALSE_ACCEPTANCE", "most_by_chance", "required_of", "required_zeros"]

FALSE_ACCEPTANCE = 1e-9
"""Probability at which a direction that is no column passes the count of zeros."""

FALSE_MIXTURE = 1e-6
"""Probability at which chance determines a mixture of columns whose common zeros pass that count."""


def required_zeros(n_rows: int, n_components: int, chance: float, false_acceptance: float = FALSE_ACCEPTANCE) -> int:
    """Return the smallest number of zeros that is more than chance.

    ``k - 1`` zeros come free with a kernel of ``k - 1`` rows; each of the others is zero with probability ``chance``.

    Examples
    --------
    >>> required_zeros(200, 20, chance=1e-6)
    22
    """
    return int(
        required_of(torch.tensor([n_rows]), n_components, torch.tensor([chance], dtype=torch.float64), false_acceptance)
    )


def required_of(
    n_rows: torch.Tensor, n_components: int, chances: torch.Tensor, false_acceptance: float = FALSE_ACCEPTANCE
) -> torch.Tensor:
    """Return `required_zeros` of several directions, each with its number of rows and its chance."""
    free = n_components - 1
    return free + 1 + _upper_quantile(false_acceptance, (n_rows - free).clamp(min=0), chances.clamp(max=1.0))


def _upper_quantile(probability: float, n_draws: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """Return the smallest number that so many draws exceed with less than a probability: no more than rounding is 0."""
    quantiles = torch.zeros(len(chances), dtype=torch.float64)
    unclear = (n_draws * chances).cpu() >= probability  # below that, even a single one is less likely
    if unclear.any():
        n_draws, chances = n_draws.cpu()[unclear], chances.cpu()[unclear]
        quantiles[unclear] = torch.from_numpy(np.asarray(binom.isf(probability, n_draws.numpy(), chances.numpy())))
    return quantiles.clamp(min=0)


def most_by_chance(n_rows: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """Return how many other rows of a mixture may be zero by chance, each with its own, shape (n_directions,).

    None of a million mixtures has more. The expected number would not do: it was 0.2, where mixtures of two and three
    columns that a search had ended at had two zeros by chance, beside those by their choice.
    """
    return _upper_quantile(FALSE_MIXTURE, n_rows.clamp(min=0), chances).to(chances)

"""Coarse number formats: which one a gradient came in, and how large its rounding is.

Rounding is noise of known size. A gradient in half precision, or one that was quantised to a few bits and turned back
into float32, shows its format: all its entries lie on a grid.
"""

from __future__ import annotations

import numpy as np

from sparsedl_fl.layers.blocks import column_blocks, significands

__all__ = ["rounding_noise"]

UNIFORM = 1 / np.sqrt(12)
"""Standard deviation of an error that is uniform over one step of a grid."""

FLOAT16_BITS, BFLOAT16_BITS = 11, 8
"""Bits of a significand, the hidden one included."""

ON_GRID = 1e-3
"""How far an entry may lie from its grid, in steps: scales are float32 themselves, whose rounding is 1024 / 2^24."""


def rounding_noise(G: np.ndarray) -> np.ndarray | None:
    """Return the standard deviation of the rounding in each row, or None for single precision and better.

    Parameters
    ----------
    G : ndarray of shape (m, n)
        A gradient.

    Returns
    -------
    ndarray of shape (m,) or None
        Zero for a row that is all zeros.
    """
    _, block = next(column_blocks(G))
    digits, is_single = significands(block)
    if not is_single:
        return _quantised(block)
    bits = digits.view(np.uint32)
    if not (bits & 0xFFFF).any():
        return _relative(block, BFLOAT16_BITS, 0.0)
    return _quantised(block) if (bits & 0x1FFF).any() else _relative(block, FLOAT16_BITS, _last_digit(block, digits))


def _last_digit(block: np.ndarray, digits: np.ndarray) -> float:
    """Return the smallest power of two that every entry is a multiple of.

    Of half precision that is the step of what lies below its normal range, in whatever units the gradient comes.
    """
    whole = np.ldexp(digits[block != 0].astype(np.float64), FLOAT16_BITS).astype(np.int64)
    return float(np.min(np.ldexp((whole & -whole).astype(float), np.frexp(block[block != 0])[1] - FLOAT16_BITS)))


def _relative(block: np.ndarray, n_bits: int, smallest_step: float) -> np.ndarray:
    """Return the rounding of floating-point entries, whose step follows their size."""
    exponents = np.frexp(block)[1]
    steps = np.maximum(np.ldexp(1.0, exponents - n_bits), smallest_step) * (block != 0)
    return UNIFORM * np.sqrt(np.mean(steps**2, axis=1))


def _quantised(block: np.ndarray) -> np.ndarray | None:
    """Return the rounding of integers times a scale, one for the tensor or one a row."""
    rows = np.flatnonzero(block.any(axis=1))
    steps = np.zeros(len(block))
    for row in rows:
        step = _step(np.abs(block[row]))
        if step is None:
            return None
        steps[row] = step
    multiples = steps[rows] / steps[rows].min(initial=np.inf)
    if np.all(np.abs(multiples - np.rint(multiples)) < ON_GRID):
        steps[rows] = steps[rows].min(initial=np.inf)  # one scale for all: a row of few levels may have skipped some
    return UNIFORM * steps


def _step(
    moduli: np.ndarray, *, most_levels: int = 1024, fewest_repetitions: int = 4, chance: float = 1e-12
) -> float | None:
    """Return the step of the grid that the entries of a row lie on, or None if there is none.

    A row may be quantised that has ``most_levels`` distinct moduli: ten bits and more are no worse than half precision.
    A few numbers lie on some grid or other, so each has to stand for ``fewest_repetitions`` entries, or all to lie so
    well on it that ``chance`` hardly brings that.
    """
    if len(np.unique(moduli[: 4 * most_levels])) > most_levels:
        return None
    largest = moduli.max()
    levels = np.unique(moduli)
    levels = levels[np.concatenate([[True], np.diff(levels) > 1e-6 * largest])]
    if len(levels) > most_levels:
        return None
    step = float(np.diff(np.concatenate([[0.0], levels[levels > 0]])).min())
    multiples = levels / step
    tolerances = ON_GRID * np.maximum(1, multiples)
    is_repeated = fewest_repetitions * len(levels) <= len(moduli)
    is_clear = np.sum(np.log(np.minimum(2 * tolerances, 1.0))) < np.log(chance)
    is_on_grid = np.all(np.abs(multiples - np.rint(multiples)) < tolerances)
    return step if is_on_grid and (is_repeated or is_clear) else None

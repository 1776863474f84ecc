"""Coarse number formats: the quantisation step of a gradient, and the size of its rounding.

Rounding is noise of known size. A gradient in half precision, or one that was quantised to a few bits and converted
back to float32, shows its format: all entries are multiples of a step.
"""

from __future__ import annotations

import numpy as np

from sparsedl_fl.layers.blocks import column_blocks, significands

__all__ = ["rounding_noise"]

UNIFORM = 1 / np.sqrt(12)
"""Standard deviation of an error that is uniform over one quantisation step."""

FLOAT16_BITS, BFLOAT16_BITS = 11, 8
"""Bits of a significand, the hidden one included."""

ON_GRID = 1e-3
"""Distance of an entry from a multiple, in steps, that rounding of a float32 scale may cause."""


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
    part, block = next(column_blocks(G))
    digits, is_single = significands(np.ascontiguousarray(G[:, part]))
    if not is_single:
        return _quantised(block)
    bits = digits.view(np.uint32)
    if not (bits & 0xFFFF).any():
        return _relative(block, BFLOAT16_BITS, 0.0)
    return _quantised(block) if (bits & 0x1FFF).any() else _relative(block, FLOAT16_BITS, _last_digit(block, digits))


def _last_digit(block: np.ndarray, digits: np.ndarray) -> float:
    """Return the largest power of two that every entry is a multiple of.

    In half precision that is the step of subnormal numbers, at whatever scale the gradient is.
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
        steps[rows] = steps[rows].min(initial=np.inf)  # one scale for all: a row with few levels may have skipped some
    return UNIFORM * steps


def _step(
    moduli: np.ndarray, *, most_levels: int = 1024, fewest_repetitions: int = 4, chance: float = 1e-12
) -> float | None:
    """Return the quantisation step of a row's entries, or None if there is none.

    A row with more than ``most_levels`` distinct moduli is not quantised: ten bits are no worse than half precision. A
    few numbers are always multiples of some step, so each level needs ``fewest_repetitions`` entries on average, or all
    levels have to be multiples to within a distance that happens with ``chance`` at most.
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

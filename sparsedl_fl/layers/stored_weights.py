"""Whether a gradient is the difference of stored weights: then it has their rounding, entry by entry.

A client that sends weights rounds each to its last digit: ``(before - after) / rate`` is a whole number of units in the
last place of the weight, over the rate. The rate need not be given, since the numbers show it.
"""

from __future__ import annotations

import numpy as np

from sparsedl.arrays import ROW_ENTRIES, chunks
from sparsedl_fl.layers.blocks import significands
from sparsedl_fl.layers.formats import BFLOAT16_BITS, FLOAT16_BITS, UNIFORM

__all__ = ["rounding_of_stored", "step_of_stored_weights"]

FLOAT32_BITS, FLOAT64_BITS = 24, 53
"""Bits of a significand, the hidden one included."""

N_ENTRIES, FEWEST = 20_000, 64
"""Number of entries that are examined, evenly spaced, and the least number that suffices."""

MOST_STEPS = 2.0**18
"""Number of steps from which on an entry says nothing: the gradient itself may have been rounded to 24 bits."""

ON_GRID, NEARLY_ALL = 0.02, 0.97
"""Distance from a whole number of steps, and the share of entries that have to be as near. (A weight that crossed a
power of two has half the step; of other numbers 4 % are as near.)"""

ODD = 0.2
"""Least share of odd numbers of steps, of all entries and of those of small weights: about one half. (A gradient of one
step for all weights, or of few digits, is an even multiple of the last digit of small weights.)"""


def step_of_stored_weights(weight: np.ndarray, weight_grad: np.ndarray) -> float | None:
    """Return the step of a gradient over the last digit of its weights, ``1 / rate``, or None for other gradients.

    Parameters
    ----------
    weight : ndarray of shape (m, n)
        Weights before the step; after it none has a coarser last digit.
    weight_grad : ndarray of shape (m, n)
        The gradient, at any scale.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> weight, gradient = (rng.standard_normal((20, 50)).astype(np.float32) for _ in range(2))
    >>> after = weight - np.float32(0.01) * gradient
    >>> round(step_of_stored_weights(weight, (weight - after) / np.float32(0.01)), 3)
    100.0
    >>> step_of_stored_weights(weight, gradient)
    """
    bits = _bits_of(weight)
    if bits is None:
        return None
    looked_at = np.unravel_index(np.arange(0, weight.size, max(1, weight.size // N_ENTRIES)), weight.shape)
    moduli, digits = np.abs(weight_grad[looked_at].astype(np.float64)), _last_digits(weight[looked_at], bits)
    is_used = (moduli > 0) & (digits > 0)
    if is_used.sum() < FEWEST:
        return None
    steps, digits = moduli[is_used] / digits[is_used], digits[is_used]
    unit = _common_divisor(np.sort(steps)[:FEWEST])

    def is_whole(unit: float) -> np.ndarray:
        return np.abs(steps / unit - np.rint(steps / unit)) < ON_GRID

    while unit < steps.max() and np.mean(is_whole(2 * unit)) >= NEARLY_ALL:  # few weights cross a power of two
        unit *= 2
    counts = np.rint(steps / unit)
    is_clear = counts < MOST_STEPS
    if is_clear.sum() < FEWEST or np.mean(is_whole(unit)[is_clear]) < NEARLY_ALL:
        return None
    is_small = digits <= digits.max() / 8
    of_all, of_small = (counts[is_clear & kept] % 2 for kept in (np.ones_like(is_small), is_small))
    is_odd = len(of_small) >= FEWEST // 4 and min(of_all.mean(), of_small.mean()) >= ODD
    return float(unit) if is_odd else None


def _bits_of(weight: np.ndarray) -> int | None:
    """Return the bits of a weight's significand, or None where weights are more exact than single precision."""
    bits = 0
    for part in chunks(weight.shape[1], len(weight), ROW_ENTRIES):
        if bits == FLOAT32_BITS and weight.dtype == np.float32:  # no number has more
            break
        digits, is_single = significands(np.ascontiguousarray(weight[:, part]))
        if not is_single:
            return None
        patterns = digits.view(np.uint32)
        low = (
            FLOAT32_BITS if (patterns & 0x1FFF).any() else FLOAT16_BITS if (patterns & 0xFFFF).any() else BFLOAT16_BITS
        )
        bits = max(bits, low)
    return bits


def _last_digits(weight: np.ndarray, bits: int) -> np.ndarray:
    """Return the size of the last digit of each weight of so many bits."""
    exponents = np.frexp(weight)[1]
    return np.where(weight != 0, np.ldexp(1.0, exponents - bits), 0.0)


def _common_divisor(values: np.ndarray, *, rounding: float = 1e-3) -> float:
    """Return the largest number that all values are multiples of, by Euclid's algorithm, up to their rounding."""
    divisor = float(values[0])
    for value in values[1:]:
        a, b = float(value), divisor
        while b > rounding * divisor:
            a, b = b, abs(a - np.rint(a / b) * b)
        divisor = a
    return divisor


def rounding_of_stored(numbers: np.ndarray) -> float:
    """Return the root mean square of the rounding of stored numbers, by their last digits.

    Parameters
    ----------
    numbers : ndarray of shape (m, n)
        Weights or gradients, in half, single or double precision, whatever type holds them.

    Examples
    --------
    >>> stored = np.ones((2, 3), dtype=np.float32) / 3  # in [1/4, 1/2), with 24 bits
    >>> float(np.round(rounding_of_stored(stored) * np.sqrt(12) / 2.0**-25, 6))
    1.0
    """
    digits = _last_digits(numbers.astype(np.float64), _bits_of(numbers) or FLOAT64_BITS)
    return float(UNIFORM * np.sqrt(np.mean(digits**2)))

"""What the first step of an adaptive optimiser shows of a gradient.

Adam's first step, and those of its relatives, is ``r = g / (|g| + eps)`` in units of the learning rate. Small entries
it shows as they are, large ones by ``1 - |r| = eps / |g|`` to the rounding of the weights, and of the largest only the
sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Steps"]

PRECISE = 20.0
"""Distance of a step from one, over its deviation, from which on the entry is known of itself."""

SEEN = 4.0
"""The same, from which on an entry starts the fit."""


@dataclass(frozen=True)
class Steps:
    """What an optimiser's first step shows of a gradient.

    Attributes
    ----------
    values : ndarray of shape (m, n)
        ``r``, in units of the largest step, between -1 and 1 up to rounding.
    deviations : ndarray of shape (m, n)
        Standard deviation of their rounding.
    eps : float
        The optimiser's, in units of the gradient.
    offset : ndarray of shape (m, n) or float, default=0
        What the client added to the gradient before the step: weight decay in the loss.
    """

    values: np.ndarray
    deviations: np.ndarray
    eps: float
    offset: np.ndarray | float = 0.0

    @property
    def room(self) -> np.ndarray:
        """``1 - |r|``, which is ``eps / (|g| + eps)``."""
        return 1 - np.abs(self.values)

    def part(self, rows: np.ndarray, columns: np.ndarray) -> Steps:
        """Return some rows and columns."""
        where = np.ix_(rows, columns)
        offset = self.offset[where] if isinstance(self.offset, np.ndarray) else self.offset
        return Steps(self.values[where], self.deviations[where], self.eps, offset)

    @property
    def moved(self) -> np.ndarray:
        """Which entries are clearly not zero."""
        return np.abs(self.values) > SEEN * self.deviations

    @property
    def seen(self) -> np.ndarray:
        """Which of these are clearly smaller than infinite."""
        return self.moved & (self.room > SEEN * self.deviations)

    @property
    def transposed(self) -> Steps:
        """Of the transposed gradient."""
        return Steps(self.values.T, self.deviations.T, self.eps, np.transpose(self.offset))

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the entries that are seen, zero for others, and their deviations, infinite for others."""
        seen = self.room > SEEN * self.deviations
        room = np.where(seen, self.room, 1.0)
        entries = np.where(seen, self.eps * self.values / room - self.offset, 0.0)
        return entries, np.where(seen, self.eps * self.deviations / room**2, np.inf)

    def around(self, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return entries and their deviations, linearised at a gradient where they are not known of themselves.

        A linearised entry is kept within a factor of that gradient; where that has the wrong sign, it is zero.
        """
        precise = self.room > PRECISE * self.deviations
        room, whole = np.where(precise, self.room, 1.0), gradient + self.offset
        sizes = np.maximum(np.abs(whole), 1e-3 * self.eps)
        slopes = self.eps / (sizes + self.eps) ** 2
        linear = sizes + (np.abs(self.values) - sizes / (sizes + self.eps)) / slopes
        signs = np.sign(self.values)
        linear = np.where(signs * whole < 0, 0.0, signs * np.clip(linear, 0.2 * sizes, 3 * sizes))
        entries = np.where(precise, self.eps * self.values / room, linear)
        spread = np.where(precise, self.eps * self.deviations / room**2, self.deviations / slopes)
        return entries - self.offset, spread

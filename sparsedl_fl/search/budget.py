"""The budget of a search: starts, effort counted from sizes, or seconds, which alone depend on the machine."""

from __future__ import annotations

import time

from sparsedl_fl.activations import Activation

__all__ = ["Budget", "effort"]

WITH_ZEROS, WITHOUT_ZEROS = 2.5e-7, 1.2e-6
"""Effort of a start for each sample and unit, where the search uses zeros of the gradient and where it uses equations.

Seconds on one core over starts, samples and units, in the records of 2,705 batches at 84 to 4096 units that took more
than a second: in the median 2e-7 for ReLU where a batch was not recovered and 5e-7 where it was, and 0.4e-6 to 2.8e-6
for the others, 4.6e-6 at most. The width made no difference."""


def effort(n_starts: int, batch_size: int, width: int, activation: Activation) -> float:
    """Return the cost of starts: about seconds on one core, and the same number on any machine.

    Parameters
    ----------
    n_starts : int
        Number of starts.
    batch_size, width : int
        ``b`` and ``m``.
    activation : Activation
        ``phi``; one that is linear around zero is searched by equations, even with zero-slope regions, and so is a
        batch beyond half of the width.
    """
    has_zeros = activation.has_flat_part and not activation.is_straight_around_zero and 2 * batch_size <= width
    return n_starts * batch_size * width * (WITH_ZEROS if has_zeros else WITHOUT_ZEROS)


class Budget:
    """Starts or effort, and an optional cap on the time; a spent budget stays spent, and says why.

    Parameters
    ----------
    price : float
        Effort of a start.
    max_starts, max_effort, max_seconds : int, float, float or None
        Limits; None sets no limit, and the clock is read only with a limit of seconds.
    """

    def __init__(
        self, price: float, max_starts: int | None, max_effort: float | None, max_seconds: float | None
    ) -> None:
        self.price, self.max_starts, self.max_effort, self.max_seconds = price, max_starts, max_effort, max_seconds
        self.spent, self.cut = 0, ""
        self.deadline = None if max_seconds is None else time.monotonic() + max_seconds

    def spend(self, n_starts: int) -> None:
        """Count starts."""
        self.spent += n_starts

    def ended(self, n_more: int = 0) -> str:
        """Return why the search ends, in words, or nothing; ``n_more`` starts are not counted yet."""
        spent = self.spent + n_more
        if self.cut:
            return self.cut
        if self.max_starts is not None and spent >= self.max_starts:
            self.cut = f"the budget of {self.max_starts} starts is spent"
        elif self.max_effort is not None and spent * self.price >= self.max_effort:
            self.cut = f"the effort of {self.max_effort:g} is spent"
        elif self.deadline is not None and time.monotonic() >= self.deadline:
            self.cut = f"cut short by the cap of {self.max_seconds:g} seconds"
        return self.cut

"""What a search may cost: starts, or effort counted from sizes; seconds alone depend on the machine."""

from __future__ import annotations

import time

from sparsedl_fl.activations import Activation

__all__ = ["Budget", "effort"]

WITH_ZEROS, WITHOUT_ZEROS = 2.5e-7, 1.2e-6
"""Effort of a start for each input and unit, where zeros of the gradient lead the search and where equations do.

Seconds on one core over starts, inputs and units, in the records of 2,705 batches behind 84 to 4096 units that took
more than a second: in the median 2e-7 behind ReLU where a batch did not come back and 5e-7 where it did, and 0.4e-6 to
2.8e-6 behind the others, 4.6e-6 at most. The width made no difference."""


def effort(n_starts: int, batch_size: int, width: int, activation: Activation) -> float:
    """Return what starts cost: about seconds on one core, and the same number on any machine.

    Parameters
    ----------
    n_starts : int
        Starts.
    batch_size, width : int
        ``b`` and ``m``.
    activation : Activation
        ``phi``; one that is straight around zero is searched by equations, whatever its flat parts are, and so is a
        batch beyond half of the width.
    """
    has_zeros = activation.has_flat_part and not activation.is_straight_around_zero and 2 * batch_size <= width
    return n_starts * batch_size * width * (WITH_ZEROS if has_zeros else WITHOUT_ZEROS)


class Budget:
    """Starts or effort, and an optional cap on the time; what has ended a search stays so, and is said.

    Parameters
    ----------
    price : float
        Effort of a start.
    max_starts, max_effort, max_seconds : int, float, float or None
        What may be spent; None sets no limit, and without a limit of seconds nothing looks at the clock.
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
        """Return what ends the search, in words, or nothing; ``n_more`` starts are not counted yet."""
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

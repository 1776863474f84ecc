"""The number of starts of a round, and when to give up: in starts and rounds, never by the clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

from sklearn.base import BaseEstimator

from sparsedl_fl.search.knowledge import Knowledge

__all__ = ["Schedule"]


@dataclass(eq=False, repr=False, kw_only=True)
class Schedule(BaseEstimator):
    """The order of the stages, and the patience with them.

    Parameters
    ----------
    starts_per_round : int or None, default=None
        Starts that run at once; None takes 64 up to the width ``wide``, and 16 beyond. Reflections take twice as many.
    fewest_descents, descents_per_find : int and float, default=4 and 2
        Starts of a descent at least, for each find of the round before, and for each start that found one; where most
        lead to the same few samples, the others are found sooner once these are known.
    wide : int, default=400
        Width above which reflections go before the alternation, whose eigenproblems grow too large.
    alternation_every : int, default=4
        Where there are reflections, the alternation has one round of so many, if they find nothing new.
    ridges : tuple of float, default=(0.005, 0.05, 5e-5, 0.02)
        Regression noise of successive rounds of the alternation: some samples are found under a small one, some under a
        large one. The smallest is for deep layers, where samples differ in directions that hold little of the variance
        of the pre-activations.
    optimism : float, default=0.25
        Expected finds that each round adds to every stage, so that stages that are not chosen get their turn.
    full_patience_from, least_patience : float, default=0.3 and 0.05
        Share of the width from which on a batch takes the whole patience; a small one is found soon or never, so that
        it takes less in proportion, but no less than the second share.
    first_share : float, default=1/3
        Share of the patience for a search that has found nothing at all: a batch in range shows sooner.
    nearly_all, last_share : int and float, default=2 and 1/12
        With so few columns missing, one that is not found in that share of the patience cannot be certified by zeros;
        it follows from the others.
    descent_share : float, default=1/3
        Share of the patience for activations without a zero-slope region: a round of descents has twice as many starts.
    beyond, beyond_with_finds : int, default=2 and 20
        Rounds for a batch out of range if half of the units are inactive, which would need many more zeros; and with a
        zero-slope region for one beyond half of the width, or beyond zeros, once a sample is found. (One batch of 105
        samples at 200 ReLU units had 103 columns and found nothing new in 10.)
    beyond_zeros, first_by_weights : float and int, default=0.35 and 6
        Share of the width beyond which zeros find no batch, and the rounds of one that may be found by the weights of a
        narrow next layer, while nothing is. (51 batches of 16 to 120 at 200 had columns after the first round.)
    """

    starts_per_round: int | None = None
    fewest_descents: int = 4
    descents_per_find: float = 2.0
    wide: int = 400
    alternation_every: int = 4
    ridges: tuple[float, ...] = (0.005, 0.05, 5e-5, 0.02)
    optimism: float = 0.25
    full_patience_from: float = 0.3
    least_patience: float = 0.05
    first_share: float = 1 / 3
    nearly_all: int = 2
    last_share: float = 1 / 12
    descent_share: float = 1 / 3
    beyond: int = 2
    beyond_with_finds: int = 20
    beyond_zeros: float = 0.35
    first_by_weights: int = 6

    def is_wide(self, width: int) -> bool:
        """Whether reflections go before the alternation."""
        return width > self.wide

    def n_starts(self, width: int) -> int:
        """Return the starts of a round of the alternation."""
        return self.starts_per_round or (16 if self.is_wide(width) else 64)

    def n_descents(self, n_new: int, n_starts: int, most: int) -> int:
        """Return the starts of the next round of a descent, from the finds of the last one."""
        if n_new == 0:
            return most
        enough = self.descents_per_find * max(n_new, n_starts / n_new)
        return min(most, max(self.fewest_descents, round(enough)))

    def cycle_of_ridges(self) -> Iterator[float]:
        """Yield the ridges of successive rounds of the alternation."""
        return cycle(self.ridges)

    def patience(
        self,
        whole: int,
        knowledge: Knowledge,
        is_determined: bool,
        is_beyond_half: bool = False,
        by_weights: bool = False,
    ) -> int:
        """Return the number of rounds without anything new after which to give up.

        Parameters
        ----------
        whole : int
            The patience with a large batch of which something is known.
        knowledge : Knowledge
            Known samples and columns.
        is_determined : bool
            Whether the batch is in range.
        is_beyond_half : bool, default=False
            Whether it is more than half of the width: then rounds are long, and hardly any batch is recovered whole.
        by_weights : bool, default=False
            Whether the next layer's weights find columns where zeros do not: in the first rounds, or not at all.
        """
        (m, b), is_empty = knowledge.coordinates.left.shape, knowledge.n_known == 0
        if is_beyond_half or (is_empty and not is_determined):
            return self.beyond if is_empty else self.beyond_with_finds
        if by_weights and b > self.beyond_zeros * m:
            return self.first_by_weights if is_empty else self.beyond_with_finds
        share = max(self.least_patience, min(1.0, b / m / self.full_patience_from))
        share *= 1.0 if knowledge.coordinates.activation.has_flat_part else self.descent_share
        if knowledge.n_found >= b - self.nearly_all:
            share = min(share, self.last_share)
        elif is_empty:
            share *= self.first_share
        return max(1, round(whole * share))

"""Our own search: the forward pass says where the gradient vanishes, while searching and not only afterwards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import torch
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from sparsedl.progress import progress_bar
from sparsedl_fl.activations import ActivationSpan
from sparsedl_fl.candidates import Candidates
from sparsedl_fl.directions._alternation import alternate
from sparsedl_fl.directions._base import Directions
from sparsedl_fl.directions._progress import Progress
from sparsedl_fl.directions._projection import project
from sparsedl_fl.directions._reflection import reflect
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.lowrank import LowRankGradient
from sparsedl_fl.matching import TRUSTED_AGREEMENT, ForwardView, basis_agreement
from sparsedl_fl.theory import expect

INTERRUPTED = "interrupted"

RIDGES = (0.005, 0.05, 5e-5, 0.02)
"""Regression noise of successive rounds: some samples show under a small one, some under a large one. The smallest is
for deep layers, where samples differ in directions that hold little of the variance of the pre-activations."""

FIRST_SHARE = 1 / 3
"""Share of the patience for a search that has found nothing at all: a batch within reach shows sooner."""

FULL_PATIENCE_FROM, LEAST_PATIENCE = 0.3, 0.05
"""Share of the width from which on a batch takes the whole patience; a small one shows soon or never, so that it takes
less in proportion, but no less than the second share."""

BEYOND = 2
"""Rounds for a batch beyond what the equations determine if half of the units are off: it takes many more zeros."""

FALLBACK_REACH = 0.25
"""Share of the width up to which the fallback may find a batch of which this search found less than half."""

NEARLY_ALL, LAST_SHARE = 2, 1 / 12
"""With so few columns missing, what is not found soon cannot be proven by zeros; it follows from the others."""

WIDE = 400
"""Width above which reflections go before the alternation, and starts are fewer: its eigenproblems grow too large."""

ALTERNATION_EVERY = 4
"""Where there are reflections, the alternation has one round of so many, if they bring nothing new."""

OPTIMISM = 0.25
"""With the next layer's gradient either the span or the columns lead the starts, whichever brought more. The longer the
other has not been tried, the more is expected of it: so many columns and samples for each round."""


@dataclass(eq=False, repr=False, kw_only=True)
class ActivationDirections(Directions):
    """Searches for each sample's pre-activations and gradients together: one is positive where the other is not zero.

    Each column found takes one dimension from the forward view, exactly, and one from the column view, as its own
    sample becomes determined; the search speeds up as it goes. It needs the weights and the bias at which the gradient
    was taken, and a ReLU behind the layer. A direction is accepted by its zeros alone (see `sparsedl.zeros.ZeroTest`):
    wrong weights cost time and never the truth.

    Parameters
    ----------
    use_next_layer : bool, default=True
        Whether to use ``next_weight_grad`` where the gradient has it: a third view, with which batches come back that
        are too large for one layer.
    starts_per_round : int or None, default=None
        Starts that run at once; None takes 64 up to a width of 400, and 16 beyond. Reflections take twice as many.
    max_seconds : float, default=300
        The budget; once it is spent, nothing is left to the fallback either.
    patience : int, default=120
        Rounds without a new column or sample after which the search gives up; a third of it if there is nothing yet, a
        twelfth for the last two columns.
    fallback : Directions or None, default=None
        What looks for the rest, on its own budget, when this search gives up before its time is spent. Not for a last
        column, which follows from the others.

    References
    ----------
    SPEAR (2024), Theorems 3.1 to 3.5, for the two views. The search is this project's own.
    """

    use_next_layer: bool = True
    starts_per_round: int | None = None
    max_seconds: float = 300.0
    patience: int = 120
    fallback: Directions | None = None

    def propose(
        self,
        layer_gradient: LayerGradient,
        factors: LowRankGradient,
        *,
        random_state: Any = None,
        verbose: bool = False,
    ) -> Candidates:
        """Search until the columns found are a basis, or the budget is spent."""
        for name in ("starts_per_round", "max_seconds", "patience"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")
        random_state = check_random_state(random_state)
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        view = ForwardView.of(layer_gradient, factors)
        span = ActivationSpan.of(layer_gradient.next_weight_grad, factors.batch_size) if self.use_next_layer else None
        b, m = factors.batch_size, len(factors.left)
        deadline = time.monotonic() + self.max_seconds
        with progress_bar(verbose, total=factors.batch_size, description="columns") as report:
            found = self._search(view, factors, span, deadline, generator, report)
            if (
                span is not None
                and found.is_complete
                and INTERRUPTED not in found.status
                and not _agrees(view, factors, found)
            ):
                # Samples that switch the same units leave their mixtures in the span as well.
                alone = self._search(view, factors, None, deadline, generator, report)
                found = replace(alone, n_starts=found.n_starts + alone.n_starts)
        # A last column without enough zeros for a proof follows from the others, and from no other search.
        is_over = found.status.startswith(INTERRUPTED) or time.monotonic() >= deadline
        is_hopeless = b > FALLBACK_REACH * m and found.n_missing > b / 2
        if is_over or found.n_missing <= 1 or self.fallback is None or is_hopeless:
            return found
        rest = self.fallback.propose(layer_gradient, factors, random_state=random_state, verbose=verbose)
        return found.joined(rest.directions, factors, rest)

    def _search(
        self,
        view: ForwardView,
        factors: LowRankGradient,
        span: ActivationSpan | None,
        deadline: float,
        generator: torch.Generator,
        report: Callable[[int, str], None],
    ) -> Candidates:
        """Search two views, or three where there is a span."""
        progress = Progress(factors.zero_test, torch.from_numpy(view.regressors))
        is_wide = len(factors.left) > WIDE
        n_starts = self.starts_per_round or (16 if is_wide else 64)
        idle = n_rounds = spent = 0
        is_determined = _is_determined(factors, span)
        ridges, gains = cycle(RIDGES), [math.inf, 0.0]
        try:
            # One thread: the matrices are small, and spinning threads cost more than they bring.
            with threadpool_limits(limits=1):
                while (
                    not progress.is_complete
                    and time.monotonic() < deadline
                    and idle < self._patience(progress, is_determined)
                ):
                    n_rounds, idle, is_new = n_rounds + 1, idle + 1, False
                    progress.deflate_columns()
                    if span is not None:
                        by_columns, n_before = gains[1] > gains[0], progress.n_known
                        is_new = progress.add_samples(
                            *project(progress.views, span, 2 * n_starts, generator, by_columns)
                        )
                        gains = [gain + OPTIMISM for gain in gains]
                        gains[by_columns] = progress.n_known - n_before
                    elif is_wide:
                        is_new = progress.add_columns(reflect(progress.views, 2 * n_starts, generator))
                    reflects = span is not None or is_wide
                    spent += 2 * n_starts * reflects
                    if not is_new and (n_rounds % ALTERNATION_EVERY == 0 or not reflects):
                        is_new = progress.add_columns(alternate(progress.views, n_starts, next(ridges), generator))
                        spent += n_starts
                    idle = 0 if is_new else idle
                    report(progress.n_found, f"{spent} starts, {progress.n_hits} in a column")
            status = "complete" if progress.is_complete else self._reason(time.monotonic() >= deadline, idle)
        except KeyboardInterrupt:
            status = INTERRUPTED
        views = "gradient, weights and the next layer's gradient" if span is not None else "gradient and weights"
        directions = progress.pool.directions.numpy().T
        return Candidates(
            directions=directions,
            n_zeros=factors.zeros(directions).sum(axis=0),
            status=f"{status} (views: {views})",
            n_starts=spent,
            n_successes=progress.n_hits,
        )

    def _patience(self, progress: Progress, is_determined: bool) -> int:
        m, b = progress.views.left.shape
        if progress.is_empty and not is_determined:
            return BEYOND
        share = max(LEAST_PATIENCE, min(1.0, b / m / FULL_PATIENCE_FROM))
        if progress.n_found >= b - NEARLY_ALL:
            share = min(share, LAST_SHARE)
        elif progress.is_empty:
            share *= FIRST_SHARE
        return max(1, round(self.patience * share))

    def _reason(self, is_late: bool, idle: int) -> str:
        return f"the budget of {self.max_seconds:g} seconds is spent" if is_late else f"nothing new in {idle} rounds"


def _is_determined(factors: LowRankGradient, span: ActivationSpan | None) -> bool:
    """Return whether there are equations enough for the batch, if half of the units are off."""
    n_live = int(factors.zero_test.distinct_rows.sum())
    return expect(factors.batch_size, n_live, span is not None and span.identifies).is_determined


def _agrees(view: ForwardView, factors: LowRankGradient, found: Candidates) -> bool:
    """Return whether every sample switches the units at which its gradient is not zero."""
    return bool(basis_agreement(view, factors, found.selection()).min() >= TRUSTED_AGREEMENT)

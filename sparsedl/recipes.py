"""Which stages a search goes through: those of the default one, and that of an optimiser that somebody chose."""

from __future__ import annotations

from collections.abc import Callable

import torch
from sklearn.base import BaseEstimator

from sparsedl.attempt import recover
from sparsedl.descents import Descent
from sparsedl.likelihood import LEAST_NOISE, noise_of_directions
from sparsedl.observations import Observations
from sparsedl.optimizers import Graduated
from sparsedl.recovery import Recovery
from sparsedl.rounding import ReweightedRounding, Rounding
from sparsedl.search import Search
from sparsedl.stages import Stage
from sparsedl.starts import RowStarts, SphereStarts, Starts, SymmetricStarts
from sparsedl.surrogates import Cauchy, GemanMcClure
from sparsedl.zeros import ZeroTest

__all__ = ["attempt_for", "default_stages", "search_for", "stages_of"]

MAX_ROUNDS = 20
"""Rounds of an optimiser other than the default one."""


def search_for(
    estimator: BaseEstimator, test: ZeroTest, known: torch.Tensor, patience: int | None, device: torch.device
) -> Search:
    """Return the search of an estimator whose strategies are fitted.

    Parameters
    ----------
    estimator : SparseDictionaryRecovery
        Its parameters, ``surrogate_``, ``optimizer_`` and ``rounding_``.
    test : ZeroTest
        What is searched.
    known : torch.Tensor of shape (n_known, n_components)
        Directions known beforehand.
    patience : int or None
        Rounds without a new column.
    device : torch.device
        Where the starts run.
    """
    (n_rows, k), prices = test.observations.shape, estimator.deflation
    is_default = estimator.optimizer is estimator.surrogate is None and prices is not None
    if is_default:
        prices = (1.0, 5.0) if prices == "auto" else prices
        if noise_of_directions(test) > LEAST_NOISE:
            patience = PATIENCE_UNDER_NOISE if patience is None else min(patience, PATIENCE_UNDER_NOISE)
        is_limited = estimator.patience is not None or estimator.max_rounds is not None
        stages = default_stages(n_rows, k, estimator.n_starts, prices, patience, not is_limited)
    else:
        descent = Descent(optimizer=estimator.optimizer_, surrogate=estimator.surrogate_)
        prices = (1.0, 2.0) if prices == "auto" else prices
        stages = stages_of(descent, estimator.rounding_, k, estimator.n_starts, prices, patience)
    return Search(
        zero_test=test,
        surrogate=estimator.surrogate_,
        rounding=estimator.rounding_,
        stages=stages,
        max_rounds=MAX_ROUNDS if estimator.max_rounds is None and not is_default else estimator.max_rounds,
        n_jobs=estimator.n_jobs,
        device=device,
        known=known,
    )


def attempt_for(
    estimator: BaseEstimator,
    observations: Observations,
    generator: torch.Generator,
    device: torch.device,
    report: Callable[[int, str], None],
) -> Callable[[bool, int | None], Recovery]:
    """Return the function that makes an attempt for an estimator: with an offset or without, and with a patience."""

    def attempt(with_offset: bool, patience: int | None) -> Recovery:
        def make_search(test: ZeroTest, known: torch.Tensor) -> Search:
            return search_for(estimator, test, known, patience, device)

        return recover(observations, estimator.n_components, make_search, generator, report, with_offset)

    return attempt


CONVERGED = 2e-3
"""Smoothing at which a descent has converged."""

TOGETHER = Descent(
    optimizer=Graduated(max_iter=30, smoothing=0.3, final_smoothing=2e-3, momentum=0.5), surrogate=Cauchy()
)
"""From starts that are close. 30 steps with momentum take 0.7 of the time of 60 without at (100, 10, .5), and no more
at (20, 10, .5) and (50, 10, .5) (`make_sparse_dictionary`: components, samples each, zeros; seeds 500 to 509)."""

FAST_CAUCHY, SLOW_CAUCHY = (
    Descent(
        surrogate=Cauchy(),
        optimizer=Graduated(max_iter=max_iter, smoothing=(0.4, 2.5), final_smoothing=0.1),
        finish=(Graduated(max_iter=40, smoothing=0.1, final_smoothing=CONVERGED, momentum=0.5), Cauchy()),
        look=0.05,
        near_zero=3 * CONVERGED,
    )
    for max_iter in (75, 200)
)
FAST_GEMAN, SLOW_GEMAN = (
    Descent(
        surrogate=GemanMcClure(),
        optimizer=Graduated(max_iter=max_iter, smoothing=(0.3, hot), final_smoothing=cold),
        finish=(Graduated(max_iter=8, smoothing=cold, final_smoothing=CONVERGED, momentum=0.5), Cauchy()),
        look=0.02,
        near_zero=3 * CONVERGED,
    )
    for max_iter, hot, cold in ((100, 1.0, 0.02), (250, 1.5, 0.03))
)
"""From starts that are far, at four or five samples a component, these take turns. Tuned on `make_sparse_dictionary`,
half zeros: seeds 3000 to 3005 at (components, samples each) = (20, 4), (50, 5) and (100, 6); which take turns also on
seeds 0 to 2 at (50, 4) and 4, 6 and 7 at (20, 4)."""

MANY = 32
"""Components from which on the slow ones have their turn too. With 20, `GemanMcClure` was the fastest for the last
columns, with 50 the slow ones completed one more of three at four samples each; in between nothing was measured."""


SETS = 64
"""Starts at once, in sets of as many as are missing: three sets of 20 complete a dictionary more often in one round."""

FIRST_STARTS, MOST_STARTS, WIDE = 32, 512, 64
"""Starts in a round behind a new column, and in the long run; components from which on the first are twice as many, in
two tasks. At (150, 10, .5) 64 in two take 8.4 s and 32 in one 7.0 s, at (100, 10, .5) 1.2 and 1.5 s."""

PATIENCE = ((8, 36, 84), (12, 16, 24), (20, 5, 10), (float("inf"), 3, 10))
"""Below so many samples a component: rounds without a column while there is none, and without a new one. In starts:
16,000 and 40,000; 6,000 and 10,000; 1,000 and 3,500; 200 and 3,500. The largest gap behind which a column was found had
1,024 starts everywhere but at (20, 4, .5), and there 112,000 and 646,000 (seeds 7 and 6 of ten)."""


PATIENCE_UNDER_NOISE = 2
"""Where the likelihood goes on from what the search has found."""


def default_stages(
    n_rows: int,
    n_components: int,
    n_starts: int | None,
    prices: tuple[float, ...],
    patience: int | None,
    grow: bool = True,
) -> list[Stage]:
    """Return the stages of the default search: all directions at once, and where that brings no more, many starts.

    Rounds of these ``grow`` unless somebody counts them.
    """
    n_starts = MOST_STARTS if n_starts is None else n_starts
    first, later = next((first, later) for most, first, later in PATIENCE if n_rows < most * n_components)
    descents = (FAST_CAUCHY, FAST_GEMAN, FAST_GEMAN, FAST_GEMAN)
    if n_components >= MANY:
        descents = (FAST_CAUCHY, FAST_GEMAN, SLOW_CAUCHY, SLOW_GEMAN)
    together = Stage(starts=SymmetricStarts(), descents=(TOGETHER,), n_starts=SETS, least_gain=0.25, fewest_open=4)
    many = Stage(
        starts=RowStarts(),
        descents=descents,
        n_starts=n_starts,
        first_starts=(2 if n_components >= WIDE else 1) * FIRST_STARTS if grow else n_starts,
        starts_per_task=FIRST_STARTS,
        prices=prices,
        draws_price=True,
        patience=patience if patience is not None else later,
        first_patience=first if patience is None else min(first, patience),
        # A wide first step jumps: at 0.02 the smallest eigenvector left the exact column with 36 zeros of 80.
        rounding=ReweightedRounding(smoothing=CONVERGED, shrinkage=0.1, max_iter=3),
    )
    return [together, many]


def stages_of(
    descent: Descent,
    rounding: Rounding,
    n_components: int,
    n_starts: int | None,
    prices: tuple[float, ...] | None,
    patience: int | None,
    *,
    n_anchors: int = 16,
) -> list[Stage]:
    """Return the one stage of an optimiser: rows of the observations as starts, or as in the papers without prices."""
    starts: Starts = SphereStarts() if prices is None else RowStarts()
    return [
        Stage(
            starts=starts,
            descents=(descent,),
            rounding=rounding,
            n_starts=max(64, 2 * n_components) if n_starts is None else n_starts,
            prices=(1.0,) if prices is None else prices,
            patience=patience,
            n_anchors=0 if prices is None else n_anchors,
        )
    ]

"""Which stages a search goes through: those of the default one, and that of an optimiser that somebody chose."""

from __future__ import annotations

from typing import Any

import torch

from sparsedl.optimizers import Graduated, Optimizer
from sparsedl.search import Search
from sparsedl.stages import Stage
from sparsedl.starts import RowStarts, SphereStarts, Starts, SymmetricStarts
from sparsedl.zeros import ZeroTest

__all__ = ["default_stages", "search_for", "stages_of"]

MAX_ROUNDS = 20
"""Rounds of an optimiser other than the default one."""


def search_for(
    estimator: Any, test: ZeroTest, known: torch.Tensor, patience: int | None, device: torch.device
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
    k, prices, is_default = test.observations.shape[1], estimator.deflation, estimator.optimizer is None
    is_default = is_default and estimator.surrogate is None and prices is not None
    if is_default:
        stages = default_stages(*test.observations.shape, estimator.n_starts, prices, patience)
    else:
        stages = stages_of(estimator.optimizer_, k, estimator.n_starts, prices, patience)
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


def default_stages(
    n_rows: int, n_components: int, n_starts: int | None, prices: tuple[float, ...], patience: int | None
) -> list[Stage]:
    """Return the stages of the default search: all directions at once, and where that brings no more, many starts."""
    together = Stage(
        starts=SymmetricStarts(),
        optimizers=(Graduated(max_iter=60, smoothing=0.3),),
        n_starts=n_components,
        least_gain=0.25,
        fewest_open=4,
        rounds_all=False,
    )
    many = Stage(
        starts=RowStarts(),
        optimizers=(Graduated(max_iter=150, smoothing=(0.4, 2.5)),),
        n_starts=256 if n_starts is None else n_starts,
        first_starts=32,
        prices=prices,
        patience=10 if patience is None else patience,
    )
    return [together, many]


def stages_of(
    optimizer: Optimizer,
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
            optimizers=(optimizer,),
            n_starts=max(64, 2 * n_components) if n_starts is None else n_starts,
            prices=(1.0,) if prices is None else prices,
            patience=patience,
            n_anchors=0 if prices is None else n_anchors,
        )
    ]

"""One attempt to recover a dictionary: whiten, search a part of the observations, prove on all of them.

With an offset, ``X = codes @ components + offset``, a column of ones is appended. The codes then have one column more,
which is constant and known, and the offset is its component: centring, or a scaler in a pipeline, loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from sparsedl.evidence import Evidence
from sparsedl.likelihood import with_likelihood
from sparsedl.linalg import normalized
from sparsedl.noise_floor import noise_of_zeros
from sparsedl.observations import Observations
from sparsedl.preconditioning import Whitening
from sparsedl.recovery import Recovery, conclude
from sparsedl.search import Search
from sparsedl.stages import SearchEnd
from sparsedl.zeros import ZeroTest

__all__ = ["recover"]


def recover(
    observations: Observations,
    n_components: int | None,
    make_search: Callable[[ZeroTest, torch.Tensor], Search],
    generator: torch.Generator,
    report: Callable[[int, str], None],
    with_offset: bool = False,
    *,
    clearly_noisier: float = 3.0,
) -> Recovery:
    """Attempt a recovery.

    Parameters
    ----------
    observations : Observations
        Observations in units of their own; without a noise level it is derived, at last from the zeros of the
        directions found.
    n_components : int or None
        Number of components, the constant one not counted.
    make_search : callable
        Makes a `Search` of a zero test and of directions known beforehand.
    generator : torch.Generator
        Source of randomness.
    report : callable
        Takes the number of columns found, and a text.
    with_offset : bool, default=False
        Whether to append a column of ones.
    clearly_noisier : float, default=3
        Noise that the zeros show, over what was assumed, from which on it is worth another search.
    """
    if with_offset:
        observations = observations.with_offset()
    observed, whitening = _without_rows_alone(observations, n_components)
    if with_offset and whitening.n_components == 1:
        raise ValueError("X is one offset in all rows: there is no component beside it to recover")
    known = torch.zeros((0, whitening.n_components), dtype=torch.float64)
    if with_offset:
        known = normalized(torch.from_numpy(whitening.mixing[:, -1].copy())[None])
    evidence = Evidence.of(observed, whitening, generator)
    search = make_search(evidence.part, known)
    result = search.run(generator, report)
    floor = None
    if observed.noise_level is None and result.end not in (SearchEnd.COMPLETE, SearchEnd.INTERRUPTED):
        floor = noise_of_zeros(search, result)
    if floor is not None and floor > clearly_noisier * np.median(whitening.noise_level):
        whitening = replace(whitening, noise_level=np.maximum(whitening.noise_level, floor))
        evidence = Evidence.of(observed, whitening, generator)
        again = make_search(evidence.part, known).run(generator, report)
        result = replace(again, n_starts=again.n_starts + result.n_starts, n_rounds=again.n_rounds + result.n_rounds)
    found = conclude(evidence, known, observed, result)
    return found if with_offset or result.end is SearchEnd.INTERRUPTED else with_likelihood(found, evidence, generator)


def _without_rows_alone(observed: Observations, n_components: int | None) -> tuple[Observations, Whitening]:
    """Return the observations, and whitened, without those that lie outside the span of all others.

    A row with a wrong entry does. It has a component of its own, mixed with which every other column has as many zeros:
    nothing is proven with it, and without it all may be.
    """
    whitening = observed.whitened(n_components)
    alone = whitening.leverages > 1 - observed.eps**0.5
    n_rows, rank = len(alone), len(whitening.singular_values)
    n_left = rank - int(alone.sum()) - (observed.mean is not None)
    # Where there are hardly more rows than components all are alone, and nothing is proven either way.
    if not alone.any() or n_rows < rank + 2 or n_left < (n_components or 1):
        return observed, whitening
    observed = observed.only(~alone)
    return observed, observed.whitened(n_components)

"""Why not all components are recovered, and what helps: what the observations themselves show."""

from __future__ import annotations

import numpy as np

from sparsedl.arrays import row_chunks
from sparsedl.recovery import Recovery
from sparsedl.stages import SearchEnd

__all__ = ["advice", "status"]

ROWS_EACH = 2
"""Rows that differ, for each component, below which hardly anything is proven."""


def status(found: Recovery) -> str:
    """Return ``"complete"``, or in words why not."""
    left_out = np.flatnonzero(~found.observations.kept)
    if len(found.proven) == 1 and found.proven.all():
        return "one component: nothing to tell apart"
    if found.proven.all():
        return f"complete without {_named('row', left_out)}" if len(left_out) else "complete"
    n_open = int((~found.proven).sum())
    is_over = found.result.end is not SearchEnd.COMPLETE
    return found.result.status if is_over else f"the search ended; the zeros of {n_open} directions prove nothing"


def advice(found: Recovery) -> str | None:
    """Return what is missing, why, and what helps; None where nothing is to be said."""
    n_found, k = int(found.proven.sum()), len(found.proven)
    left_out = np.flatnonzero(~found.observations.kept)
    parts = []
    hidden = _of_rounding(found)
    if hidden:
        parts += [hidden]
    elif n_found < k or k == 1:
        parts += [next(filter(None, (cause(found) for cause in _CAUSES)))]
    if 0 < n_found < k:
        parts += [
            "the codes of those recovered are exact up to their scale, their rows of components_ are not while others "
            "are open (see certain_components_)"
        ]
    if len(left_out):
        words = "is left out: it lies" if len(left_out) == 1 else "are left out: each lies"
        parts += [
            f"{_named('row', left_out)} of X {words} outside the span of all others, as a row with a wrong entry does, "
            "and the codes of such a row mean nothing; mend or drop it"
        ]
    return f"recovered {n_found} of {k} components ({status(found)}); {'; '.join(parts)}" if parts else None


def _named(kind: str, numbers: np.ndarray, most: int = 10) -> str:
    """Return "row 3", "rows 3, 7 and 9", or how many there are and the first of them."""
    words = [str(number) for number in numbers]
    if len(words) > most:
        return f"{len(words)} {kind}s ({', '.join(words[:most])}, ...)"
    return f"{kind} {words[0]}" if len(words) == 1 else f"{kind}s {', '.join(words[:-1])} and {words[-1]}"


def _of_one_component(found: Recovery) -> str | None:
    values = found.whitening.singular_values
    if len(found.proven) > 1:
        return None
    if len(values) == 1:
        return (
            "X has rank one: its rows are multiples of each other, so that there is one component, which needs no "
            "search and which no zeros prove; if there should be more, X lacks what tells them apart"
        )
    return (
        f"X has rank {len(values)}, and what lies beyond the one component is {values[1] / values[0]:.2g} times as "
        "large: nothing shows that it is noise; raise n_components, or leave it to be the rank"
    )


def _of_few_rows(found: Recovery) -> str | None:
    observed, k = found.observations, len(found.proven)
    n_rows, n_features = observed.values.shape
    n_nonzero = sum(int(observed.values[part].any(axis=1).sum()) for part in row_chunks(observed.values))
    needed = f"{k} components need {ROWS_EACH * k} samples at the very least"
    if found.n_different >= ROWS_EACH * k:
        return None
    if n_nonzero < n_rows and n_nonzero < ROWS_EACH * k:
        return f"all but {n_nonzero} of the {n_rows} rows are zero, and {needed}: give more"
    if found.n_different <= n_rows / 2:
        return (
            f"only {found.n_different} of {n_rows} rows are different, the others are multiples of them and prove "
            f"nothing more; {needed}: give more that differ"
        )
    other = ", or X.T if its columns are the samples" if n_rows < n_features else ""
    return f"rows are samples: X has {n_rows} of them and {n_features} features, and {needed}: give more{other}"


def _of_few_values(found: Recovery) -> str | None:
    if not found.n_repetitive:
        return None
    return (
        f"the codes of {found.n_repetitive} directions take few values, such as small whole numbers, whose mixtures "
        "have zeros too: they may be right, but their zeros do not prove it; give more samples if their values "
        "differ, or judge them by score on samples not seen"
    )


def _of_rare_use(found: Recovery, few: int = 3) -> str | None:
    """Name the rows that alone use a component: with a share of it every other column has as many zeros."""
    n_rows = len(found.observations.values)
    for index in np.flatnonzero(found.proven & (found.n_zeros[: len(found.proven)] >= n_rows - few)):
        entries = np.abs(np.asarray(found.whitening.observations) @ (found.whitening.unmixing @ found.basis[:, index]))
        rows = np.flatnonzero(found.observations.kept)[np.sort(np.argsort(entries)[found.n_zeros[index] :])]
        return (
            f"component {index} is used by {_named('row', rows)} alone, as wrong entries are, and the others cannot "
            "be told from their mixtures with it; mend these rows or leave them out"
        )
    return None


def _of_constants(found: Recovery) -> str | None:
    values = np.asarray(found.observations.values)
    constant = (np.ptp(values, axis=0) == 0) & values.any(axis=0) if found.observations.mean is None else np.zeros(1)
    if not constant.any():
        return None
    return (
        f"{_named('feature', np.flatnonzero(constant))} of X is the same in all rows, which is a component that all of "
        "them use: leave it out, or set fit_intercept=True"
    )


def _of_rounding(found: Recovery) -> str | None:
    """Name features that rounding hides, whether all others are recovered or not: nothing is known of these."""
    values, largest = found.observations.values, found.whitening.singular_values[0]
    squares = (np.sum(values[part].astype(np.float64, copy=False) ** 2, axis=0) for part in row_chunks(values))
    sizes = np.sqrt(sum(squares))
    hidden = (sizes > 0) & (sizes < found.whitening.hidden_below)
    if not hidden.any():
        return None
    return (
        f"{_named('feature', np.flatnonzero(hidden))} of X cannot be told from the rounding of the others, which are "
        f"{largest / sizes[hidden].max():.0e} times larger: divide each feature by its largest modulus, which leaves "
        "the zeros of the codes where they are"
    )


def _of_noise(found: Recovery, clear: float = 5.0) -> str | None:
    """Say where the singular values end, if noise fills the rank, or that they do not where they were told to."""
    values, k = found.whitening.singular_values, len(found.proven) + (found.observations.mean is not None)
    n_rows, n_features = found.observations.values.shape
    if len(values) > k:
        if values[k] > values[k - 1] / 2:
            return (
                f"behind n_components={len(found.proven)} the singular values of X go on, at {values[k]:.2g} after "
                f"{values[k - 1]:.2g} (in units of their own): what is left out is no noise; raise n_components, or "
                "leave it to be the rank"
            )
        return None
    if found.proven.any():
        return None
    ratios = values[:-1] / values[1:]
    last = int(ratios.argmax()) + 1
    width = (n_features - last) ** 0.5
    # White noise has singular values between these two multiples of its standard deviation.
    spread = (n_rows**0.5 + width) / max(n_rows**0.5 - width, 1.0)
    if last < 2 or ratios[last - 1] < clear or values[last] > 2 * spread * values[-1]:
        return None
    n_components = last - (found.observations.mean is not None)
    return (
        f"behind number {last} the singular values of X fall by a factor of {ratios[last - 1]:.0f}: if the rest is "
        f"noise, which fills the rank, give n_components={n_components}; if not, the codes may be dense"
    )


def _of_dense_codes(found: Recovery) -> str | None:
    if found.proven.any():
        return None
    k, observed = len(found.proven) + (found.observations.mean is not None), found.observations
    text = "no direction has more zeros than chance: the codes may be dense, or the samples too few"
    if observed.noise_level is None and k >= observed.values.shape[1]:
        return (
            f"{text}, or noise fills the rank (give n_components) or is larger than the rounding of X: set "
            "noise_level, or give more observations"
        )
    return f"{text}: raise max_rounds or n_starts, or give more observations"


def _of_the_search(found: Recovery) -> str:
    return (
        "raise max_rounds or n_starts; components that nearly all samples use, if those are missing, will not come by "
        "that"
    )


_CAUSES = (
    _of_one_component,
    _of_few_rows,
    _of_few_values,
    _of_rare_use,
    _of_constants,
    _of_noise,
    _of_dense_codes,
    _of_the_search,
)

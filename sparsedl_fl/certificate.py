"""What proves an input: kinds of evidence, and what follows from them.

Every input is orthogonal to the columns of all others, ``P Q = I``: it is right when *those* are, whatever its own is.
So a column can be proven, and then it counts for all other inputs; or an input can be proven by itself.

============  ==============  ======================================================================================
evidence      of              statement
============  ==============  ======================================================================================
`ZEROS`       columns         more zeros than chance, which determine it
`SPAN`        inputs          the activations lie in the span of the next layer's gradient
`INPUT`       inputs          the input has more zeros of its own than chance, which determine it
============  ==============  ======================================================================================

An input without evidence of its own is proven when all other columns are. Its ReLU pattern then confirms that weights
and gradient belong together; where it does not (dropout, stale weights), every column has to be proven, and no unit
may have a gradient that the weights say was off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsedl_fl.matching import TRUSTED_AGREEMENT

__all__ = ["COLUMNS_ALONE", "INPUT", "NONE", "SPAN", "ZEROS", "Certificate", "certify", "one_sided_agreement"]

NONE = "none"
ZEROS = "zeros of the gradient"
SPAN = "span of the next layer"
INPUT = "zeros of the input"
COLUMNS_ALONE = "columns alone, pattern not confirmed"

CONSISTENT = 0.8
"""Share of the units with a gradient that have to be active by the weights, where the pattern as a whole does not fit:
one half by chance."""

UNEXPLAINED = 10.0
"""Excess beyond the batch above which the gradient holds more inputs than were looked for: nothing is certified."""

WORTHLESS = 0.3
"""Expected error, relative to the size of an input, above which it is no recovery whatever proves it."""


@dataclass(frozen=True)
class Certificate:
    """Which inputs are proven, and by what.

    Attributes
    ----------
    proven : ndarray of shape (b,) of bool
        Which inputs are certified.
    evidence : ndarray of shape (b,) of str
        The kind of evidence that decided; `NONE` where there is none.
    """

    proven: np.ndarray
    evidence: np.ndarray


def one_sided_agreement(preactivations: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Return the share of each sample's units with a gradient that are active by the weights.

    Dropout switches active units off and never the other way.

    Parameters
    ----------
    preactivations : ndarray of shape (m, b)
        ``Z``.
    zeros : ndarray of shape (m, b) of bool
        Where ``D`` is zero.
    """
    return np.sum((preactivations > 0) & ~zeros, axis=0) / np.maximum(np.sum(~zeros, axis=0), 1)


def certify(
    columns: np.ndarray,
    by_span: np.ndarray,
    by_input: np.ndarray,
    agreement: np.ndarray,
    one_sided: np.ndarray,
    relative_errors: np.ndarray,
    excess: float,
) -> Certificate:
    """Combine the evidence.

    Parameters
    ----------
    columns : ndarray of shape (b,) of bool
        Columns that their zeros prove.
    by_span, by_input : ndarray of shape (b,) of bool
        Inputs that are proven by themselves.
    agreement, one_sided : ndarray of shape (b,)
        Of ReLU pattern and gradient, both ways and one way.
    relative_errors : ndarray of shape (b,)
        Expected error of each input over its size.
    excess : float
        Of what lies beyond the batch (see `LowRankGradient`).
    """
    n_missing = np.sum(~columns)
    follows = np.full(len(columns), n_missing == 0) | ((n_missing == 1) & ~columns)
    confirmed = agreement >= TRUSTED_AGREEMENT
    alone = (n_missing == 0) & (one_sided >= CONSISTENT) & np.all(one_sided > 0.5)
    evidence = np.select(
        [follows & confirmed, by_span, by_input, follows & alone], [ZEROS, SPAN, INPUT, COLUMNS_ALONE], NONE
    )
    evidence = np.where((relative_errors <= WORTHLESS) & (excess <= UNEXPLAINED), evidence, NONE)
    return Certificate(evidence != NONE, evidence)

"""How far an input is from one that its column may belong to: one that activates each unit with a gradient.

A sample has no gradient where its unit is inactive. Of two records with parallel columns and other labels what comes
back is no mean: it lies beyond the two, by more the more alike they are, and activates other units than they do.
"""

from __future__ import annotations

import numpy as np

from sparsedl_fl.certify.criterion import Case
from sparsedl_fl.layers.blocks import row_norms

__all__ = ["distances_to_own_pattern"]

ABOVE = 3.0
"""Size of a unit's gradient, over what counts as zero, below which it may be none; not varied."""

CLEARLY = 10.0
"""Expected errors of a pre-activation, by the columns, by which a unit has to be inactive: noise moves it by a few. Not
varied."""

MOST = 0.5
"""Share of the batch that may be contradicted: of more it is the weights that are others. Not varied."""


def distances_to_own_pattern(case: Case) -> np.ndarray:
    """Return how far each input is, typically, from one that activates all units of its own column.

    A unit at ``depth`` behind its kink shows a change of about ``depth / |w|`` of each feature, in no direction of its
    own. The deepest that has a gradient counts. (A pair .006 apart before two classes came back .028 off, of a layer
    alone: the gradient of one unit showed .013, and the expected error was 3e-7.)

    Returns
    -------
    ndarray of shape (b,)
        As a root mean square over the features. Zero where the activation has no zero-slope region, of an update of
        several steps, which moves the units, where a column is not proven, where noise explains it, and where most of
        the batch is contradicted.
    """
    problem, b = case.hypothesis.problem, len(case.inputs)
    given, factors = problem.layer_gradient, problem.factors
    if not problem.activation.has_flat_part or given.is_update:
        return np.zeros(b)
    columns = case.disaggregation / np.linalg.norm(case.disaggregation, axis=0)
    has_gradient = np.abs(factors.left @ columns) > ABOVE * factors.tolerances(columns)
    lengths = np.maximum(row_norms(given.weight), np.finfo(float).tiny)[:, None]
    depths = problem.distance_to_kink(problem.at(case.whitened)) / lengths
    found = np.max(depths, axis=0, where=has_gradient & ~case.is_active, initial=0.0)
    is_clear = (found > CLEARLY * case.errors_by_columns[0]) & (case.columns | case.sent_back.is_proven)
    return np.where(is_clear, found, 0.0) if is_clear.mean() < MOST else np.zeros(b)

"""What a recovered batch leaves of its own gradient, and what that says of inputs which later layers certify."""

from __future__ import annotations

import numpy as np

from sparsedl_fl.certify.certificate import Certificate
from sparsedl_fl.certify.criterion import Case, EvidenceKind
from sparsedl_fl.layers.blocks import residual_norms, row_norms
from sparsedl_fl.layers.layer_gradient import LayerGradient

__all__ = ["are_of_another_batch", "relative_residual"]

OWN = (
    EvidenceKind.ZEROS_OF_OTHERS,
    EvidenceKind.ZEROS_OF_ALL,
    EvidenceKind.ZEROS_OF_INPUT,
    EvidenceKind.SENT_BACK,
    EvidenceKind.SHARED_ZEROS,
)
"""Evidence by the layer's own gradient, and by its pattern."""

CLEARLY, ABOVE = 10.0, 3.0
"""Expected errors of a pre-activation by which a unit has to be inactive to say something, and the size of a gradient,
over what counts as zero, from which on it is one; as for hidden features."""

MOST_VIOLATED, MORE = 0.05, 2.0
"""Share of the inactive units that may have a gradient for other reasons; and how many of these units there have to be,
over the batch size, for a column to vanish at them by no chance. Neither is varied."""


def relative_residual(given: LayerGradient, gradients: np.ndarray, inputs: np.ndarray) -> float:
    """Return ``|G - D X^T| / |G|`` for ``D`` of shape (m, b) and inputs of shape (b, n)."""
    residual = residual_norms(given.weight_grad, gradients, inputs)[0]
    return float(np.linalg.norm(residual) / np.linalg.norm(row_norms(given.weight_grad)))


def are_of_another_batch(case: Case, certificate: Certificate) -> np.ndarray:
    """Return which inputs later layers certify by gradients that are not of the layer's own batch: all or none.

    The activation subspaces and the network tail say of what batch *their* gradients are. An input of the layer's own
    batch has a column there, which vanishes where the unit is inactive: the one that all inputs found give, or, where
    some of these are wrong, the one that its inactive units determine. Where one input has neither, what later layers
    say is of others. (In ten of 60 problems, whose later gradients were those of means of the inputs, such means were
    certified.) Means of near-duplicates between which units switch lie in no activation subspace.

    Several local steps move the pattern, and features without gradient may be masked, which has an error of its own
    (see `error_of_hidden_features`).

    Returns
    -------
    ndarray of shape (b,) of bool
    """
    problem, later = case.hypothesis.problem, certificate.proven & ~np.isin(certificate.evidence, [*map(str, OWN)])
    given, b = problem.layer_gradient, len(case.whitened)
    says_nothing = given.is_update or not problem.activation.has_flat_part or not given.weight_grad.any(axis=0).all()
    if says_nothing or not later.any():
        return np.zeros(b, dtype=bool)
    inactive = case.is_clear(certificate.errors, CLEARLY) & ~case.is_active
    asked = np.flatnonzero(later & (inactive.sum(axis=0) > MORE * b))
    if len(asked) == 0:
        return np.zeros(b, dtype=bool)
    own = case.disaggregation[:, asked] / np.linalg.norm(case.disaggregation[:, asked], axis=0)
    by_units = problem.factors.vanishing(inactive[:, asked])
    is_other = _violated(case, own, inactive[:, asked]) & _violated(case, by_units, inactive[:, asked])
    return later & is_other.any()


def _violated(case: Case, columns: np.ndarray, inactive: np.ndarray) -> np.ndarray:
    """Return which columns have a gradient at too many of the inactive units, shape (k,)."""
    factors = case.hypothesis.problem.factors
    is_there = np.abs(factors.left @ columns) > ABOVE * factors.tolerances(columns)
    return np.sum(is_there & inactive, axis=0) > MOST_VIOLATED * inactive.sum(axis=0)

"""From chosen columns to a batch: scale, estimation from all zero rows, inputs, and the certificate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparsedl.zeros import NOISE_MULTIPLE, zeros_determine
from sparsedl_fl.activations import ActivationSpan
from sparsedl_fl.blocks import residual_norms, row_norms
from sparsedl_fl.certificate import certify, one_sided_agreement
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.lowrank import LowRankGradient
from sparsedl_fl.matching import TRUSTED_AGREEMENT, ForwardView, sample_agreement
from sparsedl_fl.pairs import errors_of_pairs
from sparsedl_fl.refinement import maximum_likelihood
from sparsedl_fl.uncertainty import errors_from_inputs, errors_from_span, errors_from_zeros

__all__ = ["REFINE_ABOVE", "Batch", "assemble"]

REFINE_ABOVE = 1e-4
"""Share of noise in the gradient above which the batch is fitted once more by maximum likelihood."""

OUTLIER = 5.0
"""Deviations by which the others contradict a zero row. Units of a FedAvg client that were active for a few steps have
entries near zero, and where a column has few zeros the estimate bends to them."""

NARROW = 0.02
"""Width of zero, relative to the entries of a column, up to which zeros alone prove it, whatever the ReLU pattern."""

BORDERLINE = 1e-5
"""Pre-activation, relative to the mean square of its sample, up to which the gradient says whether a unit is active."""


@dataclass(frozen=True)
class Batch:
    """A recovered batch with its certificate.

    Attributes
    ----------
    inputs : ndarray of shape (b, n)
        The samples.
    disaggregation : ndarray of shape (b, b)
        ``Q``, scaled: ``D = U Q`` and ``X^T = Q^-1 S V^T``.
    preactivation_gradients : ndarray of shape (m, b)
        ``D``, zero where the ReLU is inactive.
    agreement : ndarray of shape (b,)
        Share of units at which ReLU pattern and gradient agree.
    relative_residual : float
        ``|G - D X^T| / |G|`` with ``D`` cut to the ReLU pattern of the recovered inputs.
    residual_floor : float
        What the noise alone contributes to that residual.
    recovered : ndarray of shape (b,) of bool
        Which samples are certified.
    evidence : ndarray of shape (b,) of str
        By what.
    uncertainty : ndarray of shape (b,)
        Expected root-mean-square error of each input, in its units; infinite where nothing is known.
    resolution : ndarray of shape (b,)
        How far apart two inputs may lie that come back as this one.
    """

    inputs: np.ndarray
    disaggregation: np.ndarray
    preactivation_gradients: np.ndarray
    agreement: np.ndarray
    relative_residual: float
    residual_floor: float
    recovered: np.ndarray
    evidence: np.ndarray
    uncertainty: np.ndarray
    resolution: np.ndarray


def assemble(
    layer_gradient: LayerGradient, factors: LowRankGradient, view: ForwardView, basis: np.ndarray, proposed: np.ndarray
) -> Batch:
    """Scale the chosen columns, estimate them again from all their zero rows, compute the inputs and certify them.

    What certifies an input is in `sparsedl_fl.certificate`, how far it may be off in `sparsedl_fl.uncertainty`.

    Parameters
    ----------
    layer_gradient : LayerGradient
        Weights and gradient of the layer.
    factors : LowRankGradient
        Its factorisation.
    view : ForwardView
        The known weights.
    basis : ndarray of shape (b, b)
        Unit columns.
    proposed : ndarray of shape (b,) of bool
        Which of them come from the pool.

    References
    ----------
    SPEAR (2024), Theorems 3.2 and 3.5.
    """
    norm = np.linalg.norm(row_norms(layer_gradient.weight_grad))
    floor = float(np.linalg.norm(factors.noise_level) * np.sqrt(layer_gradient.shape[1]) / norm)
    basis, rows = _refit(factors, view, basis, proposed)
    inverse = np.linalg.inv(basis)
    disaggregation, samples = _scaled(view, basis, inverse)
    inputs = (samples * factors.singular_values) @ factors.right
    preactivations = view.preactivations(inverse)
    likely, used = factors.likely_zeros(basis), rows
    columns = proposed & _columns_proven(factors, basis, rows, preactivations)
    if floor > REFINE_ABOVE and proposed.all() and layer_gradient.learning_rate is None:
        gradients, inputs, preactivations = maximum_likelihood(layer_gradient, inputs, factors.noise_level)
        disaggregation, used = factors.left.T @ gradients, gradients == 0
    else:
        active = _active(layer_gradient, factors, view, inverse, samples, preactivations, factors.zeros(basis))
        gradients = np.where(active, factors.left @ disaggregation, 0.0)
    by_span, by_input, errors = _evidence(layer_gradient, factors, view, inputs, used, columns, disaggregation, inverse)
    agreement = sample_agreement(preactivations, likely)
    sizes = np.sqrt(np.mean(inputs**2, axis=1))
    resolution, uncertainty = errors_of_pairs(errors, factors, layer_gradient, preactivations, gradients, sizes)
    certificate = certify(
        columns,
        by_span,
        by_input,
        agreement,
        one_sided_agreement(preactivations, likely),
        uncertainty / np.maximum(sizes, np.finfo(float).tiny),
        factors.excess,
    )
    return Batch(
        inputs=inputs,
        disaggregation=disaggregation,
        preactivation_gradients=gradients,
        agreement=agreement,
        relative_residual=_residual(layer_gradient, gradients, inputs) / norm,
        residual_floor=floor,
        recovered=certificate.proven,
        evidence=certificate.evidence,
        uncertainty=uncertainty,
        resolution=resolution,
    )


def _residual(layer_gradient: LayerGradient, gradients: np.ndarray, inputs: np.ndarray) -> float:
    return float(np.linalg.norm(residual_norms(layer_gradient.weight_grad, gradients, inputs)[0]))


def _scaled(view: ForwardView, basis: np.ndarray, inverse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``Q`` and its inverse at the scale ``P h`` of each sample; a sample without one keeps its own."""
    scale = inverse @ view.scale
    scale = np.where(np.abs(scale) > np.finfo(float).tiny, scale, 1.0)
    return basis * scale, inverse / scale[:, None]


def _active(
    layer_gradient: LayerGradient,
    factors: LowRankGradient,
    view: ForwardView,
    inverse: np.ndarray,
    samples: np.ndarray,
    preactivations: np.ndarray,
    zeros: np.ndarray,
) -> np.ndarray:
    """Return which units were active for which sample.

    A pre-activation within its own noise of zero may be on either side, and one that a FedAvg client could move to zero
    may have been there on the way; there the gradient says which.
    """
    noise = np.sqrt(np.mean(factors.noise_level**2)) * np.linalg.norm(samples, axis=1)
    undecided = NOISE_MULTIPLE * row_norms(layer_gradient.weight)[:, None] * noise + view.drift(inverse)
    undecided += BORDERLINE * np.sqrt(np.mean(preactivations**2, axis=0))
    return np.where(np.abs(preactivations) <= undecided, ~zeros, preactivations > 0)


def _refit(
    factors: LowRankGradient, view: ForwardView, basis: np.ndarray, proposed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate each proposed column again, as the smallest singular vector of its zero rows, where these determine it.

    Where the ReLU pattern can be trusted, rows that are zero although the unit was active are left out.

    Returns
    -------
    basis : ndarray of shape (b, b)
        Unit columns.
    rows : ndarray of shape (m, b) of bool
        The zero rows of each column.
    """
    preactivations, likely = view.preactivations(np.linalg.inv(basis)), factors.likely_zeros(basis)
    trusted = sample_agreement(preactivations, likely) >= TRUSTED_AGREEMENT
    rows = np.where(trusted, factors.zeros(basis) & (preactivations <= 0), likely)
    if view.moves:
        rows = _without_outliers(factors, basis, rows)
    determined = proposed & _determined(factors, rows)
    refitted = basis.copy()
    if determined.any():
        columns = factors.vanishing(rows[:, determined])
        refitted[:, determined] = np.copysign(1.0, np.sum(columns * basis[:, determined], axis=0)) * columns
    return (refitted if np.linalg.matrix_rank(refitted) == len(basis) else basis), rows


def _without_outliers(factors: LowRankGradient, basis: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Leave out zero rows that the other zero rows of a column contradict, the worst first (studentised residuals)."""
    rows = rows.copy()
    for j in range(rows.shape[1]):
        amplification = np.linalg.norm(basis[:, j] / factors.singular_values)
        while rows[:, j].sum() > len(basis):
            index = np.flatnonzero(rows[:, j])
            left, values, _ = np.linalg.svd(factors.left[index], full_matrices=False)
            entries = left[:, -1] * values[-1]
            remaining = np.maximum(1 - np.sum(left[:, :-1] ** 2, axis=1), np.finfo(float).eps)
            residuals = np.abs(entries) / (factors.noise_level[index] * amplification * np.sqrt(remaining))
            worst = int(np.argmax(residuals))
            if residuals[worst] <= OUTLIER or values[-2] <= np.finfo(float).eps * values[0]:
                break
            rows[index[worst], j] = False
    return rows


def _determined(factors: LowRankGradient, rows: np.ndarray) -> np.ndarray:
    """Return which columns their zero rows determine."""
    left = torch.from_numpy(np.ascontiguousarray(factors.left))
    return zeros_determine(left, torch.from_numpy(np.ascontiguousarray(rows.T))).numpy()


def _columns_proven(
    factors: LowRankGradient, basis: np.ndarray, rows: np.ndarray, preactivations: np.ndarray
) -> np.ndarray:
    """Return which columns their zeros prove, counted where the ReLU pattern expects them if that can be trusted."""
    trusted = sample_agreement(preactivations, factors.likely_zeros(basis)) >= TRUSTED_AGREEMENT
    zeros = factors.zeros(basis)
    expected = np.where(trusted, preactivations <= 0, True)
    # Where noise makes zero wide, mixtures of columns have zeros as well, and only the pattern tells.
    widths = np.sqrt(len(factors.left)) * factors.tolerances(basis).mean(axis=0)
    return factors.prove(basis, zeros & (rows | ~trusted), expected) & (trusted | (widths < NARROW))


def _evidence(
    layer_gradient: LayerGradient,
    factors: LowRankGradient,
    view: ForwardView,
    inputs: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    disaggregation: np.ndarray,
    inverse: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which inputs are proven by the next layer and by their own zeros, and the least error of any estimate."""
    errors, products, direct = errors_from_zeros(factors, inputs, rows)
    products = np.where(columns & ~np.eye(len(columns), dtype=bool), products, np.inf)
    by_span, span_errors = _span_evidence(layer_gradient, factors, view, disaggregation, inverse, products)
    by_input, input_errors = _input_evidence(factors, inputs)
    return by_span, by_input, np.minimum(errors, np.hypot(np.minimum(span_errors, input_errors), direct))


def _span_evidence(
    layer_gradient: LayerGradient,
    factors: LowRankGradient,
    view: ForwardView,
    disaggregation: np.ndarray,
    inverse: np.ndarray,
    products: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return which inputs the next layer's gradient proves, and their errors by it."""
    b = len(inverse)
    errors, proven = np.full(b, np.inf), np.zeros(b, dtype=bool)
    span = ActivationSpan.of(layer_gradient.next_weight_grad, b)
    if span is None or not span.identifies:
        return proven, errors
    preactivations = view.preactivations(inverse)
    proven = span.distances(torch.from_numpy(preactivations.T.copy())).numpy() <= span.tolerance
    samples = inverse / (inverse @ view.scale)[:, None]
    errors[proven] = errors_from_span(
        factors, view.regressors, span, samples[proven], disaggregation.T, products[proven]
    )
    return proven & np.isfinite(errors), errors


def _input_evidence(factors: LowRankGradient, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which inputs their own zeros prove, and their errors by these."""
    transposed = factors.transposed
    directions = transposed.left.T @ inputs.T
    directions = directions / np.maximum(np.linalg.norm(directions, axis=0), np.finfo(float).tiny)
    errors, zeros = np.full(len(inputs), np.inf), transposed.zeros(directions)
    if len(inputs) == 1:
        return np.zeros(1, dtype=bool), errors
    proven = transposed.prove(directions, zeros)
    errors[proven] = errors_from_inputs(factors, inputs[proven], zeros[:, proven])
    return proven, errors

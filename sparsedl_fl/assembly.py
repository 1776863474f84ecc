"""From chosen columns to a batch: scale, estimation from all zero rows, inputs, and the certificate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sparsedl.zeros import NOISE_MULTIPLE, required_zeros, zeros_determine
from sparsedl_fl.activations import ActivationSpan
from sparsedl_fl.blocks import residual_norms, row_norms
from sparsedl_fl.gradients import LayerGradient
from sparsedl_fl.lowrank import LowRankGradient
from sparsedl_fl.matching import TRUSTED_AGREEMENT, ForwardView, sample_agreement
from sparsedl_fl.refinement import maximum_likelihood

__all__ = ["REFINE_ABOVE", "Batch", "assemble"]

RESIDUAL_MULTIPLE = 10.0
"""The gradient of the recovered batch may differ from the client's by this many times the noise."""

FITTED_MULTIPLE = 1.02
"""The same after a fit by maximum likelihood, whose residual is known to a fraction of a percent."""

REFINE_ABOVE = 1e-4
"""Share of noise in the gradient above which the batch is fitted once more by maximum likelihood."""

BORDERLINE = 1e-5
"""Pre-activation, relative to the mean square of its sample, up to which the gradient says whether a unit is active."""

STAND_IN_RESIDUAL = 1e-4
"""Residual above which a missing column forbids every certificate: the inputs are off by three times as much when what
stands in for it hides in the noise."""


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
    """

    inputs: np.ndarray
    disaggregation: np.ndarray
    preactivation_gradients: np.ndarray
    agreement: np.ndarray
    relative_residual: float
    residual_floor: float
    recovered: np.ndarray


def assemble(
    layer_gradient: LayerGradient, factors: LowRankGradient, view: ForwardView, basis: np.ndarray, proposed: np.ndarray
) -> Batch:
    """Scale the chosen columns, estimate them again from all their zero rows, compute the inputs and certify them.

    A sample is certified when its column comes from the pool and is proven; the ReLU pattern of its recovered input is
    the pattern of its gradient; and the whole batch reproduces the client's gradient down to the noise. Proof are more
    zeros than chance that determine the column, or zeros of its input that do, or activations in the span of the next
    layer's gradient. The last condition needs every column, since each input depends on all of them: a batch with a
    missing column certifies nothing, unless what stands in for it is right to four digits.

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
    G = layer_gradient.weight_grad
    norm = np.linalg.norm(row_norms(G))
    floor = float(np.linalg.norm(factors.noise_level) * np.sqrt(G.shape[1]) / norm)
    basis, evidence = _refit(factors, view, basis, proposed)
    inverse = np.linalg.inv(basis)
    scale = inverse @ view.scale
    scale = np.where(np.abs(scale) > np.finfo(float).tiny, scale, 1.0)
    disaggregation = basis * scale
    inputs = (inverse / scale[:, None] * factors.singular_values) @ factors.right
    preactivations = view.preactivations(inverse)
    zeros = factors.zeros(basis)
    is_fitted = floor > REFINE_ABOVE and proposed.all() and layer_gradient.learning_rate is None
    if is_fitted:
        gradients, inputs, preactivations = maximum_likelihood(layer_gradient, inputs, factors.noise_level)
        disaggregation = factors.left.T @ gradients
    else:
        # A pre-activation within its own noise of zero may be on either side, and one that a FedAvg client could move
        # to zero may have been there on the way; there the gradient says which.
        noise = np.sqrt(np.mean(factors.noise_level**2)) * np.linalg.norm(inverse / scale[:, None], axis=1)
        undecided = NOISE_MULTIPLE * row_norms(layer_gradient.weight)[:, None] * noise + view.drift(inverse)
        undecided += BORDERLINE * np.sqrt(np.mean(preactivations**2, axis=0))
        active = np.where(np.abs(preactivations) <= undecided, ~zeros, preactivations > 0)
        gradients = np.where(active, factors.left @ disaggregation, 0.0)
    agreement = sample_agreement(preactivations, factors.likely_zeros(basis))
    residual = float(np.linalg.norm(residual_norms(G, gradients, inputs)[0]) / norm)
    proven = proposed & (agreement >= TRUSTED_AGREEMENT)
    # What determined a column still does when further zeros join it.
    settled = evidence.any(axis=0) & (zeros | ~evidence).all(axis=0)
    proven &= settled | _proven(layer_gradient, factors, zeros, preactivations, inverse, proven & ~settled)
    reproduced = residual <= (FITTED_MULTIPLE if is_fitted else RESIDUAL_MULTIPLE) * floor
    reproduced &= residual <= STAND_IN_RESIDUAL or bool(proposed.all())
    return Batch(inputs, disaggregation, gradients, agreement, residual, floor, proven & reproduced)


def _refit(
    factors: LowRankGradient, view: ForwardView, basis: np.ndarray, proposed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate each proposed column with a trusted pattern again, as the smallest singular vector of its zero rows.

    Returns
    -------
    basis : ndarray of shape (b, b)
        Unit columns.
    evidence : ndarray of shape (m, b) of bool
        Zero rows that determine the column; none where they do not.
    """
    preactivations, zeros = view.preactivations(np.linalg.inv(basis)), factors.zeros(basis)
    trusted = proposed & (sample_agreement(preactivations, factors.likely_zeros(basis)) >= TRUSTED_AGREEMENT)
    zeros &= preactivations <= 0
    determined = _determined(factors, zeros, trusted)
    refitted = basis.copy()
    if determined.any():
        columns = factors.vanishing(zeros[:, determined])
        refitted[:, determined] = np.copysign(1.0, np.sum(columns * basis[:, determined], axis=0)) * columns
    return refitted if np.linalg.matrix_rank(refitted) == len(basis) else basis, zeros & determined


def _proven(
    layer_gradient: LayerGradient,
    factors: LowRankGradient,
    zeros: np.ndarray,
    preactivations: np.ndarray,
    inverse: np.ndarray,
    wanted: np.ndarray,
) -> np.ndarray:
    """Return which of the wanted columns the zeros of the gradient, the next layer or those of the input prove."""
    unproven = wanted & ~_determined(factors, zeros, wanted)
    if unproven.any():
        unproven &= ~_in_next_layer(layer_gradient, preactivations)
    if unproven.any():
        unproven &= ~_determined(factors.transposed, _input_zeros(factors, inverse), unproven)
    return wanted & ~unproven


def _determined(factors: LowRankGradient, zeros: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return which of the wanted columns have more zeros than chance, and zeros that determine them."""
    m, b = zeros.shape
    determined = wanted & (zeros.sum(axis=0) >= required_zeros(m, b, chance=1e-6))
    index = np.flatnonzero(determined)
    left = torch.from_numpy(np.ascontiguousarray(factors.left))
    determined[index] = zeros_determine(left, torch.from_numpy(zeros.T[index])).numpy()
    return determined


def _input_zeros(factors: LowRankGradient, inverse: np.ndarray) -> np.ndarray:
    """Return where the inputs of the rows of ``P`` are zero, a boolean array of shape (n, b)."""
    directions = factors.singular_values[:, None] * inverse.T
    return factors.transposed.zeros(directions / np.linalg.norm(directions, axis=0))


def _in_next_layer(layer_gradient: LayerGradient, preactivations: np.ndarray) -> np.ndarray:
    """Return which samples the next layer's gradient proves: their activations lie in its row space."""
    b = preactivations.shape[1]
    span = ActivationSpan.of(layer_gradient.next_weight_grad, b)
    if span is None or not span.identifies:
        return np.zeros(b, dtype=bool)
    return span.distances(torch.from_numpy(preactivations.T.copy())).numpy() <= span.tolerance

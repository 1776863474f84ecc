"""From inputs of a crowded batch to the batch with its certificate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sparsedl.arrays import as_tensor
from sparsedl_fl.assembly import Assembly, Batch, repeats
from sparsedl_fl.blocks import residual_norms, row_norms
from sparsedl_fl.certificate import NONE, Certificate
from sparsedl_fl.crowded.columns import NextColumns
from sparsedl_fl.crowded.problem import CrowdedProblem
from sparsedl_fl.evidence import SpanOfNextLayer, in_line
from sparsedl_fl.labels import NO_LABEL
from sparsedl_fl.lowrank import LowRankGradient
from sparsedl_fl.pairs import Indistinguishable
from sparsedl_fl.scale import doubt_in_scale
from sparsedl_fl.uncertainty import errors_from_views

__all__ = ["crowded_batch"]

WORTHLESS, OFF_SCALE = Assembly.worthless, Assembly.off_scale

UNEXPLAINED = 0.05
"""Share of the gradient that a whole batch may leave: weights behind that are not the client's explain no more."""


def crowded_batch(problem: CrowdedProblem, whitened: np.ndarray) -> tuple[Batch, np.ndarray]:
    """Return the batch that inputs make, and their labels.

    An input is proven by the spans of the gradients behind, each by itself; one whose gradient is not known beside may
    stand for several. Where all are there, what they make of the layer's own gradient is a check of all.

    Parameters
    ----------
    problem : CrowdedProblem
        What is known.
    whitened : ndarray of shape (k, r)
        Rows ``p`` of inputs found, at their true scale, ``k <= b``; stand-ins for the others are what all share.

    Returns
    -------
    batch : Batch
        With ``disaggregation`` of shape (r, b): the coordinates of ``D`` in the column space of ``[G, g]``. Gradients
        are NaN as long as inputs are missing: each depends on all.
    labels : ndarray of shape (b,) of int
    """
    layer, n_found = problem.layer, len(whitened)
    inputs = problem.inputs(whitened)
    sizes = np.sqrt(np.mean(inputs**2, axis=1))
    ends = layer.forward.preactivations(whitened)
    gradients, share_left = _gradients(problem, whitened)
    _, labels, expected = NextColumns(problem).by_rest(as_tensor(whitened))
    certificate = _by_spans(problem, whitened).without(np.isnan(gradients).any(axis=0))
    doubt = doubt_in_scale(layer, ends[0], layer.is_active(ends), np.zeros_like(ends[0]))
    errors = np.hypot(certificate.errors, doubt * sizes)
    is_worthless = errors > WORTHLESS * np.maximum(sizes, np.finfo(float).tiny)
    is_refuted = layer.is_noise_hidden or doubt > OFF_SCALE or share_left > UNEXPLAINED
    is_repeat = repeats(inputs, np.where(certificate.proven & ~is_worthless, errors, np.inf))
    resolution, errors = _with_pairs(problem, ends, gradients, sizes, errors, expected.numpy())
    proven = certificate.without(is_worthless | is_repeat | is_refuted)
    missing = problem.batch_size - n_found
    shared = inputs.mean(axis=0) if n_found else problem.inputs(problem.shared()[None])[0]
    gradients = np.hstack([gradients, np.full((layer.width, missing), np.nan)])
    batch = Batch(
        inputs=np.vstack([inputs, np.tile(shared, (missing, 1))]),
        disaggregation=layer.factors.left.T @ gradients,
        preactivation_gradients=gradients,
        agreement=np.full(problem.batch_size, np.nan),
        relative_residual=np.nan if missing else share_left,
        residual_floor=layer.noise_share,
        recovered=_padded(proven.proven, missing, False),
        evidence=_padded(proven.evidence, missing, NONE),
        uncertainty=_padded(errors, missing, np.inf),
        resolution=_padded(resolution, missing, np.inf),
    )
    return batch, _padded(np.where(proven.proven, labels.numpy(), NO_LABEL), missing, NO_LABEL)


def _by_spans(problem: CrowdedProblem, whitened: np.ndarray) -> Certificate:
    """Return what proves each input, and how far it may be off."""
    layer, factors = problem.layer, problem.layer.factors
    here = layer.behind.at(problem.preactivations(whitened))
    proven = here.is_proof.numpy() & (in_line(here.over_noise.numpy()) | (not layer.activation.is_piecewise_linear))
    found, errors = whitened[proven], np.full(len(whitened), np.inf)
    forward, scale = layer.forward.regressors(), layer.forward.scale
    no_columns = np.zeros((0, whitened.shape[1])), np.zeros((len(found), 0))
    by_view = errors_from_views(factors, forward, scale, layer.behind, found, *no_columns)
    # What the noise of the gradient makes of the space that the inputs span, where they do not fill all features.
    noise = np.linalg.norm((found @ factors.left.T) * factors.noise_level, axis=1)
    direct = noise * np.sqrt(1 + np.mean(problem.inputs(found) ** 2, axis=1))
    errors[proven] = np.hypot(by_view, 0.0 if problem.is_free else direct)
    evidence = np.where(proven & np.isfinite(errors), SpanOfNextLayer.kind, NONE)
    return Certificate(evidence, errors)


def _gradients(problem: CrowdedProblem, whitened: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the columns of ``D`` of the inputs, NaN where they are not known, and what a whole batch leaves of ``G``.

    The latter is the share of the layer's own gradients, zero of a part of the batch.
    """
    layer, given = problem.layer, problem.layer.layer_gradient
    activations = problem.activations(whitened).numpy()
    if len(whitened) < problem.batch_size or np.linalg.matrix_rank(activations) < problem.batch_size:
        return NextColumns(problem).gradients(as_tensor(whitened)).numpy(), 0.0
    behind = np.linalg.lstsq(activations.T, given.next_weight_grad.astype(float).T, rcond=None)[0]
    slopes = layer.activation.derivative(problem.preactivations(whitened)).numpy()
    gradients = (slopes * (behind @ given.next_weight.astype(float))).T
    residual = residual_norms(given.weight_grad, gradients, problem.inputs(whitened))[0]
    of_weights = np.linalg.norm(residual) / np.linalg.norm(row_norms(given.weight_grad))
    of_bias = np.linalg.norm(gradients.sum(axis=1) - given.bias_grad) / np.linalg.norm(given.bias_grad)
    return gradients, float(max(of_weights, of_bias))


def _with_pairs(
    problem: CrowdedProblem,
    ends: list[np.ndarray],
    gradients: np.ndarray,
    sizes: np.ndarray,
    errors: np.ndarray,
    expected: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return how far apart several inputs may lie that came back as one, and the errors expected with that.

    Inputs whose columns in the next layer are parallel come back as one there: what its gradient leaves shows them.
    """
    known = ~np.isnan(gradients).any(axis=0)
    resolution = np.full(len(sizes), np.inf)
    if known.any():
        sizes_by_rest = expected[known] if (expected[known] > 0).all() else None
        none = np.zeros((int(known.sum()), int(known.sum())), dtype=bool)
        seen = replace(problem.layer, factors=_as_seen_behind(problem))
        at = [part[:, known] for part in ends]
        resolution[known], errors[known] = Indistinguishable().errors(
            errors[known], seen, at, gradients[:, known], sizes[known], none, sizes_by_rest
        )
    return resolution, errors


def _as_seen_behind(problem: CrowdedProblem) -> LowRankGradient:
    """Return the next layer's factors, whose gradient is as large as the layer's own."""
    found = problem.next_layer
    share = np.linalg.norm(problem.layer.factors.singular_values) / np.linalg.norm(found.singular_values)
    return replace(found, noise_level=found.noise_level * share, beyond=found.beyond * share)


def _padded(found: np.ndarray, n_missing: int, value: object) -> np.ndarray:
    return np.concatenate([found, np.full(n_missing, value, dtype=found.dtype)])

"""Certifies a batch of more samples than features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sparsedl.arrays import as_tensor
from sparsedl_fl.certify import EvidenceKind
from sparsedl_fl.certify.assembly import Assembly, Batch, repeats
from sparsedl_fl.certify.bias_scale import doubt_in_scale
from sparsedl_fl.certify.certificate import Certificate
from sparsedl_fl.certify.collinear import ONE_INPUT, WeightsByTail
from sparsedl_fl.certify.constraint_criteria import are_vertices
from sparsedl_fl.certify.labels import NO_LABEL
from sparsedl_fl.certify.near_duplicates import NearDuplicates
from sparsedl_fl.certify.uncertainty import errors_from_constraints
from sparsedl_fl.constraints import LEAST_SURPLUS
from sparsedl_fl.constraints.many_samples import ManySamplesProblem
from sparsedl_fl.constraints.next_columns import NextColumns
from sparsedl_fl.layers.blocks import in_double, residual_norms, row_norms
from sparsedl_fl.lowrank.factors import LowRankGradient

__all__ = ["many_samples_batch"]

WORTHLESS, OFF_SCALE = Assembly.worthless, Assembly.off_scale

UNEXPLAINED = 0.05
"""Largest share of the gradient that a batch may leave unexplained: more shows that downstream weights are not the
client's. Not varied."""

LEAST_LEFT = 0.03
"""Least squared share, over ``1 - b / m``, by which any change of an input has to leave the activation subspace, where
not all other inputs and columns are known to compare with. (Two mixtures of near-duplicates had 0.007 and 0.011, 64
rows of Adult 0.03 to 0.1, 64 rows of 30 numbers 0.004 to 0.05; not varied.)"""

OFF, WORTH_SAYING = 3.0, 3e-4
"""An input may be off by as many expected errors, or by that share of its size, according to the columns of the others;
not varied."""


def many_samples_batch(problem: ManySamplesProblem, whitened: np.ndarray) -> tuple[Batch, np.ndarray]:
    """Return the batch of the inputs found, and their labels.

    Activation subspaces certify each input by itself; one whose column is unknown may be several near-duplicates. Where
    all are found, the layer's own gradient is a check of all.

    Parameters
    ----------
    problem : ManySamplesProblem
        The layer, and the next one.
    whitened : ndarray of shape (k, r)
        Rows ``p`` of inputs found, at their true scale, ``1 <= k <= b``; their mean stands in for the others.

    Returns
    -------
    batch : Batch
        With ``disaggregation`` of shape (r, b): the coordinates of ``D`` in the column space of ``[G, g]``. Gradients
        are NaN where an input is missing, or its column in the next layer is not known.
    labels : ndarray of shape (b,) of int
    """
    layer, n_found = problem.layer, len(whitened)
    inputs = problem.inputs(whitened)
    sizes = np.sqrt(np.mean(inputs**2, axis=1))
    preactivations = layer.forward.preactivations(whitened)
    gradients, share_left = _gradients(problem, whitened)
    _, labels, expected = NextColumns(problem).by_tail(as_tensor(whitened))
    certificate = _by_subspaces(problem, whitened).without(np.isnan(gradients).any(axis=0))
    doubt = doubt_in_scale(layer, preactivations[0], layer.is_active(preactivations), np.zeros_like(preactivations[0]))
    errors = np.hypot(certificate.errors, doubt * sizes)
    is_worthless = errors > WORTHLESS * np.maximum(sizes, np.finfo(float).tiny)
    is_refuted = layer.is_noise_hidden or doubt > OFF_SCALE or share_left > UNEXPLAINED
    is_repeat = repeats(inputs, np.where(certificate.proven & ~is_worthless, errors, np.inf))
    resolution, errors = _with_near_duplicates(
        problem, preactivations, gradients, sizes, errors, labels.numpy(), expected.numpy()
    )
    is_worthless |= errors >= np.maximum(sizes, np.finfo(float).tiny)
    certified = certificate.without(is_worthless | is_repeat | is_refuted)
    missing = problem.batch_size - n_found
    shared = inputs.mean(axis=0)
    gradients = np.hstack([gradients, np.full((layer.width, missing), np.nan)])
    batch = Batch(
        inputs=np.vstack([inputs, np.tile(shared, (missing, 1))]),
        disaggregation=layer.factors.left.T @ gradients,
        preactivation_gradients=gradients,
        agreement=np.full(problem.batch_size, np.nan),
        relative_residual=np.nan if missing else share_left,
        residual_floor=layer.noise_share,
        recovered=_padded(certified.proven, missing, False),
        evidence=_padded(certified.evidence, missing, EvidenceKind.NONE),
        uncertainty=_padded(errors, missing, np.inf),
        resolution=_padded(resolution, missing, np.inf),
    )
    return batch, _padded(np.where(certified.proven, labels.numpy(), NO_LABEL), missing, NO_LABEL)


def _by_subspaces(problem: ManySamplesProblem, whitened: np.ndarray) -> Certificate:
    """Return the certificate of each input by the activation subspaces."""
    layer, factors = problem.layer, problem.layer.factors
    here = layer.subspaces.at(problem.preactivations(whitened))
    certified = here.is_proof.numpy() & are_vertices(here, layer.activation)
    found, errors = whitened[certified], np.full(len(whitened), np.inf)
    forward, scale = layer.forward.regressors(), layer.forward.scale
    no_columns = np.zeros((0, whitened.shape[1])), np.zeros((len(found), 0))
    by_constraint = errors_from_constraints(factors, forward, scale, layer.subspaces, found, *no_columns)
    # The noise of the gradient turns the span of the samples, where it is not that of all features.
    noise = np.linalg.norm((found @ factors.left.T) * factors.noise_level, axis=1)
    direct = noise * np.sqrt(1 + np.mean(problem.inputs(found) ** 2, axis=1))
    errors[certified] = np.hypot(by_constraint, 0.0 if problem.is_free else direct)
    errors[certified] *= here.beyond_noise.numpy()[certified]
    mixed, is_whole = _mixed(problem, whitened)
    sizes = np.sqrt(np.mean(problem.inputs(whitened) ** 2, axis=1))
    certified &= np.isfinite(errors) & (mixed <= np.maximum(OFF * errors, WORTH_SAYING * sizes))
    if not is_whole:
        certified &= _least_left(problem, whitened) > LEAST_LEFT * (1 - problem.batch_size / layer.width)
    return Certificate(np.where(certified, EvidenceKind.SPAN_OF_NEXT_LAYER, EvidenceKind.NONE), errors)


def _mixed(problem: ManySamplesProblem, whitened: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return how far off inputs are by the columns of the others, and whether all inputs and columns are known.

    With ``P Q = M`` for the true columns, ``M X`` was found: a mixture of samples that activate the same units lies in
    the subspace as they do, and their columns show it.
    """
    columns = NextColumns(problem)
    found, is_determined = columns.of(as_tensor(whitened))
    mixing = (columns.coordinates(as_tensor(whitened)) @ found.T).numpy() * is_determined.numpy()
    np.fill_diagonal(mixing, 0.0)
    inputs = problem.inputs(whitened)
    off = mixing @ inputs - mixing.sum(axis=1, keepdims=True) * inputs
    is_whole = len(whitened) == problem.batch_size and bool(is_determined.all())
    return np.sqrt(np.mean(off**2, axis=1)), is_whole


def _least_left(problem: ManySamplesProblem, whitened: np.ndarray) -> np.ndarray:
    """Return the least squared share by which a change of each input leaves the first subspace.

    Mixtures of two samples that are nearly equal, or activate nearly the same units, hardly leave it: only the few
    units that differ determine such a direction, and a point between the two may fulfil their equations.
    """
    layer, subspace = problem.layer, problem.layer.subspaces.levels[0]
    slopes = layer.activation.derivative(problem.preactivations(whitened)).numpy()
    # Changes that leave the scale as it is.
    free = np.linalg.qr(layer.forward.scale[:, None], mode="complete")[0][:, 1:]
    forward, basis, found = layer.forward.regressors() @ free, subspace.basis.numpy(), np.zeros(len(whitened))
    for index, slope in enumerate(slopes):
        moved, mixing = np.linalg.qr(slope[:, None] * forward)
        sizes = np.abs(np.diag(mixing))
        if sizes.min() > np.finfo(float).eps * len(sizes) * sizes.max():
            found[index] = 1 - np.linalg.norm(basis.T @ moved, 2) ** 2
    return found


def _gradients(problem: ManySamplesProblem, whitened: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the columns of ``D`` of the inputs, NaN where not known, and the share of ``G`` left unexplained.

    That is the share of the layer's own gradients that no other samples could explain.
    """
    layer, given = problem.layer, problem.layer.layer_gradient
    activations = problem.activations(whitened).numpy()
    if len(whitened) < problem.batch_size or np.linalg.matrix_rank(activations) < problem.batch_size:
        gradients = NextColumns(problem).gradients(as_tensor(whitened)).numpy()
        return gradients, _left_by_some(problem, whitened, gradients)
    next_columns = np.linalg.lstsq(activations.T, given.next_layer.weight_grad.astype(float).T, rcond=None)[0]
    slopes = layer.activation.derivative(problem.preactivations(whitened)).numpy()
    gradients = (slopes * (next_columns @ given.next_layer.weight.astype(float))).T
    residual = residual_norms(given.weight_grad, gradients, problem.inputs(whitened))[0]
    of_weights = np.linalg.norm(residual) / np.linalg.norm(row_norms(given.weight_grad))
    of_bias = np.linalg.norm(gradients.sum(axis=1) - given.bias_grad) / np.linalg.norm(given.bias_grad)
    return gradients, float(max(of_weights, of_bias))


def _left_by_some(problem: ManySamplesProblem, whitened: np.ndarray, gradients: np.ndarray) -> float:
    """Return the share of ``[G, g]`` that a part of the batch and as many missing samples cannot explain.

    Where the samples span nearly all features, any other sample lies in their span too: if the next layer's gradient is
    that of another batch, it shows the samples of that. (One of 52 was certified so, with 10 of 11 dimensions spanned.)
    With as many samples missing as there are dimensions everything can be explained: all counts as unexplained.
    """
    given, n_filled = problem.layer.layer_gradient, problem.layer.batch_size
    n_alive = int(given.weight_grad.any(axis=0).sum()) + 1
    if n_alive - n_filled >= LEAST_SURPLUS:
        return 0.0
    known = ~np.isnan(gradients).any(axis=0)
    n_missing = problem.batch_size - int(known.sum())
    if n_missing >= n_filled:
        return 1.0
    whole = np.hstack([in_double(given.weight_grad), given.bias_grad[:, None]])
    inputs = problem.inputs(whitened[known])
    left = whole - gradients[:, known] @ np.hstack([inputs, np.ones((len(inputs), 1))])
    return float(np.linalg.norm(np.linalg.svd(left, compute_uv=False)[n_missing:]) / np.linalg.norm(whole))


def _with_near_duplicates(
    problem: ManySamplesProblem,
    preactivations: list[np.ndarray],
    gradients: np.ndarray,
    sizes: np.ndarray,
    errors: np.ndarray,
    labels: np.ndarray,
    expected: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ambiguity radius of each input, and the errors expected with that.

    Samples whose columns in the next layer are parallel are found as one: the residual of its gradient shows them.
    """
    known = ~np.isnan(gradients).any(axis=0)
    resolution = np.full(len(sizes), np.inf)
    ratios = np.linalg.norm(gradients, axis=0) / np.where(expected > 0, expected, np.nan)
    if known.any():
        n, is_told = int(known.sum()), (expected[known] > 0).all()
        by_tail = WeightsByTail(labels[known], ratios[known], np.zeros(n), np.ones(n, dtype=bool)) if is_told else None
        none = np.zeros((n, n), dtype=bool)
        seen = replace(problem.layer, factors=_factors_of_next(problem))
        at = [part[:, known] for part in preactivations]
        resolution[known], errors[known] = NearDuplicates().errors(
            errors[known], seen, at, gradients[:, known], sizes[known], none, by_tail
        )
    # Records are alike more often than images: a gradient of another size than one sample's may be that of several.
    is_single = np.abs(ratios / np.nanmedian(ratios) - 1) < ONE_INPUT if known.any() and (expected > 0).any() else False
    # Where a sample is missing, such a gradient may be that of a mixture with it at which no unit switches. (Of three
    # samples on a line one was found, and a second one 0.04 off, with an ambiguity radius of 0.003.)
    is_mixture = len(sizes) < problem.batch_size and bool((expected > 0).any())
    return resolution, np.where(is_single, errors, np.inf if is_mixture else np.hypot(errors, resolution))


def _factors_of_next(problem: ManySamplesProblem) -> LowRankGradient:
    """Return the next layer's factors with their noise scaled to the size of the layer's own gradient."""
    found = problem.next_layer
    share = float(np.linalg.norm(problem.layer.factors.singular_values) / np.linalg.norm(found.singular_values))
    return replace(found, noise_level=found.noise_level * share, beyond=found.beyond * share)


def _padded(found: np.ndarray, n_missing: int, value: object) -> np.ndarray:
    return np.concatenate([found, np.full(n_missing, value, dtype=found.dtype)])

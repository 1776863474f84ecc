"""Backward propagation: from a layer whose whole batch is known to the layer before, without a search.

The layer's inputs are the activations of the one before, ``X_l = phi(Z)``, and its gradients are propagated through its
weights, ``D = phi'(Z) * (W_l^T D_l)``. The gradient of the layer before is ``G = D X^T``, so that its inputs are a
least-squares solution, though there be more of them than features. Each step is checked against the gradient of the
layer that it reaches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsedl.arrays import as_tensor
from sparsedl_fl.activations import Activation, resolve
from sparsedl_fl.caught_warnings import caught_warnings
from sparsedl_fl.certify.assembly import Assembly
from sparsedl_fl.constraints import LOG_CHANCE
from sparsedl_fl.constraints.kink_slopes import sent_through
from sparsedl_fl.inverter import GradientInverter
from sparsedl_fl.layers.bias_as_input import without_constant
from sparsedl_fl.layers.layer_gradient import LayerGradient
from sparsedl_fl.lowrank.factorization import factorize_with_bias
from sparsedl_fl.lowrank.factors import LowRankGradient
from sparsedl_fl.propagate.branches import BRANCH, first_guess, inactive_start, on_graph
from sparsedl_fl.propagate.checks import MOST_OVER_EXPLAINED, doubt_of_slopes, reproduced, sizes_of, sum_to_bias
from sparsedl_fl.propagate.dependent_inputs import back_to_dependent_inputs
from sparsedl_fl.propagate.scales import with_errors

__all__ = ["KnownBatch", "propagate_back", "sums_before"]

MOST_ROUNDS = 12
"""Largest number of iterations that take the derivative at the inputs found last, until it no longer changes."""

PRIOR = 4.0
"""Weight of the error pooled over all columns, in directions, against that of each column."""


@dataclass(frozen=True, eq=False)
class KnownBatch:
    """The batch of one layer, as far as it is known, all parts in one order.

    Attributes
    ----------
    inputs : ndarray of shape (b, n)
        The inputs of the layer.
    gradients : ndarray of shape (m, b)
        ``D``, the gradient at its outputs.
    errors : ndarray of shape (b,)
        Expected root-mean-square error of each input, in its units.
    certified : ndarray of shape (b,) of bool
        Which inputs are certified.
    labels : ndarray of shape (b,) of int
        Labels, `sparsedl_fl.certify.labels.NO_LABEL` where they are not known.
    """

    inputs: np.ndarray
    gradients: np.ndarray
    errors: np.ndarray
    certified: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, inverter: GradientInverter) -> KnownBatch:
        """Return the batch that a fitted inverter recovered."""
        return cls(
            inverter.inputs_,
            inverter.preactivation_gradients_,
            np.where(inverter.recovered_, inverter.uncertainty_, np.inf),
            inverter.recovered_,
            inverter.labels_,
        )

    @property
    def is_whole(self) -> bool:
        """Whether every input is certified, as propagation needs."""
        return bool(self.certified.all())


def propagate_back(known: KnownBatch, weight: np.ndarray, before: LayerGradient) -> KnownBatch:
    """Return the batch of the layer before one whose whole batch is known.

    Parameters
    ----------
    known : KnownBatch
        Of the layer, whole.
    weight : ndarray of shape (m, n)
        Its weights.
    before : LayerGradient
        The layer before, with ``n`` outputs, followed by its activation and then by this layer.

    Returns
    -------
    KnownBatch
        Certified where the columns lie in the column space of the gradient of the layer before, up to noise and the
        errors of what is known, add up to its bias gradient, and the inputs lead to those of this layer. Its errors are
        estimated from the distance to that space and from the deviations of the activations.

    Raises
    ------
    ValueError
        If the batch is as large as the layer before, or the propagated gradients are linearly dependent.
    """
    if not known.is_whole:
        raise ValueError("the inputs of the layer before follow only where the whole batch of this one is certified")
    b, sent_back = len(known.inputs), weight.astype(np.float64).T @ known.gradients
    found = _with_rank(b, before)
    if found is None:
        return back_to_dependent_inputs(known, sent_back, before)
    before, factors = found
    phi, y = resolve(before.activation), known.inputs.T
    z, weight_of_y = first_guess(phi, before, factors, y, known.errors)
    slopes = np.zeros(0)
    for _ in range(MOST_ROUNDS):
        previous, slopes = slopes, phi.derivative(as_tensor(on_graph(phi, z, y, weight_of_y))).numpy()
        if previous.shape == slopes.shape and np.allclose(previous, slopes, rtol=1e-9, atol=1e-12):
            break
        gradients = sent_through(phi, slopes, sent_back, factors.left)
        inverse = _inverse(factors.left.T @ gradients)
        inputs = (inverse * factors.singular_values) @ factors.right
        z, weight_of_y = before.preactivations(inputs), BRANCH
    doubt = doubt_of_slopes(phi, z, y, known.errors, slopes) * sent_back
    return _certified(known, before, factors, gradients, inverse, inputs, doubt)


def _with_rank(b: int, before: LayerGradient) -> tuple[LayerGradient, LowRankGradient] | None:
    """Return a layer, perhaps with the bias as one more input, and its factors of rank ``b``; None without that."""
    with caught_warnings():  # that the rank is lower
        try:
            before, factors = factorize_with_bias(before, b)
        except ValueError:
            return None
    return (before, factors) if factors.batch_size == b else None


def sums_before(known: KnownBatch, weight: np.ndarray, activation: Activation) -> np.ndarray:
    """Return the bias gradient of the layer before one whose whole batch is known, whether it has a bias or not.

    Errors of the batch are drawn into what is outside its columns, where attacks look for noise.

    Parameters
    ----------
    known : KnownBatch
        Of the layer, whole.
    weight : ndarray of shape (m, n)
        Its weights.
    activation : Activation
        What its inputs are the values of; monotone, so that these say where on it they lie.

    Raises
    ------
    ValueError
        If the activation is not monotone.
    """
    if not activation.is_monotone:
        raise ValueError(f"the values of {activation.name} do not say where on it they lie")
    y = known.inputs.T
    inactive, weight_of_y = inactive_start(y, known.errors)
    z = on_graph(activation, inactive, y, weight_of_y)
    columns = activation.derivative(as_tensor(z)).numpy() * (weight.astype(np.float64).T @ known.gradients)
    return with_errors(columns, known.errors / sizes_of(known.inputs))


def _certified(
    known: KnownBatch,
    before: LayerGradient,
    factors: LowRankGradient,
    gradients: np.ndarray,
    inverse: np.ndarray,
    inputs: np.ndarray,
    doubt: np.ndarray,
) -> KnownBatch:
    """Return the batch of the layer before, certified if everything fits: each input depends on all columns."""
    errors, shares = _errors(factors, gradients, inverse, inputs, doubt)
    is_reproduced, by_weights = reproduced(known, before, inputs, errors)
    inputs, errors = without_constant(before, inputs, np.hypot(errors, by_weights))
    m, b = factors.left.shape
    # A column unrelated to the layer has a share of sqrt(1 - b / m) outside.
    log_chance = float(np.sum(np.minimum((m - b) * np.log10(np.maximum(shares, np.finfo(float).eps)), 0.0)))
    fits = (
        is_reproduced
        & (shares <= _explained(known, factors, gradients))
        & sum_to_bias(gradients, before.bias_grad)
        & (log_chance <= LOG_CHANCE)
        & (errors <= Assembly.worthless * sizes_of(inputs))
    )
    return KnownBatch(inputs, gradients, errors, np.full(len(inputs), fits.all()), known.labels)


def _inverse(columns: np.ndarray) -> np.ndarray:
    if not np.isfinite(columns).all() or np.linalg.matrix_rank(columns) < len(columns):
        raise ValueError("the propagated gradients are linearly dependent: too few units are active for some inputs")
    return np.linalg.inv(columns)


def _errors(
    factors: LowRankGradient, gradients: np.ndarray, inverse: np.ndarray, inputs: np.ndarray, doubt: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected error of each input, and the share of each column outside the column space.

    The part of a column outside the column space is its error in ``m - b`` directions; inside it is as large. The error
    of one column has the weight of these directions, that of all together `PRIOR`. The ``doubt`` of its entries is
    added.

    Returns
    -------
    errors : ndarray of shape (b,)
        Expected root-mean-square errors.
    shares : ndarray of shape (b,)
        Share of each column outside the column space, relative to that of an unrelated one.
    """
    left, (m, b) = factors.left, factors.left.shape
    outside = gradients - left @ (left.T @ gradients)
    norms = np.maximum(np.linalg.norm(gradients, axis=0), np.finfo(float).tiny)
    squares = np.sum((outside / norms) ** 2, axis=0)
    pooled = squares.sum() / (b * (m - b))
    per_entry = (squares + PRIOR * pooled) / (m - b + PRIOR) * norms**2 + np.mean(doubt**2, axis=0)
    moments = np.mean(inputs**2, axis=1)
    duals = inverse @ left.T
    direct = np.sum((duals * factors.noise_level) ** 2, axis=1)
    by_columns = np.sum(inverse**2, axis=1) * np.sum(per_entry * moments)
    return np.sqrt(direct + by_columns), np.sqrt(squares / (1 - b / m))


def _explained(known: KnownBatch, factors: LowRankGradient, gradients: np.ndarray) -> np.ndarray:
    """Return the largest share of each column outside the column space that noise and known errors explain.

    Relative, as of `_errors`. The column space is that of ``G`` with its noise, which misses a column by ``noise |S^-1
    U^T d|`` an entry; and the client rounded its gradients. Columns that are known to 1e-6 and lie outside by a
    thousandth are not those of this model, however small an error they imply. (In 36 honest layers, of six activations,
    three number formats and six kinds of data, the share was at most 1.9 times what is explained.)
    """
    left, noise = factors.left, np.sqrt(np.mean(factors.noise_level**2))
    coordinates = left.T @ gradients
    norms = np.maximum(np.linalg.norm(gradients, axis=0), np.finfo(float).tiny)
    of_space = (
        noise * np.sqrt(len(left)) * np.linalg.norm(coordinates / factors.singular_values[:, None], axis=0) / norms
    )
    of_known = np.max(known.errors / sizes_of(known.inputs))
    return MOST_OVER_EXPLAINED * (of_space + of_known + factors.precision)

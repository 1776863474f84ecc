"""Near-duplicates: samples that are recovered as one, their mean. How far apart they may lie, and when to expect them.

Two samples of one label that are nearly equal have nearly parallel gradients, which add up. Their mean is recovered,
and every criterion certifies it as one sample. Only two things show the pair: units that one of them activates alone,
and the size of their joint gradient: twice that of the others, before training.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from sparsedl.arrays import as_tensor
from sparsedl_fl.certify.collinear import WeightsByTail
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.layers.blocks import row_norms

__all__ = ["NearDuplicates"]

N_HALVINGS = 26
"""Number of halvings of the interval of distances, twelve powers of ten: to a part in two million."""


@dataclass(frozen=True, kw_only=True)
class NearDuplicates:
    """Computes the ambiguity radius of each input, and decides which have to be taken for a pair of near-duplicates.

    The numbers were chosen on some 250 float16, bfloat16 and noisy batches of 3 to 20 with a pair 0.2 to 5 % apart and
    56 without, at untrained networks 60 to 200 wide. With ``likely_more`` at 0.1 one mean of 158 batches with a
    pair was certified wrongly, at 0.05 four of 89 others; closer pairs or coarser formats were not measured.

    Parameters
    ----------
    pair_prior : float, default=0.02
        Prior probability that an input is a pair as near as the gradient cannot resolve.
    traced_prior, maybe_more : float, default=0.2 and 1.3
        The same where the first singular vector beyond the batch belongs to this input and its value exceeds that of
        white noise by this factor; rounding does so up to 2.3 in half precision.
    surely_more, fewest_inputs : float and int, default=4 and 3
        Factor from which on it is no rounding, in a batch of at least so many.
    own_share : float, default=0.85
        Share of the square of that vector in the active units of an input that makes it belong to it; half by chance.
    far_smaller, hardly_any : float, default=0.2 and 1e-3
        Largest gradient of a difference, relative to that of its pair; and the size below which a difference may belong
        to any pair, since its entries hold the errors of all other inputs (chosen on one hostile problem, seed 2500573,
        where it was 1e-5 to 2e-5; not varied).
    typical_spread, prior_inputs : float, default=0.15 and 4
        Prior standard deviation of the logarithm of gradient sizes in a batch (untrained networks), and the number of
        inputs that it counts as.
    spread_by_rest : float, default=0.02
        The same for sizes relative to the network tail's gradient, which are equal but for errors.
    most_copies : int, default=4
        Largest number of near-duplicates in one input.
    single : float, default=0.3
        Probability of a pair in a batch of fewer than ``fewest_inputs``: sixteen tokens with repetitions are recovered
        as two, with gradients about equally large.
    likely_more, surely_pair, visibly_apart : float, default=0.1, 0.9 and 0.01
        Probability from which an input is taken for a pair; the same where the ambiguity radius, relative to the size
        of the input, is below the third number.
    fewest_switches, surely_switches : float, default=3 and 10
        Expected number of units that only one of a pair activates, from which on hardly a pair has none (5 %), and
        none does.
    smooth_change : float, default=0.01
        Relative change of a gradient, other than in size, over that of the input, as long as no unit switches
        (untrained networks of three hidden layers, 60 to 1000 wide: 0.005 to 0.03).
    """

    pair_prior: float = 0.02
    traced_prior: float = 0.2
    maybe_more: float = 1.3
    surely_more: float = 4.0
    fewest_inputs: int = 3
    own_share: float = 0.85
    far_smaller: float = 0.2
    hardly_any: float = 1e-3
    typical_spread: float = 0.15
    prior_inputs: int = 4
    spread_by_rest: float = 0.02
    most_copies: int = 4
    single: float = 0.3
    likely_more: float = 0.1
    surely_pair: float = 0.9
    visibly_apart: float = 1e-2
    fewest_switches: float = 3.0
    surely_switches: float = 10.0
    smooth_change: float = 0.01

    def resolutions(
        self,
        level: float | np.ndarray,
        weight: np.ndarray,
        distances: np.ndarray,
        gradients: np.ndarray,
        sizes: np.ndarray,
        by_activations: np.ndarray | bool = False,
        smoothly: np.ndarray | float = np.inf,
    ) -> np.ndarray:
        """Return the ambiguity radius: how far apart two samples may lie that are recovered as one, their mean.

        Two samples of one label that activate the same units have parallel gradients, which add up. They show as two by
        units that only one of them activates, or by how their gradients differ smoothly. A pair at a distance ``r``
        (root mean square) in a random direction leaves a singular value of about ``r sqrt(n) / 4`` times the norm of
        ``d`` at the units that switch, or times ``c |d| r / |x|``.

        Parameters
        ----------
        level : float or ndarray of shape (b,)
            Largest singular value of the gradient that goes unseen.
        weight : ndarray of shape (m, n)
            Weights of the layer.
        distances : ndarray of shape (m, b)
            Distance of each pre-activation from the nearest kink.
        gradients : ndarray of shape (m, b)
            ``D``.
        sizes : ndarray of shape (b,)
            Root mean square of each input.
        by_activations : ndarray of shape (b,) of bool, default=False
            Which inputs the next layer's activation subspace certifies, for a piecewise linear activation: it excludes
            the mean of two samples between which units switch, whatever the layer's own gradient shows.
        smoothly : ndarray of shape (b,) or float, default=np.inf
            Largest relative change of a gradient where no unit switches, if that is less than ``smooth_change``.

        Returns
        -------
        ndarray of shape (b,)
            At most the size of an input.
        """
        n = weight.shape[1]
        margins = distances / np.maximum(row_norms(weight), np.finfo(float).tiny)[:, None]
        squares = gradients**2
        low, high = np.full(len(sizes), -12.0), np.zeros(len(sizes))
        for _ in range(N_HALVINGS):
            exponent = (low + high) / 2
            distance = 10.0**exponent * sizes
            switches = 2 * ndtr(-2 * margins / np.maximum(distance, np.finfo(float).tiny))
            by_units = np.sqrt(np.sum(switches * squares, axis=0)) * (switches.sum(axis=0) > self.fewest_switches)
            by_change = np.minimum(self.smooth_change, smoothly) * np.sqrt(squares.sum(axis=0)) * 10.0**exponent
            is_seen = distance * np.sqrt(n) / 4 * np.maximum(by_units, by_change) > level
            is_seen |= by_activations & (switches.sum(axis=0) > self.surely_switches)
            low, high = np.where(is_seen, low, exponent), np.where(is_seen, exponent, high)
        return 10.0**high * sizes

    def errors(
        self,
        errors: np.ndarray,
        problem: LayerProblem,
        preactivations: list[np.ndarray],
        gradients: np.ndarray,
        sizes: np.ndarray,
        may_be_difference: np.ndarray,
        by_tail: WeightsByTail | None = None,
        by_activations: np.ndarray | bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ambiguity radius of each input, and the expected errors, which include it for a likely pair.

        An input is taken for a pair where its gradient is as large as that of two others, or where the gradient has a
        residual above noise at the active units of this input, or another input is only the difference of the pair. So
        are all where the batch is no whole number of samples (``rows_per_sample``): each may hold a missing token.

        Parameters
        ----------
        errors : ndarray of shape (b,)
            Expected errors of inputs that are no pairs.
        problem : LayerProblem
            The layer's gradient.
        preactivations : list of ndarray of shape (m, b)
            ``Z`` at initial (and final) weights.
        gradients : ndarray of shape (m, b)
            ``D``.
        sizes : ndarray of shape (b,)
            Root mean square of each input.
        may_be_difference : ndarray of shape (b, b) of bool
            Whether the input of the row may be the difference of the pair in that of the column.
        by_tail : WeightsByTail or None, default=None
            Size of each gradient over that of one sample, where the tail is known: that of a pair is twice as large.
        by_activations : ndarray of shape (b,) of bool, default=False
            As of `resolutions`.

        Returns
        -------
        resolutions, errors : ndarray of shape (b,)
        """
        factors, layer = problem.factors, problem.layer_gradient
        noise = np.sqrt(np.mean(factors.noise_level**2)) * np.sum(np.sqrt(layer.shape))
        traces = self._traces(may_be_difference, gradients, sizes * np.sqrt(layer.shape[1]))
        level = np.maximum(max(noise, factors.beyond), traces)
        margins = problem.distance_to_kink(preactivations)
        smoothly = change_where_no_unit_switches(problem, preactivations[0], gradients)
        distances = self.resolutions(level, layer.weight, margins, gradients, sizes, by_activations, smoothly)
        is_own = (factors.beyond_left**2) @ (gradients != 0) > self.own_share
        is_seen = is_own & (factors.excess > self.surely_more) & (len(sizes) >= self.fewest_inputs)
        prior = np.where(is_own & (factors.excess > self.maybe_more), self.traced_prior, self.pair_prior)
        is_seen |= (traces > 0) | (problem.batch_size % layer.rows_per_sample != 0)
        needed = np.where(distances > self.visibly_apart * sizes, self.likely_more, self.surely_pair)
        apart = distances
        if by_tail is None:
            is_alone = len(sizes) < self.fewest_inputs
            norms = np.linalg.norm(gradients, axis=0)
            beside = self._probabilities_of_copies(norms, prior, self.typical_spread)
            is_seen |= np.where(is_alone, np.maximum(beside, self.single), beside) > needed
        else:
            is_seen |= self._probabilities_of_copies(by_tail.relative, prior, self.spread_by_rest) > needed
            is_parallel = smoothly < self.smooth_change
            is_seen |= by_tail.are_no_input & is_parallel
            # Of two labels the smaller gradient is taken from the larger: what is left lies beyond the two.
            apart = distances / np.where(is_parallel, np.clip(by_tail.relative, np.finfo(float).tiny, 1.0), 1.0)
        return distances, np.where(is_seen, np.hypot(errors, apart), errors)

    def _traces(self, may_be_difference: np.ndarray, gradients: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the size of the largest input that may be the difference of each pair; zero without any.

        Such a difference has entries only at the active units of the pair, and they are far smaller. If smaller still,
        it may be any pair's: a mean of two 0.01 apart was certified to 1e-6 where the difference was twenty times the
        rounding, with four fifths of its square in the units of the pair.
        """
        norms, tiny = np.linalg.norm(gradients, axis=0), np.finfo(float).tiny
        squares = (gradients / np.maximum(norms, tiny)) ** 2
        is_own, ratios = squares.T @ (gradients != 0) > self.own_share, norms[:, None] / np.maximum(norms, tiny)
        belongs = (is_own & (ratios < self.far_smaller)) | (ratios < self.hardly_any)
        return np.max(np.where(belongs & may_be_difference, (norms * lengths)[:, None], 0.0), axis=0)

    def _probabilities_of_copies(self, sizes: np.ndarray, prior: np.ndarray, spread: float) -> np.ndarray:
        """Return how likely each input is several samples, by the size of its gradient relative to the others'.

        Sizes in a batch are about equal before training, and spread more after it: then this decides little.
        """
        if len(sizes) == 1:
            return np.full(1, self.single)
        logs = np.log(np.maximum(sizes, np.finfo(float).tiny))
        odds = np.empty(len(logs))
        for index, own in enumerate(logs):
            others = np.delete(logs, index)
            centre = np.median(others)
            variance = (1.4826 * np.median(np.abs(others - centre))) ** 2
            variance = (len(others) * variance + self.prior_inputs * spread**2) / (len(others) + self.prior_inputs)
            variance *= 1 + 1 / len(others)
            copies = np.log(np.arange(2, self.most_copies + 1))
            exponents = ((own - centre) ** 2 - (own - centre - copies) ** 2) / (2 * variance)
            odds[index] = np.exp(np.minimum(exponents.max(), 50.0))
        odds *= prior / (1 - prior)
        return odds / (1 + odds)


def change_where_no_unit_switches(
    problem: LayerProblem, preactivations: np.ndarray, gradients: np.ndarray
) -> np.ndarray:
    """Return the largest relative change of each gradient between samples with the same slopes, of shape (b,).

    With two classes or one output, gradients at outputs have one direction. Behind a piecewise linear activation two
    samples with the same slopes have parallel gradients then, however far apart they are. Where the head is not known,
    the gradients of the batch itself show it, slope by slope: those of a pair differ no more than those of any two.

    Parameters
    ----------
    problem : LayerProblem
        The layer's gradient.
    preactivations, gradients : ndarray of shape (m, b)
        ``Z`` and ``D``.
    """
    given, b, unlimited = problem.layer_gradient, gradients.shape[1], np.full(gradients.shape[1], np.inf)
    if not problem.activation.is_piecewise_linear:
        return unlimited
    is_one_row = given.next_layer.weight is not None and len(given.next_layer.weight) == 1
    if is_one_row or (problem.has_tail and given.tail.rest.n_labels(given.shape[0]) == 2):
        return np.zeros(b)
    if b == 1:
        return unlimited
    slopes = problem.activation.derivative(as_tensor(preactivations.T.copy())).numpy().T
    both = (slopes != 0) & (gradients != 0) & np.isfinite(slopes * gradients)
    sent = np.where(both, gradients / np.where(slopes == 0, 1.0, slopes), 0.0)
    squares = (sent**2).T @ both
    cosines = (sent.T @ sent) / np.sqrt(np.maximum(squares * squares.T, np.finfo(float).tiny))
    changes = np.sqrt(np.maximum(1 - cosines**2, 0.0))
    return np.array([np.median(np.delete(row, index)) for index, row in enumerate(changes)])


def repeats(inputs: np.ndarray, errors: np.ndarray, *, deviations: float = 3.0) -> np.ndarray:
    """Return which inputs repeat a more exact one within their errors: by the rank, all of a batch differ."""
    squares = np.sum(inputs**2, axis=1)
    apart = np.maximum(squares[:, None] + squares - 2 * inputs @ inputs.T, 0.0) / inputs.shape[1]
    near = np.sqrt(apart) < deviations * (errors[:, None] + errors)
    order = np.arange(len(inputs))
    is_better = (errors < errors[:, None]) | ((errors == errors[:, None]) & (order < order[:, None]))
    return np.any(near & is_better & np.isfinite(errors)[:, None] & np.isfinite(errors), axis=1)

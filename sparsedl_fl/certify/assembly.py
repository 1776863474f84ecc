"""From chosen columns to a batch: columns estimated from all zero rows, scale, inputs and certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sparsedl_fl.activations import FlatPart
from sparsedl_fl.certify.bias_scale import doubt_in_scale
from sparsedl_fl.certify.certificate import Certificate, certify
from sparsedl_fl.certify.collinear import WeightsByTail
from sparsedl_fl.certify.columns_from_zeros import ColumnsFromZeros
from sparsedl_fl.certify.contradicted import distances_to_own_pattern
from sparsedl_fl.certify.criterion import Case, EvidenceKind
from sparsedl_fl.certify.hidden_features import agree_with_inputs, error_of_hidden_features
from sparsedl_fl.certify.hypothesis import Hypothesis
from sparsedl_fl.certify.maximum_likelihood import maximum_likelihood
from sparsedl_fl.certify.near_duplicates import NearDuplicates, repeats
from sparsedl_fl.certify.sent_back_columns import with_sent_back
from sparsedl_fl.certify.unexplained import are_of_another_batch, relative_residual
from sparsedl_fl.constraints import BESIDE, FAR
from sparsedl_fl.layers.blocks import row_norms

__all__ = ["Assembly", "Batch", "repeats"]


@dataclass(frozen=True)
class Batch:
    """A recovered batch with its certificate.

    Attributes
    ----------
    inputs : ndarray of shape (b, n)
        The inputs.
    disaggregation, preactivation_gradients : ndarray of shape (b, b) and (m, b)
        ``Q``, scaled, and ``D = U Q``, zero where a unit is inactive; ``X^T = Q^-1 S V^T``.
    agreement : ndarray of shape (b,)
        Share of units at which pattern and gradient agree.
    relative_residual : float
        ``|G - D X^T| / |G|`` with ``D`` cut to the pattern of the recovered inputs.
    residual_floor : float
        What the noise alone contributes to that residual.
    recovered : ndarray of shape (b,) of bool
        Which inputs are certified.
    evidence : ndarray of shape (b,) of str
        By which criterion.
    uncertainty : ndarray of shape (b,)
        Expected root-mean-square error of each input, in its units; infinite where nothing is known.
    resolution : ndarray of shape (b,)
        Ambiguity radius: how far apart two inputs may lie that this row cannot tell apart.
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


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """Estimates a batch from chosen columns, and certifies its samples.

    Parameters
    ----------
    refine_above : float, default=1e-4
        Share of noise in the gradient above which maximum likelihood refits the batch; below, zeros are exact enough.
    outlier : float, default=5
        Deviations by which the other zero rows contradict one that is left out. A unit that a FedAvg client activates
        for a few steps has entries near zero, which bend the estimate of a column with few zeros.
    narrow : float, default=0.02
        Width of zero, relative to the entries of a column, up to which zeros alone certify it, whatever the pattern.
    borderline : float, default=1e-5
        Distance of a pre-activation from a kink, relative to the root mean square over the units, up to which the
        gradient decides whether a unit is active: a float32 client's own rounding.
    unexplained : float, default=10
        Excess beyond the batch above which the gradient holds more samples than assumed, and nothing is certified;
        rounding alone reaches 5.2 (see `sparsedl_fl.lowrank.spectrum.rank_above_white_noise`).
    worthless : float, default=0.3
        Expected error, relative to the size of an input, above which nothing certifies it. The ambiguity radius does
        not count: the mean of near-duplicates is recovered, and reported as one.
    off_scale : float, default=0.1
        Relative error in the scale of all inputs above which nothing is certified; a smaller one adds to the error.
    clearly : float, default=10
        Expected errors by which a unit has to be inactive to decide on the scale.
    beside : float, default=2
        Distance from the activation subspaces, over their noise, above which a row is no sample, and a fit of all at
        once would move the others. (Two mixtures had 3.9 where the others had 0.4; not varied.)
    near_duplicates : NearDuplicates
        Finds near-duplicates.
    """

    refine_above: float = 1e-4
    outlier: float = 5.0
    narrow: float = 0.02
    borderline: float = 1e-5
    unexplained: float = 10.0
    worthless: float = 0.3
    off_scale: float = 0.1
    clearly: float = 10.0
    beside: float = BESIDE
    near_duplicates: NearDuplicates = NearDuplicates()

    def of(self, hypothesis: Hypothesis) -> Batch:
        """Estimate the columns again from all their zero rows, scale them, compute the inputs and certify them.

        Parameters
        ----------
        hypothesis : Hypothesis
            The columns chosen.

        References
        ----------
        SPEAR (2024), Theorems 3.2 and 3.5.
        """
        limits = {"outlier": self.outlier, "narrow": self.narrow}
        found = ColumnsFromZeros.of(hypothesis, **limits)
        batch = self._assembled(found, hypothesis.basis)
        grouped = None if batch.recovered.all() else found.grouped(hypothesis, **limits)
        if grouped is None:
            return batch
        with_groups = self._assembled(grouped, hypothesis.basis)
        return with_groups if with_groups.recovered.sum() > batch.recovered.sum() else batch

    def _assembled(self, found: ColumnsFromZeros, chosen: np.ndarray) -> Batch:
        """Return the batch of columns that were ``chosen``, of shape (b, b), before they were estimated."""
        problem = found.hypothesis.problem
        given, factors, noise_share = problem.layer_gradient, problem.factors, problem.noise_share
        rows, columns, determined = found.rows, found.certified, found.determined
        hypothesis, sent_back = with_sent_back(found.hypothesis, columns, chosen)
        disaggregation, whitened = hypothesis.scaled()
        known = _known_where_better(hypothesis, whitened, found.others_determined)
        whitened = np.where(found.are_centres[:, None], whitened, known)
        inputs, preactivations, used = (whitened * factors.singular_values) @ factors.right, problem.at(whitened), rows
        has_pattern = problem.activation.has_flat_part
        is_coarse = noise_share > self.refine_above and has_pattern and not given.is_update
        # Where one of them is no sample, a fit of all at once moves the others.
        phi, is_full = problem.activation, hypothesis.proposed.all()
        if is_coarse and isinstance(phi, FlatPart) and is_full and (problem.over_noise(whitened) <= self.beside).all():
            gradients, inputs, fitted = maximum_likelihood(given, inputs, factors.noise_level, phi)
            disaggregation, used, preactivations = factors.left.T @ gradients, gradients == 0, [fitted]
            determined = np.ones_like(determined)
        else:
            gradients = np.where(self._active(hypothesis, whitened), factors.left @ disaggregation, 0.0)
            for group in found.shared:  # whose inputs are mixtures, with any pattern
                gradients[:, group.members] = (factors.left @ disaggregation[:, group.members]) * ~group.rows[:, None]
        case = Case(
            hypothesis,
            inputs,
            whitened,
            columns,
            used,
            determined,
            disaggregation,
            problem.is_active(preactivations),
            sent_back,
            found.shared,
        )
        certificate, uncertainty, resolution = self._certified(case, preactivations, gradients)
        certificate = certificate.without(are_of_another_batch(case, certificate))
        return Batch(
            inputs=inputs,
            disaggregation=disaggregation,
            preactivation_gradients=gradients,
            agreement=case.agreement,
            relative_residual=relative_residual(given, gradients, inputs),
            residual_floor=noise_share,
            recovered=certificate.proven,
            evidence=certificate.evidence,
            uncertainty=uncertainty,
            resolution=resolution,
        )

    def _certified(
        self, case: Case, preactivations: list[np.ndarray], gradients: np.ndarray
    ) -> tuple[Certificate, np.ndarray, np.ndarray]:
        """Return the certificate, the expected error of each input, and its ambiguity radius."""
        hypothesis, problem, inputs = case.hypothesis, case.hypothesis.problem, case.inputs
        has_pattern, sizes = problem.activation.has_flat_part, np.sqrt(np.mean(inputs**2, axis=1))
        certificate = certify(case)
        shown = certificate.proven & agree_with_inputs(case, certificate.proven)
        hidden = error_of_hidden_features(hypothesis, preactivations, certificate.errors, shown)
        certificate = replace(certificate, errors=np.hypot(certificate.errors, hidden))
        certificate, is_off_scale = self._with_doubt_in_scale(hypothesis, preactivations[0], sizes, certificate)
        is_worthless = certificate.errors > self.worthless * np.maximum(sizes, np.finfo(float).tiny)
        given = preactivations[0], gradients, certificate.proven & ~case.in_group
        by_tail = None if problem.tail is None else WeightsByTail.of(problem.tail, *given)
        # Dense columns that only complete the basis could belong to any input; the activation subspace bounds its own.
        by_subspace = certificate.evidence == EvidenceKind.SPAN_OF_NEXT_LAYER
        is_difference = is_worthless[:, None] & (hypothesis.proposed[:, None] | ~by_subspace | has_pattern)
        for group in case.shared:
            is_difference[group.members] &= group.may_hold_difference(problem.factors, hypothesis.zeros)
        errors, is_own = certificate.errors, by_subspace & has_pattern
        resolution, uncertainty = self.near_duplicates.errors(
            errors, problem, preactivations, gradients, sizes, is_difference, by_tail, is_own
        )
        if by_tail is not None:
            reach = resolution if has_pattern and not problem.is_straight else np.inf
            by_lines = by_tail.errors(inputs, reach, is_loss_given=problem.tail.rest.loss is not None)
            resolution, uncertainty = np.maximum(resolution, by_lines), np.hypot(uncertainty, by_lines)
        else:
            by_pattern = distances_to_own_pattern(case)
            resolution, uncertainty = np.maximum(resolution, by_pattern), np.hypot(uncertainty, by_pattern)
        # The centre of a group has a column that is no sample's, and an error that covers all of the group.
        radii = case.radii
        resolution = np.where(radii > 0, 2 * radii, resolution)
        uncertainty = np.where(radii > 0, np.maximum(certificate.errors, radii), uncertainty)
        is_repeat = repeats(inputs, np.where(certificate.proven & ~is_worthless, certificate.errors, np.inf))
        is_doubtful = problem.factors.excess > self.unexplained or is_off_scale
        is_worthless |= uncertainty >= np.maximum(sizes, np.finfo(float).tiny)
        certificate = certificate.without(is_worthless | is_repeat | is_doubtful)
        return certificate, uncertainty, resolution

    def _with_doubt_in_scale(
        self, hypothesis: Hypothesis, preactivations: np.ndarray, sizes: np.ndarray, certificate: Certificate
    ) -> tuple[Certificate, bool]:
        """Return the certificate with errors that allow for a wrong scale, and whether it may be too wrong.

        One barely active unit that is taken for inactive makes all inputs look a little too large or too small.
        """
        problem, certified = hypothesis.problem, certificate.proven
        widths = self.clearly * row_norms(problem.layer_gradient.weight)[:, None] * certificate.errors[certified]
        has_gradient = ~hypothesis.likely_zeros[:, certified]
        doubt = doubt_in_scale(problem, preactivations[:, certified], has_gradient, widths)
        return replace(certificate, errors=np.hypot(certificate.errors, doubt * sizes)), doubt > self.off_scale

    def _active(self, hypothesis: Hypothesis, whitened: np.ndarray) -> np.ndarray:
        """Return which units were active for which input.

        The gradient decides where a pre-activation is within its noise of a kink, or within what a FedAvg client's
        training moves it by.
        """
        problem, preactivations = hypothesis.problem, hypothesis.preactivations
        noise = np.sqrt(np.mean(problem.factors.noise_level**2)) * np.linalg.norm(whitened, axis=1)
        undecided = problem.factors.zero_test.noise_multiple * row_norms(problem.layer_gradient.weight)[:, None] * noise
        undecided += np.sqrt(np.mean((preactivations[-1] - preactivations[0]) ** 2, axis=0))
        undecided += self.borderline * np.sqrt(np.mean(np.square(preactivations), axis=(0, 1)))
        is_undecided = problem.distance_to_kink(preactivations) <= undecided
        return np.where(is_undecided, ~hypothesis.zeros, hypothesis.is_active)


def _known_where_better(hypothesis: Hypothesis, whitened: np.ndarray, others_determined: np.ndarray) -> np.ndarray:
    """Replace inputs by those that a search found, where zeros leave columns of other inputs open.

    Also where the found one lies in the activation subspaces and the one by the columns does not: a column that holds
    a little of another moves one input and leaves the others. In a trained network all lie a few times the noise from
    the subspaces, and their zeros are more exact than these (LeNet after 2000 steps).
    """
    if hypothesis.known is None:
        return whitened
    problem = hypothesis.problem
    scale = hypothesis.known @ problem.forward.scale
    is_there = np.isfinite(scale) & (np.abs(scale) > np.finfo(float).tiny)
    known = np.where(is_there[:, None], hypothesis.known / np.where(is_there, scale, 1.0)[:, None], whitened)
    over_noise, of_known = problem.over_noise(whitened), problem.over_noise(known)
    is_beside = over_noise > np.maximum(max(BESIDE, FAR * np.nanmedian(over_noise)), of_known)
    is_better = (is_there & ~others_determined) | is_beside
    return np.where(is_better[:, None], known, whitened)

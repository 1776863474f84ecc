"""Criteria by constraints: the activation subspaces, the network tail, and a replay of the whole batch."""

from __future__ import annotations

import math

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.activations import Activation
from sparsedl_fl.certify.criterion import Case, Criterion, EvidenceKind
from sparsedl_fl.certify.hypothesis import overlaps_of
from sparsedl_fl.certify.mixtures import are_no_mixtures
from sparsedl_fl.certify.uncertainty import errors_from_constraints
from sparsedl_fl.constraints import (
    FAR,
    IN_LINE,
    LEAST_DISTANCE,
    LOG_CHANCE,
    Constraint,
    DownstreamSubspaces,
    Stacked,
    SubspacesAt,
    TailGradient,
    TailGradientAt,
    log_chance,
)

__all__ = ["ReplayOfAll", "BySubspace", "ByTail", "ByTailAndSubspaces", "are_vertices"]


EXACT = 1e-3
"""Expected error by zeros, relative to the size of an input, from which on no smaller one is asked for; not varied."""


class BySubspace(Criterion):
    """The activations lie in the next layer's activation subspace.

    Each inactive unit leaves one equation less that a wrong candidate could break. Then the zeros of its column at
    these units count as well, with the column as a further unknown.
    """

    kind = EvidenceKind.SPAN_OF_NEXT_LAYER

    def may_add(self, case: Case, certified: np.ndarray) -> bool:
        """Return whether an input is not certified yet, or the activation is piecewise linear and zeros are not exact.

        Where zeros give all inputs to a part in a thousand, subspaces cost a third of the time at (250, 1000) and add
        nothing: nine batches of 20 to 90 at 200 have the same expected errors without. For smooth activations the
        network tail alone is as sharp as both, and faster. (Expected errors of a hundred samples at 1000 units, by the
        tail over those by subspaces: 0.7 for GELU, 0.5 for ELU.)
        """
        activation, sizes = case.hypothesis.problem.activation, np.sqrt(np.mean(case.inputs**2, axis=1))
        if not certified.all() or not activation.is_piecewise_linear:
            return not certified.all()
        return not (activation.has_flat_part and (case.errors_by_columns[0] <= EXACT * sizes).all())

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Certify by the distances from the subspaces, all of which have to be small.

        Where the first one leaves inputs open, all downstream ones are used: samples with much in common differ at few
        units, and break few equations of the first.
        """
        problem = case.hypothesis.problem
        certified, errors = self._by_subspaces(case, problem.subspaces)
        if problem.subspaces is None or certified.all() or not problem.activation.has_flat_part:
            return certified, errors
        by_all, errors_by_all = self._by_subspaces(case, problem.all_subspaces)
        return certified | by_all, np.minimum(errors, errors_by_all)

    @staticmethod
    def _by_subspaces(case: Case, subspaces: DownstreamSubspaces | None) -> tuple[np.ndarray, np.ndarray]:
        problem, b = case.hypothesis.problem, len(case.columns)
        if subspaces is None or not subspaces.identifies:
            return case.nothing
        here = subspaces.at(case.preactivations)
        is_vertex = torch.from_numpy(are_vertices(here, problem.activation))
        if problem.is_straight:
            is_vertex &= _agree_with_tail(problem.tail_from_prior, case.preactivations)
        certified = here.is_proof & is_vertex
        if problem.activation.has_flat_part and not certified.all() and np.isfinite(case.whitened).all():
            chances = torch.cat([here.own_log_chances, as_tensor(case.log_chances_of_zeros.T.copy())], dim=1)
            by_zeros = here.is_inside & (log_chance(chances, 2 * b - 1) <= LOG_CHANCE)
            certified |= by_zeros & is_vertex
        certified = certified.numpy() & _has_surplus(case, here)
        is_determined, errors = _with_errors(case, subspaces, certified)
        return is_determined, errors * here.beyond_noise.numpy()


class ByTail(Criterion):
    """The network tail's gradient lies in the column space, for activations without a zero-slope region.

    For the others the gradient depends on the pattern alone, which many inputs share.
    """

    kind = EvidenceKind.THROUGH_REST

    def may_add(self, case: Case, certified: np.ndarray) -> bool:
        """Return whether the tail is known, depends on more than the pattern, and subspaces do not serve as well.

        (LeakyReLU, 100 samples at 1000 units: errors by subspaces and tail are 2 % smaller than by subspaces alone.)
        """
        problem = case.hypothesis.problem
        has_other = problem.activation.is_piecewise_linear and problem.subspaces is not None
        return problem.tail is not None and not problem.activation.has_flat_part and not has_other

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Certify by the distances from the column space."""
        return _by_constraint(case, case.hypothesis.problem.tail)


class ByTailAndSubspaces(Criterion):
    """The network tail together with the activation subspaces, where each alone has too few equations."""

    kind = EvidenceKind.THROUGH_REST_AND_SPANS

    def may_add(self, case: Case, certified: np.ndarray) -> bool:
        """Return whether both are known, and an input is not certified yet."""
        problem = case.hypothesis.problem
        has_both = problem.tail is not None and problem.subspaces is not None
        return has_both and not problem.activation.has_flat_part and not certified.all()

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Certify by the distances from all of them."""
        return _by_constraint(case, Stacked((case.hypothesis.problem.subspaces, case.hypothesis.problem.tail)))


class ReplayOfAll(Criterion):
    """The whole batch, replayed through the network tail, gives the gradient.

    An input has too few equations of its own where a head has hardly more classes than there are samples. But if the
    replayed columns are those of the batch, ``P Q = I``, these are equations too.

    With a zero-slope region the replayed gradient depends on the pattern, of which there are at most ``2^m``, and on
    hardly anything else: ``m - b`` equations and no continuous unknown. This criterion applies to batches beyond half
    of the width, where many samples have too few zeros and subspace equations, and where most units are active: there
    the loss decides what the pattern leaves open, and expected errors need a fit of all samples at once.
    """

    kind = EvidenceKind.REPLAY_OF_ALL

    def may_add(self, case: Case, certified: np.ndarray) -> bool:
        """Return whether an input is not certified yet."""
        return not certified.all()

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Compare the replayed columns with those of the batch, and certify all inputs or none."""
        problem, b = case.hypothesis.problem, len(case.columns)
        has_zeros, is_straight = problem.activation.has_flat_part, problem.is_straight
        applies = not has_zeros or problem.is_beyond_half or is_straight
        if problem.tail is None or not np.isfinite(case.whitened).all() or not applies:
            return case.nothing
        constraint = (problem.tail_from_prior if is_straight else problem.tail).settled(case.preactivations)
        here = constraint.at(case.preactivations)
        overlaps = constraint.overlaps(case.preactivations, as_tensor(case.whitened), as_tensor(problem.forward.scale))
        off = overlaps - torch.eye(b, dtype=overlaps.dtype)
        if has_zeros:
            return self._by_patterns(case, here, off)
        off = off.abs().amax(dim=1)
        of_columns = torch.log10(off.clamp(min=LEAST_DISTANCE, max=1.0))[:, None].expand(-1, b - 1)
        chance = log_chance(torch.cat([here.log_chances, of_columns], dim=1), b - 1)
        if not (here.is_inside & (chance <= LOG_CHANCE)).all() or not _in_line_by_tail(here).all():
            return case.nothing
        certified, errors = _with_errors(case, constraint, np.ones(b, dtype=bool))
        return certified, errors * problem.beyond_noise(case.whitened)

    @staticmethod
    def _by_patterns(case: Case, here: TailGradientAt, off: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Certify all or none by their patterns, where ``P Q`` is ``off`` from ``I``.

        Columns are exact where patterns are right; the error left is the noise of the gradient, and the change that the
        replayed columns would still make.
        """
        problem, b = case.hypothesis.problem, len(case.columns)
        chances = problem.width * math.log10(2) + (problem.width - b) * torch.log10(here.distances)
        is_near = off.abs().amax(dim=1) <= here.constraint.largest_tolerance
        if not (case.hypothesis.proposed.all() and (here.is_inside & is_near & (chances <= LOG_CHANCE)).all()):
            return case.nothing
        if problem.is_straight and not problem.is_beyond_half:
            known, nearest = case.hypothesis.known_errors, (FAR * here.expected).clamp(min=LEAST_DISTANCE)
            is_known = known is not None and np.isfinite(known).all() and bool((here.distances <= nearest).all())
            return np.full(b, is_known), np.full(b, np.inf)
        change = np.sqrt(np.mean((off.numpy() @ case.inputs) ** 2, axis=1))
        over_noise = np.maximum((here.distances / here.expected).numpy(), problem.beyond_noise(case.whitened))
        return np.ones(b, dtype=bool), np.hypot(case.errors_by_columns[2], change) * np.maximum(over_noise, 1.0)


def are_vertices(here: SubspacesAt, activation: Activation, *, clearly: float = 1e-3) -> np.ndarray:
    """Return which candidates fulfil the equations of subspaces as samples do, and not as mixtures of some samples.

    Only piecewise linear activations need this check: by the noise (see `_in_line`) and, without a zero-slope region,
    by the units at which inputs differ (see `are_no_mixtures`), as far as these are `clearly` off a kink, relative; not
    varied. Each input that is not certified may hide a sample that was not found. (Of 13 samples at 30 LeakyReLU units
    the search returned 13 candidates, nine of them near no sample: three others were certified, and off by their size.)
    """
    if not activation.is_piecewise_linear:
        return np.ones(len(here.activations[0]), dtype=bool)
    found, is_straight = _in_line(here.over_noise.numpy()), activation.is_straight_around_zero
    if activation.has_flat_part and not is_straight:
        return found
    far_from_kinks = [z.abs() > clearly * z.square().mean(dim=1, keepdim=True).sqrt() for z in here.preactivations]
    slopes, is_clear = torch.cat(list(here.slopes), dim=1).numpy(), torch.cat(far_from_kinks, dim=1).numpy()
    certified = found & here.is_proof.numpy()
    while True:
        is_vertex = are_no_mixtures(slopes, is_clear, has_two_kinks=is_straight, n_missing=int((~certified).sum()))
        if is_vertex[certified].all():
            return found & is_vertex
        certified &= is_vertex


def _has_surplus(case: Case, here: SubspacesAt, *, own_overlap: float = 1e-3) -> np.ndarray:
    """Return for which inputs the layer itself has more equations than unknowns, whatever its downstream layers say.

    With as many active units as unknowns, some input has the activations of a sample even where the layer's weights,
    bias or gradient are not those of the client, and fulfils all equations downstream. (One of 500 hostile audits: the
    gradient was scaled, 16 inputs, 15 units active; a mixture of inputs was certified to 3e-7.) Certified columns of
    other inputs are equations too, where an input is orthogonal to them.
    """
    if not case.hypothesis.problem.activation.has_flat_part:
        return np.ones(len(case.columns), dtype=bool)
    is_active, stand_for = (here.activations[0] != 0).numpy(), here.constraint.levels[0].stand_for
    if stand_for is not None:
        is_active = is_active & (stand_for > 0).numpy()
    hypothesis = case.hypothesis
    overlaps = np.abs(overlaps_of(case.whitened, hypothesis.basis, hypothesis.problem.factors.singular_values))
    np.fill_diagonal(overlaps, np.inf)
    n_equations = is_active.sum(axis=1) + np.sum((overlaps < own_overlap) & case.columns, axis=1)
    return (n_equations - (len(case.columns) - 1)) * math.log10(LEAST_DISTANCE) <= LOG_CHANCE


def _agree_with_tail(tail: TailGradient | None, preactivations: torch.Tensor) -> torch.Tensor:
    """Return for which inputs the network tail's gradient lies in the column space; none where the tail is unknown.

    Where most units are active, a mixture of two samples that differ at one unit may lie in the subspaces once that
    unit saturates on its other side. (Two samples at 60 Hardtanh units: one was off by its size, with an expected error
    of a thirtieth.)
    """
    if tail is None or not preactivations.isfinite().all():
        return torch.zeros(len(preactivations), dtype=torch.bool)
    return tail.at(preactivations).is_inside


def _in_line(over_noise: np.ndarray, *, least: float = IN_LINE, most: float = FAR) -> np.ndarray:
    """Return which inputs are about as near to the subspaces as the others, over their noise.

    For piecewise linear activations a barely active unit that is taken for inactive leaves a few times the distance of
    the others: one such input was certified, and off by 15 expected errors. True ones leave about 0.4; `least` and
    `most` are not varied.
    """
    return over_noise <= np.maximum(least, most * np.median(over_noise))


def _in_line_by_tail(here: TailGradientAt) -> np.ndarray:
    """Return the same by the network tail's gradient, for any activation.

    (Two found for three samples on a line, at a head, had 4 and 8.5, where the others had 0.1.)
    """
    return _in_line((here.distances / here.expected).numpy(), least=2.0)


def _by_constraint(case: Case, constraint: Constraint) -> tuple[np.ndarray, np.ndarray]:
    """Return which inputs a constraint certifies, each by itself, and their expected errors."""
    certified, errors = case.nothing
    if constraint.identifies:
        here = constraint.at(case.preactivations)
        certified = here.is_proof.numpy()
        if isinstance(here, TailGradientAt):
            certified &= _in_line_by_tail(here)
        certified, errors = _with_errors(case, constraint, certified)
    return certified, errors * case.hypothesis.problem.beyond_noise(case.whitened)


def _with_errors(case: Case, constraint: Constraint, certified: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which of the certified inputs a constraint determines, and their expected errors."""
    problem, b = case.hypothesis.problem, len(case.columns)
    errors = np.full(b, np.inf)
    _, products, direct = case.errors_by_columns
    known = np.where(case.columns & ~np.eye(b, dtype=bool), products, np.inf)
    by_constraint = errors_from_constraints(
        problem.factors,
        problem.forward.regressors(),
        problem.forward.scale,
        constraint,
        case.whitened[certified],
        case.disaggregation.T,
        known[certified],
    )
    errors[certified] = np.hypot(by_constraint, direct[certified])
    return certified & np.isfinite(errors), errors

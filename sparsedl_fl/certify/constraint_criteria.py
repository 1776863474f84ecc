"""Evidence by what lies behind the layer: the spans of later gradients, the rest of the network, a replay of all."""

from __future__ import annotations

import math

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.activations import Activation
from sparsedl_fl.certify.criterion import Case, Criterion, EvidenceKind
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


class BySubspace(Criterion):
    """The activations lie in the span of the next layer's gradient.

    An input whose units are off leaves the span fewer equations that it could break. Then the zeros of its column count
    besides, at these very units, with the column as a further unknown.
    """

    kind = EvidenceKind.SPAN_OF_NEXT_LAYER

    def may_add(self, case: Case, proven: np.ndarray) -> bool:
        """Return whether there are straight pieces, or an input is left to prove.

        The rest of the network proves the others, as sharply and faster than both. (Expected errors of a hundred inputs
        behind 1000 units, by the rest over those by spans: 0.7 behind GELU, 0.5 behind ELU.)
        """
        return case.hypothesis.problem.activation.is_piecewise_linear or not proven.all()

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Measure the distances from the spans; all have to be near.

        Where the first one leaves something open, all of a chain are asked: inputs with much in common switch few
        units, and leave the first span few equations that they could break.
        """
        problem = case.hypothesis.problem
        proven, errors = self._by_subspaces(case, problem.subspaces)
        if problem.subspaces is None or proven.all() or not problem.activation.has_flat_part:
            return proven, errors
        by_chain, errors_by_chain = self._by_subspaces(case, problem.all_subspaces)
        return proven | by_chain, np.minimum(errors, errors_by_chain)

    @staticmethod
    def _by_subspaces(case: Case, subspaces: DownstreamSubspaces | None) -> tuple[np.ndarray, np.ndarray]:
        problem, b = case.hypothesis.problem, len(case.columns)
        if subspaces is None or not subspaces.identifies:
            return case.nothing
        here = subspaces.at(case.preactivations)
        is_vertex = torch.from_numpy(are_vertices(here, problem.activation))
        if problem.is_straight:
            is_vertex &= _returns(problem.tail_from_prior, case.preactivations)
        proven = here.is_proof & is_vertex
        if problem.activation.has_flat_part and not proven.all() and np.isfinite(case.whitened).all():
            chances = torch.cat([here.own_log_chances, as_tensor(case.log_chances_of_zeros.T.copy())], dim=1)
            by_zeros = here.is_inside & (log_chance(chances, 2 * b - 1) <= LOG_CHANCE)
            proven |= by_zeros & is_vertex
        certain, errors = _with_errors(case, subspaces, proven.numpy())
        return certain, errors * here.beyond_noise.numpy()


class ByTail(Criterion):
    """The rest of the network returns a gradient in the column space, behind activations without flat parts.

    Behind the others the gradient depends on the pattern alone, which many inputs share.
    """

    kind = EvidenceKind.THROUGH_REST

    def may_add(self, case: Case, proven: np.ndarray) -> bool:
        """Return whether the gradient depends on more than the pattern, or there is nothing else to ask.

        (LeakyReLU, 100 inputs behind 1000 units: by spans and rest errors are 2 % smaller than by spans alone.)
        """
        problem = case.hypothesis.problem
        has_other = problem.activation.is_piecewise_linear and problem.subspaces is not None
        return problem.tail is not None and not problem.activation.has_flat_part and not has_other

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Measure the distances from the column space."""
        return _by_constraint(case, case.hypothesis.problem.tail)


class ByTailAndSubspaces(Criterion):
    """The rest of the network together with the spans, where each alone has too few equations.

    What lies beside these is off by as much more: the rest holds the layers behind.
    """

    kind = EvidenceKind.THROUGH_REST_AND_SPANS

    def may_add(self, case: Case, proven: np.ndarray) -> bool:
        """Return whether there are both, and anything is left to prove."""
        problem = case.hypothesis.problem
        has_both = problem.tail is not None and problem.subspaces is not None
        return has_both and not problem.activation.has_flat_part and not proven.all()

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Measure the distances from all of them."""
        return _by_constraint(case, Stacked((case.hypothesis.problem.subspaces, case.hypothesis.problem.tail)))


class ReplayOfAll(Criterion):
    """The whole batch, run through the rest of the network, returns the gradient.

    Each input has too few equations for a proof of its own where a head has hardly more classes than there are inputs.
    But if the columns that come back for all are those of the batch, ``P Q = I``, these are equations too.

    Behind flat parts what comes back depends on the pattern, of which there are at most ``2^m``, and hardly on anything
    else: ``m - b`` equations, and no number to fulfil them by. It is asked beyond half of the width, where many an
    input has neither zeros nor spans enough, and where most units are on: there what the pattern leaves open
    depends on the loss, and how exact the batch is takes a fit of all at once.
    """

    kind = EvidenceKind.REPLAY_OF_ALL

    def may_add(self, case: Case, proven: np.ndarray) -> bool:
        """Return whether anything is left to prove."""
        return not proven.all()

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Compare what comes back with the columns."""
        problem, b = case.hypothesis.problem, len(case.columns)
        has_zeros, is_straight = problem.activation.has_flat_part, problem.is_straight
        is_asked = not has_zeros or problem.is_beyond_half or is_straight
        if problem.tail is None or not np.isfinite(case.whitened).all() or not is_asked:
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
        if not (here.is_inside & (chance <= LOG_CHANCE)).all() or not _in_line_by_rest(here).all():
            return case.nothing
        proven, errors = _with_errors(case, constraint, np.ones(b, dtype=bool))
        return proven, errors * problem.beyond_noise(case.whitened)

    @staticmethod
    def _by_patterns(case: Case, here: TailGradientAt, off: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Return all as proven or none, by patterns, where ``P Q`` is off from ``I`` by so much.

        The columns are as exact as the patterns are right: what is left is the noise of the gradient, and what the
        columns that come back would still change.
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
    """Return which ends fulfil the equations of spans as inputs do, and not as something between some inputs.

    Among straight pieces alone there is anything to ask: of the noise (see `_in_line`) and, where there are no zeros
    besides, of the units at which inputs differ (see `are_no_mixtures`), those that are `clearly` no kink, relative;
    not varied. Whatever is not proven may stand for an input that was not found. (Of 13 inputs behind 30 LeakyReLU
    units all came back and nine were nowhere near one: three others were certified, and off by their size.)
    """
    if not activation.is_piecewise_linear:
        return np.ones(len(here.activations[0]), dtype=bool)
    found, is_straight = _in_line(here.over_noise.numpy()), activation.is_straight_around_zero
    if activation.has_flat_part and not is_straight:
        return found
    far_from_kinks = [z.abs() > clearly * z.square().mean(dim=1, keepdim=True).sqrt() for z in here.preactivations]
    slopes, is_clear = torch.cat(list(here.slopes), dim=1).numpy(), torch.cat(far_from_kinks, dim=1).numpy()
    told = found & here.is_proof.numpy()
    while True:
        is_vertex = are_no_mixtures(slopes, is_clear, has_two_kinks=is_straight, n_missing=int((~told).sum()))
        if is_vertex[told].all():
            return found & is_vertex
        told &= is_vertex


def _returns(rest: TailGradient | None, preactivations: torch.Tensor) -> torch.Tensor:
    """Return for which inputs the rest of the network returns a gradient in the column space; none without a rest.

    Where most units are on, a mixture of two inputs that differ at one unit may lie in the spans once that is flat on
    its other side. (Two inputs behind 60 Hardtanh units: one was off by its size, and expected within a thirtieth.)
    """
    if rest is None or not preactivations.isfinite().all():
        return torch.zeros(len(preactivations), dtype=torch.bool)
    return rest.at(preactivations).is_inside


def _in_line(over_noise: np.ndarray, *, least: float = IN_LINE, most: float = FAR) -> np.ndarray:
    """Return which inputs are not far further from the spans than the others, by their noise.

    Among straight pieces a unit taken for off that was hardly on leaves a few times what the others do: certified, such
    an input was off by 15 expected errors. True ones leave about 0.4; `least` and `most` are not varied.
    """
    return over_noise <= np.maximum(least, most * np.median(over_noise))


def _in_line_by_rest(here: TailGradientAt) -> np.ndarray:
    """Return the same by what the rest of the network returns, behind anything.

    (Two that stood for three on a line, at a head, had 4 and 8.5, where the others had 0.1.)
    """
    return _in_line((here.distances / here.expected).numpy(), least=2.0)


def _by_constraint(case: Case, constraint: Constraint) -> tuple[np.ndarray, np.ndarray]:
    """Return which inputs a view proves, each by itself, and how far they may be off by it."""
    proven, errors = case.nothing
    if constraint.identifies:
        here = constraint.at(case.preactivations)
        proven = here.is_proof.numpy()
        if isinstance(here, TailGradientAt):
            proven &= _in_line_by_rest(here)
        proven, errors = _with_errors(case, constraint, proven)
    return proven, errors * case.hypothesis.problem.beyond_noise(case.whitened)


def _with_errors(case: Case, constraint: Constraint, proven: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which of the inputs that are proven a view determines, and how far they may be off by it."""
    problem, b = case.hypothesis.problem, len(case.columns)
    errors = np.full(b, np.inf)
    _, products, direct = case.errors_by_columns
    known = np.where(case.columns & ~np.eye(b, dtype=bool), products, np.inf)
    by_view = errors_from_constraints(
        problem.factors,
        problem.forward.regressors(),
        problem.forward.scale,
        constraint,
        case.whitened[proven],
        case.disaggregation.T,
        known[proven],
    )
    errors[proven] = np.hypot(by_view, direct[proven])
    return proven & np.isfinite(errors), errors

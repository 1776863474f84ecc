"""Kinds of evidence for an input, one class each.

Every input is orthogonal to the columns of all others, ``P Q = I``: it is right when *those* are, whatever its own is.
So a column can be proven, by more zeros than chance which determine it, and then it counts for all other inputs; or an
input can be proven by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from sparsedl.arrays import as_tensor
from sparsedl_fl.hypothesis import Hypothesis, pattern_agreement
from sparsedl_fl.uncertainty import errors_from_inputs, errors_from_views, errors_from_zeros
from sparsedl_fl.views import LEAST_DISTANCE, LOG_CHANCE, Together, View, log_chance

__all__ = [
    "Case",
    "Evidence",
    "ReplayOfAll",
    "SpanOfNextLayer",
    "ThroughRest",
    "ZerosOfAll",
    "ZerosOfInput",
    "ZerosOfOthers",
]

ALIKE = 0.99
"""Cosine of the gradients of two units from which on they say the same; not varied."""


@dataclass(frozen=True)
class Case:
    """What is to be proven, after the last estimate.

    Attributes
    ----------
    hypothesis : Hypothesis
        The columns.
    inputs : ndarray of shape (b, n)
        The recovered batch.
    whitened : ndarray of shape (b, b)
        Their rows ``p``, at their true scale.
    columns : ndarray of shape (b,) of bool
        Columns that their zeros prove.
    rows : ndarray of shape (m, b) of bool
        Zero rows that each column was estimated from.
    determined : ndarray of shape (b,) of bool
        Which columns these determine.
    disaggregation : ndarray of shape (b, b)
        ``Q``, scaled.
    is_active : ndarray of shape (m, b) of bool
        Where the weights say that a unit is on for the recovered inputs.
    """

    hypothesis: Hypothesis
    inputs: np.ndarray
    whitened: np.ndarray
    columns: np.ndarray
    rows: np.ndarray
    determined: np.ndarray
    disaggregation: np.ndarray
    is_active: np.ndarray

    @cached_property
    def agreement(self) -> np.ndarray:
        """Share of units at which pattern and gradient agree, shape (b,)."""
        return pattern_agreement(self.is_active, self.hypothesis.likely_zeros)

    @property
    def fits(self) -> np.ndarray:
        """Whose pattern is that of its gradient, shape (b,)."""
        return self.agreement >= self.hypothesis.trusted_agreement

    @cached_property
    def errors_by_columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Expected errors from the zeros of the columns (see `errors_from_zeros`)."""
        return errors_from_zeros(self.hypothesis.problem.factors, self.inputs, self.rows, self.determined)

    @property
    def follows(self) -> np.ndarray:
        """Whose other columns are all proven."""
        n_missing = np.sum(~self.columns)
        return np.full(len(self.columns), n_missing == 0) | ((n_missing == 1) & ~self.columns)

    @cached_property
    def log_chances_of_zeros(self) -> np.ndarray:
        """Logarithm of the chance of each zero that the weights say a column has, shape (m, b); 0 where it is none.

        Units that are on for the same inputs have gradients in one direction, which say the same: the first of them
        counts.
        """
        left = self.hypothesis.problem.factors.left
        gradients = left @ self.disaggregation
        n_on = np.maximum(self.is_active.sum(axis=1, keepdims=True), 1)
        typical = np.sqrt(np.sum(gradients**2, axis=1, keepdims=True) / n_on)
        sizes = np.linalg.norm(left, axis=1)
        alike = np.abs(left @ left.T) > ALIKE * np.outer(sizes, sizes)
        is_first = ~np.tril(alike, -1).any(axis=1) & (sizes > LEAST_DISTANCE * sizes.max())
        shares = np.abs(gradients) / np.maximum(typical, np.finfo(float).tiny)
        chances = np.log10(np.clip(shares, LEAST_DISTANCE, 1.0))
        return np.where(is_first[:, None] & ~self.is_active, chances, 0.0)

    @property
    def consistency(self) -> np.ndarray:
        """Share of each input's units with a gradient that are active by the weights.

        Dropout switches active units off and never the other way.
        """
        has_gradient = ~self.hypothesis.likely_zeros
        return np.sum(self.is_active & has_gradient, axis=0) / np.maximum(has_gradient.sum(axis=0), 1)


class Evidence(ABC):
    """One kind of evidence.

    Attributes
    ----------
    kind : str
        By what it is called.
    is_last_resort : bool
        Whether it has nothing to add where all inputs are proven by other kinds.
    """

    kind: ClassVar[str]
    is_last_resort: ClassVar[bool] = False

    @abstractmethod
    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Return which inputs are proven, and how far they may be off by this alone; infinite where it says nothing."""


class ZerosOfOthers(Evidence):
    """All other columns are proven, and the pattern fits."""

    kind = "zeros of the gradient"

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Look at the columns; what their zeros determine is an estimate of every input, proven or not."""
        has_pattern = case.hypothesis.problem.activation.has_flat_part
        return case.follows & case.fits & has_pattern, case.errors_by_columns[0]


class SpanOfNextLayer(Evidence):
    """The activations lie in the span of the next layer's gradient.

    An input whose units are off leaves the span fewer equations that it could break. Then the zeros of its column count
    besides, at these very units, with the column as a further unknown.
    """

    kind = "span of the next layer"

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Measure the distances from the spans; all have to be near."""
        problem, b = case.hypothesis.problem, len(case.columns)
        if problem.behind is None or not problem.behind.identifies:
            return np.zeros(b, dtype=bool), np.full(b, np.inf)
        here = problem.behind.at(as_tensor(problem.at(case.whitened)[0].T.copy()))
        in_line = _in_line(here.over_noise.numpy()) | (not problem.activation.is_piecewise_linear)
        alone = _with_errors(case, problem.behind, here.is_proof.numpy() & in_line)
        if alone[0].all() or not problem.activation.has_flat_part or not np.isfinite(case.whitened).all():
            return alone
        chances = torch.cat([here.own_log_chances, as_tensor(case.log_chances_of_zeros.T.copy())], dim=1)
        proven = here.is_inside & (log_chance(chances, 2 * b - 1) <= LOG_CHANCE) & torch.from_numpy(in_line)
        return _with_errors(case, problem.behind, alone[0] | proven.numpy())


class ThroughRest(Evidence):
    """The rest of the network returns a gradient in the column space, behind activations without flat parts.

    Behind the others the gradient depends on the pattern alone, which many inputs share. Together with the spans, where
    there are any: each may have too few equations.
    """

    kind = "rest of the network"

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Measure the distances from the column space."""
        problem = case.hypothesis.problem
        if problem.activation.has_flat_part or problem.rest is None:
            return np.zeros(len(case.columns), dtype=bool), np.full(len(case.columns), np.inf)
        alone = _by_view(case, problem.rest)
        if problem.behind is None or alone[0].all():
            return alone
        together = _by_view(case, Together((problem.behind, problem.rest)))
        return alone[0] | together[0], np.minimum(alone[1], together[1])


class ZerosOfInput(Evidence):
    """Narrow zeros of its own prove the input, as those of the gradient prove a column: ``G^T`` is the same problem."""

    kind = "zeros of the input"
    narrow: ClassVar[float] = 0.02  # relative to the entries, as for columns: under noise mixtures vanish as well

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Count the zeros of the inputs."""
        transposed, inputs = case.hypothesis.problem.factors.transposed, case.inputs
        errors = np.full(len(inputs), np.inf)
        if len(inputs) == 1 or case.hypothesis.problem.factors.is_coarse:  # in which small ones round to zero
            return np.zeros(len(inputs), dtype=bool), errors
        directions = transposed.left.T @ inputs.T
        directions = directions / np.maximum(np.linalg.norm(directions, axis=0), np.finfo(float).tiny)
        zeros = transposed.zeros(directions)
        widths = np.sqrt(len(zeros)) * transposed.tolerances(directions).mean(axis=0)
        proven = transposed.prove(directions, zeros) & (widths < self.narrow)
        by_zeros = errors_from_inputs(transposed, inputs[proven], zeros[:, proven])
        errors[proven] = np.hypot(by_zeros, case.errors_by_columns[2][proven])
        return proven, errors


class ReplayOfAll(Evidence):
    """The whole batch, run through the rest of the network, returns the gradient; behind activations without zeros.

    Each input has too few equations for a proof of its own where a head has hardly more classes than there are inputs.
    But if the columns that come back for all are those of the batch, ``P Q = I``, these are equations too.
    """

    kind = "replay of all"
    is_last_resort = True

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Compare what comes back with the columns."""
        problem, b = case.hypothesis.problem, len(case.columns)
        nothing = np.zeros(b, dtype=bool), np.full(b, np.inf)
        if problem.activation.has_flat_part or problem.rest is None or not np.isfinite(case.whitened).all():
            return nothing
        preactivations = as_tensor(problem.at(case.whitened)[0].T.copy())
        view = problem.rest.settled(preactivations)
        here = view.at(preactivations)
        overlaps = view.overlaps(preactivations, as_tensor(case.whitened), as_tensor(problem.forward.scale))
        off = (overlaps - torch.eye(b, dtype=overlaps.dtype)).abs().amax(dim=1)
        of_columns = torch.log10(off.clamp(min=LEAST_DISTANCE, max=1.0))[:, None].expand(-1, b - 1)
        chance = log_chance(torch.cat([here.log_chances, of_columns], dim=1), b - 1)
        if not (here.is_inside & (chance <= LOG_CHANCE)).all():
            return nothing
        return _with_errors(case, view, np.ones(b, dtype=bool))


def _in_line(over_noise: np.ndarray, *, least: float = 0.5, most: float = 5.0) -> np.ndarray:
    """Return which inputs are not far further from the spans than the others, by their noise.

    Among straight pieces a unit taken for off that was hardly on leaves a few times what the others do: certified, such
    an input was off by 15 expected errors. True ones leave about 0.4; `least` and `most` are not varied.
    """
    return over_noise <= np.maximum(least, most * np.median(over_noise))


def _by_view(case: Case, view: View | None) -> tuple[np.ndarray, np.ndarray]:
    """Return which inputs a view proves, each by itself, and how far they may be off by it."""
    if view is None or not view.identifies:
        return np.zeros(len(case.columns), dtype=bool), np.full(len(case.columns), np.inf)
    preactivations = as_tensor(case.hypothesis.problem.at(case.whitened)[0].T.copy())
    return _with_errors(case, view, view.at(preactivations).is_proof.numpy())


def _with_errors(case: Case, view: View, proven: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which of the inputs that are proven a view determines, and how far they may be off by it."""
    problem, b = case.hypothesis.problem, len(case.columns)
    errors = np.full(b, np.inf)
    _, products, direct = case.errors_by_columns
    known = np.where(case.columns & ~np.eye(b, dtype=bool), products, np.inf)
    by_view = errors_from_views(
        problem.factors,
        problem.forward.regressors(),
        problem.forward.scale,
        view,
        case.whitened[proven],
        case.disaggregation.T,
        known[proven],
    )
    errors[proven] = np.hypot(by_view, direct[proven])
    return proven & np.isfinite(errors), errors


@dataclass(frozen=True)
class ZerosOfAll(Evidence):
    """All columns are proven, whose pattern does not fit: dropout, or weights that are a little off.

    Parameters
    ----------
    consistent : float, default=0.8
        Share of the units with a gradient that have to be active by the weights: one half by chance. Of weights of
        another initialisation 2 of 16 columns reached 0.6.
    """

    kind: ClassVar[str] = "columns alone, pattern not confirmed"
    consistent: float = 0.8

    def prove(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Look for a contradiction of weights and gradient."""
        shares = case.consistency
        proven = case.columns.all() & (shares >= self.consistent) & np.all(shares > 0.5)
        return proven, np.full(len(shares), np.inf)

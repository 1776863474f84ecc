"""The state of the search by withheld gradients: columns found, remaining labels, and the final fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.optimize import nnls
from sklearn.base import BaseEstimator

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl_fl.certify.candidates import Candidates, SearchEnd
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.search.columns_and_forward_pass import SampleCoordinates, ScaledForward
from sparsedl_fl.search.joint_refinement import JointRefinement
from sparsedl_fl.search.natural_coordinates import NaturalCoordinates
from sparsedl_fl.search.schedule import Schedule
from sparsedl_fl.search.stage import Proposals, State
from sparsedl_fl.search.withheld.layer_reflection import OneLayerReflection
from sparsedl_fl.search.withheld.left_over import LeftOver, Minimisers
from sparsedl_fl.search.withheld.sparsest_vectors import SparseStarts
from sparsedl_fl.search.withheld.withheld_space import BackSpace

__all__ = ["WithheldSearch", "WithheldState"]

LEAST_APART = 1e-6
"""Smallest singular value of columns below which the new one repeats others: those of one label are nearly parallel."""

LIKE_ITS_LABEL = 0.85
"""Least cosine of the gradient at a column's activations with that for some label: differences of samples of one label
have hardly any gradient, and so fulfil all equations. (Four batches of 50 of CIFAR-10 at 200 Hardtanh units, not
trained: of samples no cosine was below 0.983, of eight such differences none above 0.822.)
"""

N_PROBES = 8
"""Number of prior draws at which the curvature of the final fit is measured."""


@dataclass(eq=False, repr=False, kw_only=True)
class WithheldSearch(BaseEstimator):
    """Search for an activation that is linear around zero: most units are active, and the gradient has few zeros.

    It requires all downstream layers, the head and its loss. A batch is recovered whole, or not at all: samples follow
    from the columns of all others.

    Parameters
    ----------
    sparse, reflection, left_over, joint_refinement : default=None
        The numerics, `SparseStarts`, `OneLayerReflection`, `LeftOver` and `JointRefinement`; None takes their defaults.
    patience, first_share : int and float, default=90 and 0.2
        Rounds of one stage each without a new column after which the search gives up, and the share of them after which
        it does where there is no column at all.
    reach : float, default=0.45
        Largest batch, as a share of the width: beyond, equations hardly outnumber unknowns.
    n_together, n_products : int and (int, int), default=12 and (1000, 6000)
        Steps and products of the final fit: before it, the last samples are exact to a thousandth, and separating three
        of them with one label takes many products.
    """

    sparse: SparseStarts | None = None
    reflection: OneLayerReflection | None = None
    left_over: LeftOver | None = None
    joint_refinement: JointRefinement | None = None
    patience: int = 90
    first_share: float = 0.2
    reach: float = 0.45
    n_together: int = 12
    n_products: tuple[int, int] = (1000, 6000)

    def applies(self, problem: LayerProblem) -> bool:
        """Return whether the activation is linear around zero, all downstream layers are known, and the batch small."""
        is_known = problem.batch_size > 1 and problem.has_tail and problem.backward is not None
        is_small = problem.batch_size <= self.reach * problem.width
        return problem.is_straight and is_known and is_small and bool(BackSpace.all_of(problem))


class WithheldState(State):
    """The state of that search.

    Parameters
    ----------
    search : WithheldSearch
        Its numerics.
    problem : LayerProblem
        The layer's gradient.
    is_over : callable
        Returns why the search ends, in words, or nothing: the last samples take long.
    generator : torch.Generator
        Source of randomness.

    Attributes
    ----------
    spaces : list of BackSpace
        Subspaces of gradients by downstream layers, the smallest first.
    columns : torch.Tensor of shape (k, b)
        Unit columns found, with where their units are active, ``is_active`` of shape (k, m).
    last_inputs : torch.Tensor of shape (b - k, b) or None
        All remaining samples, once these are found.
    minimisers : dict of tuple of int to list of Minimisers
        Local minimisers for the remaining samples, by the assumed count of each label.
    idle : int
        Rounds without anything new.
    """

    used_in_words = "gradient, weights and backpropagation through all later layers"

    def __init__(
        self, search: WithheldSearch, problem: LayerProblem, is_over: Callable[[], str], generator: torch.Generator
    ) -> None:
        self.schedule, self.is_wide, self.is_flat, self.n_starts = Schedule(), False, True, 0
        self.settings, self.problem, self.is_over, self.generator = search, problem, is_over, generator
        self.sparse = search.sparse or SparseStarts()
        self.reflection = search.reflection or OneLayerReflection()
        self.left_over = search.left_over or LeftOver()
        self.spaces, self.coordinates = BackSpace.all_of(problem), SampleCoordinates.of_problem(problem)
        self.rest, self.left = problem.tail_from_prior, as_tensor(problem.factors.left)
        m, b = self.left.shape
        self.columns = torch.zeros((0, b), dtype=torch.float64)
        self.is_active = torch.zeros((0, m), dtype=torch.bool)
        self.last_inputs: torch.Tensor | None = None
        self.minimisers: dict[tuple[int, ...], list[Minimisers]] = {}
        self.inputs: torch.Tensor | None = None
        self.errors: torch.Tensor | None = None
        self.idle = self._n_hits = self._n_spaces = 0

    @property
    def patience(self) -> int:
        """Fewer rounds where nothing at all is found."""
        return max(1, round(self.settings.patience * (1.0 if len(self.columns) else self.settings.first_share)))

    n_hits = property(lambda self: self._n_hits)
    n_known = n_found = property(lambda self: self.columns.shape[1] if self.is_complete else len(self.columns))

    @property
    def is_complete(self) -> bool:
        """Whether all columns are known, or all remaining samples."""
        return len(self.columns) == self.columns.shape[1] or self.last_inputs is not None

    @property
    def n_left(self) -> int:
        """Number of remaining samples."""
        return self.columns.shape[1] - len(self.columns)

    def next_space(self) -> BackSpace:
        """Return the spaces in turn."""
        self._n_spaces += 1
        return self.spaces[self._n_spaces % len(self.spaces)]

    def take(self, proposals: Proposals) -> bool:
        """Add new columns, or all remaining samples at once; return whether any is new."""
        n_before = self.n_known
        if proposals.inputs is not None:
            self.last_inputs = proposals.inputs
        elif proposals.columns is not None and len(proposals.columns):
            self._n_hits += len(proposals.columns)
            for column, pattern in zip(proposals.columns, proposals.is_active, strict=True):
                together = torch.cat([self.columns, column[None]])
                if len(together) <= together.shape[1] and torch.linalg.svdvals(together)[-1] > LEAST_APART:
                    self.columns, self.minimisers = together, {}
                    self.is_active = torch.cat([self.is_active, pattern[None]])
        self.idle = 0 if self.n_known > n_before else self.idle + 1
        return self.n_known > n_before

    def have_labels(self, gradients: torch.Tensor) -> torch.Tensor:
        """Return which gradients at activations, rows of shape (n, m), are like that for some label."""
        cosines = normalized(gradients, dim=1) @ normalized(self._gradients_by_label, dim=1).T
        return cosines.abs().amax(dim=1) >= LIKE_ITS_LABEL

    @cached_property
    def _gradients_by_label(self) -> torch.Tensor:
        """The gradient at the activations of the common part for each label, of shape (n_labels, m)."""
        common = ScaledForward.of(self.coordinates).offset
        n_labels = len(self.rest.shares)
        return self.problem.backward.at(common.expand(n_labels, -1), torch.arange(n_labels))[2][0]

    def labels_left(self) -> torch.Tensor:
        """Return the estimated count of each remaining label, (n_labels,), as many in all as remaining samples.

        The gradient of the bias is the sum of all columns: of those found, with sizes approximated by their labels, and
        of the remaining ones, approximated by their labels altogether.
        """
        n_left, by_label, space = self.n_left, self._gradients_by_label, self.spaces[-1]
        passed, withheld = space.entries(space.fitted(self.is_active))
        products = (passed - withheld) @ by_label.T
        cosines = products / torch.linalg.vector_norm(by_label, dim=1)
        label = cosines.abs().argmax(dim=1, keepdim=True)
        scale = by_label.square().sum(dim=1)[label] / products.gather(1, label)
        found = passed * scale.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        parts = torch.cat([found.sum(dim=0, keepdim=True), found, -found, by_label])
        # The expected error of the approximations: those found may differ by it, and the remaining ones at all units.
        size = torch.linalg.vector_norm(by_label, dim=1).mean() * 2 * (n_left / len(self.left)) ** 0.5
        ridge = torch.zeros((len(parts), len(parts)), dtype=parts.dtype)
        ridge.diagonal()[1 : 1 + 2 * len(found)] = size
        total = torch.cat([self.left @ self.coordinates.scale, torch.zeros(len(parts), dtype=parts.dtype)])
        try:
            shares = torch.from_numpy(nnls(torch.cat([parts.T, ridge]).numpy(), total.numpy())[0][-len(by_label) :])
        except RuntimeError:  # it does not converge
            shares = torch.zeros(len(by_label), dtype=parts.dtype)
        shares = shares if shares.any() else torch.ones_like(shares)
        return shares * n_left / shares.sum()

    def settle(self, generator: torch.Generator) -> None:
        """Fit a whole batch at once, unless it is no basis, and estimate its errors by draws of the noise."""
        if not self.is_complete:
            return
        columns = self.columns
        if self.last_inputs is not None:
            here = self.rest.at(self.last_inputs @ self.coordinates.forward.T + self.coordinates.kink)
            columns = torch.cat([columns, self.rest.space.columns(here.directions)])
        inputs, is_singular = torch.linalg.inv_ex(columns.T)
        inputs = inputs / (inputs @ self.coordinates.scale)[:, None]
        if is_singular or not inputs.isfinite().all():
            return
        tail = self.rest.settled(inputs @ self.coordinates.forward.T + self.coordinates.kink)
        natural = NaturalCoordinates.of(ScaledForward.of(self.coordinates), tail, generator, N_PROBES)
        joint_refinement = self.settings.joint_refinement or JointRefinement(
            n_together=self.settings.n_together, n_products=self.settings.n_products
        )
        together = joint_refinement.together(natural, tail, tail, self.left, inputs)
        self.inputs, changes = together.inputs, joint_refinement.errors(together, generator)
        if changes is not None:
            squares = (changes * self.coordinates.sizes).square().sum(dim=2).mean(dim=0)
            self.errors = (squares / self.problem.layer_gradient.shape[1]).sqrt()

    def candidates(self, status: str, end: SearchEnd, n_starts: int) -> Candidates:
        """Return the batch, or the columns found."""
        columns = self.columns if self.inputs is None else normalized(torch.linalg.inv(self.inputs).T, dim=1)
        directions = columns.numpy().T.copy()
        if self.inputs is None and end is SearchEnd.COMPLETE:
            status, end = f"the columns are no basis, {status}", SearchEnd.EXHAUSTED
        return Candidates(
            directions=directions,
            n_zeros=self.problem.factors.zeros(directions).sum(axis=0),
            status=status,
            n_starts=n_starts,
            n_successes=self.n_hits,
            inputs=None if self.inputs is None else normalized(self.inputs, dim=1).numpy(),
            errors=None if self.errors is None else self.errors.numpy(),
            end=end,
        )

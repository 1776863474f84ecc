"""Columns by what units that are off withhold, round by round, and then the inputs of which hardly any is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.optimize import nnls
from sklearn.base import BaseEstimator

from sparsedl.arrays import as_tensor
from sparsedl.linalg import normalized
from sparsedl_fl.certify.candidates import Candidates
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.search.columns_and_forward_pass import SampleCoordinates, ScaledForward
from sparsedl_fl.search.joint_refinement import JointRefinement
from sparsedl_fl.search.natural_coordinates import NaturalCoordinates
from sparsedl_fl.search.withheld.joint_equations import LeftEquations
from sparsedl_fl.search.withheld.layer_reflection import OneLayerReflection
from sparsedl_fl.search.withheld.left_over import Ends, LeftOver
from sparsedl_fl.search.withheld.sparsest_vectors import SparseStarts
from sparsedl_fl.search.withheld.withheld_space import BackSpace

__all__ = ["WithheldSearch"]

LEAST_APART = 1e-6
"""Smallest singular value of columns up to which one is no other: those of one label are nearly parallel."""

LIKE_ITS_LABEL = 0.85
"""Least cosine of what comes back to a column with what does for some label: differences of inputs of one label have
hardly any gradient, and so fulfil all equations. (Four batches of 50 of CIFAR-10 behind 200 Hardtanh units, not
trained: of inputs no cosine was below 0.983, of eight such differences none above 0.822.)
"""

DENIED = 0.5
"""How often a label counts as left that does not seem to be."""

IN_DOUBT = 0.5
"""By how much of an input a count of labels may be off."""

N_PROBES = 8
"""Places that show what the equations of a last fit are worth along each axis."""


@dataclass(eq=False, repr=False, kw_only=True)
class WithheldSearch(BaseEstimator):
    """Search behind an activation that is straight around zero: most units are on, and zeros of the gradient few.

    It takes the whole way back to be known, the head and its loss included. A batch comes back whole, or not at all:
    inputs follow from the columns of all others.

    Parameters
    ----------
    sparse, reflection, left_over, joint_refinement : default=None
        The stages, `SparseStarts`, `OneLayerReflection`, `LeftOver` and `JointRefinement`; None takes their defaults.
    patience, first_share : int and float, default=30 and 0.2
        Rounds without a new column after which the search gives up, and the share of them that it takes to be hopeless
        where there is none at all.
    reach : float, default=0.45
        Share of the width up to which a batch is looked for: beyond, equations hardly say more than there are unknowns.
    n_together, n_products : int and (int, int), default=12 and (1000, 6000)
        Of the last fit: the inputs left over are no nearer than a thousandth before, and where three of them have one
        label, what tells them apart takes many products to show.
    """

    sparse: SparseStarts | None = None
    reflection: OneLayerReflection | None = None
    left_over: LeftOver | None = None
    joint_refinement: JointRefinement | None = None
    patience: int = 30
    first_share: float = 0.2
    reach: float = 0.45
    n_together: int = 12
    n_products: tuple[int, int] = (1000, 6000)

    def applies(self, problem: LayerProblem) -> bool:
        """Return whether the activation is straight around zero, and the way back known."""
        is_known = problem.batch_size > 1 and problem.has_tail and problem.backward is not None
        is_small = problem.batch_size <= self.reach * problem.width
        return problem.is_straight and is_known and is_small and bool(BackSpace.all_of(problem))

    def run(
        self,
        problem: LayerProblem,
        is_over: Callable[[int], str],
        generator: torch.Generator,
        report: Callable[[int, str], None],
    ) -> Candidates:
        """Search until the batch is whole.

        Parameters
        ----------
        problem : LayerProblem
            Weights and gradients.
        is_over : callable
            Takes the starts so far, and says, in words, that the budget is spent.
        generator : torch.Generator
            Source of randomness.
        report : callable
            Takes the number of columns and a text.
        """
        rounds, idle = _Rounds(self, problem, is_over, generator), 0

        def is_patient() -> bool:
            return idle < self.patience * (1.0 if len(rounds.columns) else self.first_share)

        while not rounds.is_complete and is_patient() and not rounds.is_over():
            n_before = len(rounds.columns)
            rounds.run_next(idle)
            idle = 0 if len(rounds.columns) > n_before else idle + 1
            report(len(rounds.columns), f"{rounds.n_starts} starts, {rounds.n_hits} in a column")
        status = "complete" if rounds.is_complete else rounds.is_over() or f"nothing new in {idle} rounds"
        return self._found(rounds, status)

    def from_columns(self, problem: LayerProblem, columns: torch.Tensor, generator: torch.Generator) -> Candidates:
        """Return the batch of all its columns, as rows of shape (b, b), with nothing left to search for."""
        rounds = _Rounds(self, problem, lambda n_starts: "", generator)
        rounds.columns = columns
        return self._found(rounds, "complete")

    @staticmethod
    def _found(rounds: _Rounds, status: str) -> Candidates:
        inputs, errors = rounds.settled() if rounds.is_complete else (None, None)
        if inputs is None and rounds.is_complete:
            status = "the columns are no basis"
        columns = rounds.columns if inputs is None else normalized(torch.linalg.inv(inputs).T, dim=1)
        directions = columns.numpy().T.copy()
        return Candidates(
            directions=directions,
            n_zeros=rounds.problem.factors.zeros(directions).sum(axis=0),
            status=f"{status} (views: gradient, weights and the way back through the layers behind)",
            n_starts=rounds.n_starts,
            n_successes=rounds.n_hits,
            inputs=None if inputs is None else normalized(inputs, dim=1).numpy(),
            errors=None if errors is None else errors.numpy(),
        )


class _Rounds:
    """One round after the other on a problem."""

    def __init__(
        self, search: WithheldSearch, problem: LayerProblem, is_over: Callable[[int], str], generator: torch.Generator
    ) -> None:
        self.sparse = search.sparse or SparseStarts()
        self.reflection = search.reflection or OneLayerReflection()
        self.left_over = search.left_over or LeftOver()
        self.joint_refinement = search.joint_refinement or JointRefinement(
            n_together=search.n_together, n_products=search.n_products
        )
        self.n_starts = self.n_hits = self.n_rounds = 0
        self.problem, self.generator, self.is_over = problem, generator, lambda: is_over(self.n_starts)
        self.spaces, self.views = BackSpace.all_of(problem), SampleCoordinates.of_problem(problem)
        self.rest, self.left = problem.tail_from_prior, as_tensor(problem.factors.left)
        m, b = self.left.shape
        self.columns = torch.zeros((0, b), dtype=torch.float64)
        self.is_on = torch.zeros((0, m), dtype=torch.bool)
        self.last_inputs: torch.Tensor | None = None
        self.ends: dict[tuple[int, ...], list[Ends]] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all columns, or what is left, are known."""
        return len(self.columns) == self.columns.shape[1] or self.last_inputs is not None

    def run_next(self, idle: int) -> None:
        """Run a round: sparse starts in one space after the other, reflections as well once all had their turn.

        Few inputs that are left are looked for at once, more of them after as many more idle rounds.
        """
        n_left = self.columns.shape[1] - len(self.columns)
        if 0 < n_left <= min(self.left_over.most, self.left_over.few * (1 + idle)):
            self._try_what_is_left()
            if self.is_complete:
                return
        space = self.spaces[self.n_rounds % len(self.spaces)]
        known = space.entries(space.fitted(self.is_on))[1]
        self._take(space, self.sparse.candidates(space, known, self.generator))
        self.n_rounds, self.n_starts = self.n_rounds + 1, self.n_starts + self.sparse.n_starts
        if self.n_rounds >= len(self.spaces) and not self.is_complete:
            self._reflect(space)

    def _reflect(self, space: BackSpace) -> None:
        n_starts = self.reflection.starts_per_input * self.columns.shape[1]
        likely = self._labels_left().clamp(min=DENIED)
        labels = torch.multinomial(likely, n_starts, replacement=True, generator=self.generator)
        forward = ScaledForward.of(self.views.knowing(self.columns))
        z = self.reflection.preactivations(forward, self.left, self.problem.backward, labels, self.generator)
        is_on = ~self.problem.activation.is_off(z)
        self._take(space, self.sparse.near(space, is_on))
        self.n_starts += n_starts

    def _take(self, space: BackSpace, candidates: torch.Tensor) -> None:
        """Take in those that are columns, and new."""
        columns, is_on = space.columns(candidates)
        passed, withheld = space.entries(space.fitted(is_on))
        has_label = self.have_labels(passed - withheld)
        columns, is_on = columns[has_label], is_on[has_label]
        self.n_hits += len(columns)
        for column, pattern in zip(columns, is_on, strict=True):
            together = torch.cat([self.columns, column[None]])
            if len(together) <= together.shape[1] and torch.linalg.svdvals(together)[-1] > LEAST_APART:
                self.columns, self.is_on, self.ends = together, torch.cat([self.is_on, pattern[None]]), {}

    def have_labels(self, back: torch.Tensor) -> torch.Tensor:
        """Return which gradients at activations, rows of shape (n, m), are like what comes back for some label."""
        cosines = normalized(back, dim=1) @ normalized(self._gradients_by_label, dim=1).T
        return cosines.abs().amax(dim=1) >= LIKE_ITS_LABEL

    @cached_property
    def _gradients_by_label(self) -> torch.Tensor:
        """What comes back for each label where inputs are on average, to activations, of shape (n_labels, m)."""
        place = ScaledForward.of(self.views).offset
        n_labels = len(self.rest.shares)
        return self.problem.backward.at(place.expand(n_labels, -1), torch.arange(n_labels))[2][0]

    def _labels_left(self) -> torch.Tensor:
        """Return how often each label seems to be left, (n_labels,), as many in all as there are inputs.

        The gradient of the bias is the sum of all columns: of those found, whose sizes their label tells, about, and of
        those that are left, which are those of their label, about.
        """
        n_left, by_label, space = self.columns.shape[1] - len(self.columns), self._gradients_by_label, self.spaces[-1]
        passed, withheld = space.entries(space.fitted(self.is_on))
        products = (passed - withheld) @ by_label.T
        cosines = products / torch.linalg.vector_norm(by_label, dim=1)
        label = cosines.abs().argmax(dim=1, keepdim=True)
        scale = by_label.square().sum(dim=1)[label] / products.gather(1, label)
        found = passed * scale.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        parts = torch.cat([found.sum(dim=0, keepdim=True), found, -found, by_label])
        # Those found differ from what their label tells by so much, and those left by a multiple of that in all units.
        size = torch.linalg.vector_norm(by_label, dim=1).mean() * 2 * (n_left / len(self.left)) ** 0.5
        ridge = torch.zeros((len(parts), len(parts)), dtype=parts.dtype)
        ridge.diagonal()[1 : 1 + 2 * len(found)] = size
        total = torch.cat([self.left @ self.views.scale, torch.zeros(len(parts), dtype=parts.dtype)])
        try:
            shares = torch.from_numpy(nnls(torch.cat([parts.T, ridge]).numpy(), total.numpy())[0][-len(by_label) :])
        except RuntimeError:  # it does not end
            shares = torch.zeros(len(by_label), dtype=parts.dtype)
        shares = shares if shares.any() else torch.ones_like(shares)
        return shares * n_left / shares.sum()

    def _try_what_is_left(self) -> None:
        """Look for all inputs that are left at once, with their likeliest labels first, and then about these."""
        shares = self._labels_left()
        counts = shares.floor().long()
        doubt = IN_DOUBT * torch.rand(shares.shape, generator=self.generator, dtype=shares.dtype) * bool(self.ends)
        n_open = self.columns.shape[1] - len(self.columns) - int(counts.sum())
        counts[(shares - counts + doubt).argsort(descending=True)[:n_open]] += 1
        labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
        views = self.views.knowing(self.columns)
        equations = LeftEquations.of(views, self.rest, self.left, labels)
        before = self.ends.setdefault(tuple(counts.tolist()), [])
        before.append(self.left_over.ends(equations, before, self.is_over, self.generator))
        self.n_starts += self.left_over.n_starts
        if before[-1].costs[0] < self.left_over.enough:
            self.last_inputs = equations.inputs(before[-1].coordinates[0])

    def settled(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the batch, fitted all at once, as ``p`` at their true scale, and how exact; None for no basis."""
        columns = self.columns
        if self.last_inputs is not None:
            here = self.rest.at(self.last_inputs @ self.views.forward.T + self.views.kink)
            columns = torch.cat([columns, self.rest.space.columns(here.directions)])
        inputs, is_singular = torch.linalg.inv_ex(columns.T)
        inputs = inputs / (inputs @ self.views.scale)[:, None]
        if is_singular or not inputs.isfinite().all():
            return None, None
        rest = self.rest.settled(inputs @ self.views.forward.T + self.views.kink)
        natural = NaturalCoordinates.of(ScaledForward.of(self.views), rest, self.generator, N_PROBES)
        together = self.joint_refinement.together(natural, rest, rest, self.left, inputs)
        changes = self.joint_refinement.errors(together, self.generator)
        if changes is None:
            return together.inputs, None
        squares = (changes * self.views.sizes).square().sum(dim=2).mean(dim=0)
        return together.inputs, (squares / self.problem.layer_gradient.shape[1]).sqrt()

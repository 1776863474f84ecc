"""From a layer's gradient to its batch: search, choice of columns and assembly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsedl.arrays import RandomState
from sparsedl_fl.certify.assembly import Assembly, Batch
from sparsedl_fl.certify.candidates import Candidates, SearchEnd
from sparsedl_fl.certify.criterion import EvidenceKind
from sparsedl_fl.certify.hypothesis import Hypothesis
from sparsedl_fl.certify.sparsity_matching import choose
from sparsedl_fl.constraints.problem import LayerProblem
from sparsedl_fl.directions import Directions
from sparsedl_fl.lowrank.factorization import with_one_more_by_bias

__all__ = ["LayerRecovery"]


@dataclass(frozen=True)
class LayerRecovery:
    """A batch, and what it was recovered from.

    Attributes
    ----------
    problem : LayerProblem
        The layer's gradient, with the noise that the columns found show.
    candidates : Candidates
        What the search proposed.
    hypothesis : Hypothesis
        The columns chosen.
    batch : Batch
        The inputs, and their certificate.
    """

    problem: LayerProblem
    candidates: Candidates
    hypothesis: Hypothesis
    batch: Batch

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended the search or the choice early."""
        return self.hypothesis.is_interrupted or self.candidates.end == SearchEnd.INTERRUPTED

    @property
    def is_explained(self) -> bool:
        """Whether the batch explains the gradient at all: its residual is smaller than that."""
        return self.batch.relative_residual < 1

    @property
    def is_whole(self) -> bool:
        """Whether all inputs are certified, or one of two that share their zeros for both."""
        n_for_two = np.sum(self.batch.recovered & (self.batch.evidence == EvidenceKind.SHARED_ZEROS))
        return bool(np.sum(~self.batch.recovered) <= n_for_two)

    @classmethod
    def of(
        cls,
        problem: LayerProblem,
        directions: Directions,
        batch_size: int | None = None,
        noise_level: float | None = None,
        random_state: RandomState = None,
        verbose: bool = False,
    ) -> LayerRecovery:
        """Recover a batch; with one more input where the bias may show it, if the batch is whole then.

        Parameters
        ----------
        problem : LayerProblem
            The layer's gradient.
        directions : Directions
            The search.
        batch_size, noise_level, random_state, verbose
            As of `sparsedl_fl.GradientInverter`, the noise at the scale of the problem.
        """
        run = directions, random_state, verbose
        if batch_size in (None, problem.batch_size + 1):
            given = with_one_more_by_bias(problem.layer_gradient, problem.factors, batch_size, noise_level)
            if given is not None:
                with_one = cls._as_it_is(LayerProblem.of(given, batch_size, noise_level), *run)
                if with_one.is_whole or with_one.is_interrupted:
                    return with_one
                without = cls._as_it_is(problem, *run)
                return max(without, with_one, key=lambda found: (found.batch.recovered.sum(), found.is_explained))
        return cls._as_it_is(problem, *run)

    @classmethod
    def _as_it_is(
        cls, problem: LayerProblem, directions: Directions, random_state: RandomState, verbose: bool
    ) -> LayerRecovery:
        candidates = directions.propose(problem, random_state=random_state, verbose=verbose)
        problem = problem.calibrated(candidates.directions)
        hypothesis = choose(problem, candidates)
        return cls(problem, candidates, hypothesis, Assembly().of(hypothesis))

"""Laws that every public proposer of directions obeys."""

import numpy as np
import pytest
from sklearn.base import clone

from sparsedl_fl import LayerGradient, directions
from sparsedl_fl.constraints.problem import LayerProblem

MAKERS = {
    directions.ActivationDirections: lambda batch: directions.ActivationDirections(),
    directions.DictionaryDirections: lambda batch: directions.DictionaryDirections(),
    directions.KernelDirections: lambda batch: directions.KernelDirections(),
    directions.KnownInputs: lambda batch: directions.KnownInputs(inputs=batch),
    directions.PriorDirections: lambda batch: directions.PriorDirections(inputs=batch + 0.3),
}


def test_the_list_is_complete():
    public = {getattr(directions, name) for name in directions.__all__}
    concrete = {
        kind
        for kind in public
        if isinstance(kind, type) and issubclass(kind, directions.Directions) and not kind.__abstractmethods__
    }
    assert concrete == set(MAKERS)


@pytest.mark.parametrize("kind", MAKERS)
class TestDirections:
    def test_proposes_the_true_columns(self, kind, small_problem):
        batch, model, gradient = small_problem
        layer_gradient = LayerGradient.from_model(model, gradient)
        problem = LayerProblem.of(layer_gradient)
        candidates = MAKERS[kind](batch).propose(problem, random_state=0)
        np.testing.assert_allclose(np.linalg.norm(candidates.directions, axis=0), 1)
        true = np.linalg.inv(batch @ problem.factors.right.T / problem.factors.singular_values)
        cosines = np.abs((true / np.linalg.norm(true, axis=0)).T @ candidates.directions)
        np.testing.assert_allclose(cosines.max(axis=1), 1, atol=1e-10)

    def test_counts_the_zeros(self, kind, small_problem):
        batch, model, gradient = small_problem
        layer_gradient = LayerGradient.from_model(model, gradient)
        problem = LayerProblem.of(layer_gradient)
        candidates = MAKERS[kind](batch).propose(problem, random_state=0)
        np.testing.assert_array_equal(candidates.n_zeros, problem.factors.zeros(candidates.directions).sum(axis=0))
        assert 0 < candidates.n_successes <= candidates.n_starts

    def test_same_seed_same_candidates(self, kind, small_problem):
        batch, model, gradient = small_problem
        layer_gradient = LayerGradient.from_model(model, gradient)
        problem = LayerProblem.of(layer_gradient)
        one, two = (MAKERS[kind](batch).propose(problem, random_state=5).directions for _ in range(2))
        np.testing.assert_array_equal(one, two)

    def test_clones(self, kind):
        assert clone(kind()).get_params(deep=False) == kind().get_params(deep=False)

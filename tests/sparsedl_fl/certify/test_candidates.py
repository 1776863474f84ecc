import numpy as np

from sparsedl_fl import LayerGradient
from sparsedl_fl.certify.candidates import Candidates
from sparsedl_fl.constraints.problem import LayerProblem


def test_nothing_is_incomplete():
    nothing = Candidates.empty(4)
    assert nothing.n_missing == 4
    assert not nothing.is_complete
    assert nothing.selection().shape == (4, 0)


def test_the_sparsest_independent_ones_are_selected():
    directions = np.eye(3)[:, [0, 0, 1, 2]]
    directions[:, 1] = [0.6, 0.8, 0]
    found = Candidates(directions, np.array([5, 9, 3, 1]), "", 4, 4)
    np.testing.assert_array_equal(found.selection(), directions[:, [1, 0, 3]])
    assert found.is_complete


def test_another_search_adds_directions_and_starts(small_problem):
    batch, model, gradient = small_problem
    factors = LayerProblem.of(LayerGradient.from_model(model, gradient)).factors
    true = np.linalg.inv(batch @ factors.right.T / factors.singular_values)
    true /= np.linalg.norm(true, axis=0)
    first = Candidates(true[:, :5], factors.zeros(true[:, :5]).sum(axis=0), "gave up", 10, 5)
    both = first.joined(true[:, 5:], factors, Candidates(true[:, 5:], np.zeros(3), "complete", 7, 3))
    assert both.is_complete
    assert (both.status, both.n_starts, both.n_successes) == ("complete", 17, 8)
    np.testing.assert_array_equal(both.n_zeros, factors.zeros(true).sum(axis=0))

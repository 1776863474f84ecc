import numpy as np
import pytest

from sparsedl_fl import LayerGradient
from sparsedl_fl.candidates import Candidates
from sparsedl_fl.lowrank import factorize
from sparsedl_fl.matching import ForwardView, _swap_scores, greedy_filter, repair, sample_agreement


@pytest.fixture
def problem(small_problem):
    """The layer, its factors, the forward view, and the true unit columns."""
    batch, model, gradient = small_problem
    layer_gradient = LayerGradient.from_model(model, gradient)
    factors = factorize(layer_gradient)
    true = np.linalg.inv(batch @ factors.right.T / factors.singular_values)
    true /= np.linalg.norm(true, axis=0)
    return layer_gradient, factors, ForwardView.of(layer_gradient, factors), true


def candidates(factors, directions):
    return Candidates(directions, factors.zeros(directions).sum(axis=0), "complete", 1, 1)


def test_matching_is_one_at_the_truth(problem, small_problem):
    layer_gradient, factors, view, true = problem
    preactivations = view.preactivations(np.linalg.inv(true))
    batch = small_problem[0]
    expected = layer_gradient.weight @ batch.T + layer_gradient.bias[:, None]
    np.testing.assert_allclose(preactivations, expected, atol=1e-9)
    np.testing.assert_array_equal(sample_agreement(preactivations, factors.zeros(true)), np.ones(8))


def test_rank_one_scores_are_those_of_fresh_inverses(problem):
    _, factors, view, true = problem
    rng = np.random.default_rng(0)
    basis = true.copy()
    basis[:, 2] = rng.standard_normal(8)
    basis[:, 2] /= np.linalg.norm(basis[:, 2])
    candidate = rng.standard_normal(8)
    candidate /= np.linalg.norm(candidate)
    zeros, candidate_zeros = factors.zeros(basis), factors.zeros(candidate[:, None])[:, 0]
    expected = []
    for j in range(8):
        swapped, swapped_zeros = basis.copy(), zeros.copy()
        swapped[:, j], swapped_zeros[:, j] = candidate, candidate_zeros
        expected.append(sample_agreement(view.preactivations(np.linalg.inv(swapped)), swapped_zeros).sum())
    inverse = np.linalg.inv(basis)
    projected = view.project(inverse)
    scores = _swap_scores(view, projected, inverse @ view.scale, zeros, inverse @ candidate, candidate_zeros)
    np.testing.assert_allclose(scores, expected)


def test_greedy_filter_swaps_wrong_columns_out(problem):
    _, factors, view, true = problem
    # Mixtures that claim to be sparser than the truth are chosen first, and have to go.
    mixtures = true[:, [0, 1]] + true[:, [2, 3]]
    mixtures /= np.linalg.norm(mixtures, axis=0)
    pool = Candidates(np.hstack([mixtures, true]), np.r_[900, 900, np.full(8, 40)], "complete", 1, 1)
    basis, proposed = greedy_filter(view, factors, pool)
    cosines = np.abs(true.T @ basis)
    np.testing.assert_allclose(np.sort(cosines.max(axis=1)), 1)
    assert proposed.all()


def test_a_missing_column_is_completed_and_marked(problem):
    _, factors, view, true = problem
    basis, proposed = greedy_filter(view, factors, candidates(factors, true[:, :6]))
    assert proposed.tolist() == [True] * 6 + [False] * 2
    assert np.linalg.matrix_rank(basis) == 8


def test_nothing_found_is_a_basis_too(problem):
    _, factors, view, true = problem
    basis, proposed = greedy_filter(view, factors, candidates(factors, true[:, :0]))
    assert not proposed.any()
    assert np.linalg.matrix_rank(basis) == 8


class TestRepair:
    def test_the_last_missing_column_is_found(self, problem):
        _, factors, view, true = problem
        incomplete = greedy_filter(view, factors, candidates(factors, true[:, 1:]))
        basis, proposed = repair(view, factors, *incomplete)
        assert proposed.all()
        np.testing.assert_allclose(np.abs(true.T @ basis).max(axis=1), 1)

    def test_a_mixture_that_passed_for_a_column_is_replaced(self, problem):
        _, factors, view, true = problem
        wrong = true.copy()
        wrong[:, 0] += true[:, 1] - 0.5 * true[:, 2]
        wrong[:, 0] /= np.linalg.norm(wrong[:, 0])
        basis, _ = repair(view, factors, wrong, np.ones(8, dtype=bool))
        np.testing.assert_allclose(np.abs(true.T @ basis).max(axis=1), 1)

    def test_the_truth_stays(self, problem):
        _, factors, view, true = problem
        basis, proposed = repair(view, factors, true, np.ones(8, dtype=bool))
        np.testing.assert_array_equal(basis, true)
        assert proposed.all()

    def test_where_all_is_wrong_nothing_counts_as_found(self, problem):
        _, factors, view, _ = problem
        random = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))[0]
        _, proposed = repair(view, factors, random, np.zeros(8, dtype=bool))
        assert not proposed.all()


def test_a_unit_of_an_update_is_active_at_either_end():
    rng = np.random.default_rng(0)
    W, bias, X = rng.standard_normal((30, 12)), rng.standard_normal(30), rng.standard_normal((4, 12))
    D = rng.standard_normal((30, 4))
    update = LayerGradient(W, bias, D @ X, D.sum(axis=1), learning_rate=0.05)
    factors = factorize(update)
    view = ForwardView.of(update, factors)
    inverse = X @ factors.right.T / factors.singular_values
    moved = (W - 0.05 * D @ X) @ X.T + (bias - 0.05 * D.sum(axis=1))[:, None]
    start = W @ X.T + bias[:, None]
    np.testing.assert_allclose(view.preactivations(inverse), np.maximum(start, moved), atol=1e-9)
    np.testing.assert_allclose(update.preactivations(X), np.maximum(start, moved), atol=1e-12)
    np.testing.assert_allclose(view.drift(inverse), np.sqrt(np.mean((moved - start) ** 2, axis=0)), atol=1e-9)

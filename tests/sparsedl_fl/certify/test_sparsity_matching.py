from dataclasses import replace

import numpy as np
import pytest

from sparsedl_fl import LayerGradient
from sparsedl_fl.certify.candidates import Candidates
from sparsedl_fl.certify.hypothesis import Hypothesis, pattern_agreement
from sparsedl_fl.certify.sparsity_matching import _swap_scores, choose, first_choice, greedy_filter, repair
from sparsedl_fl.constraints.problem import LayerProblem


@pytest.fixture
def problem(small_problem):
    """The problem, and the true unit columns."""
    batch, model, gradient = small_problem
    problem = LayerProblem.of(LayerGradient.from_model(model, gradient))
    true = np.linalg.inv(batch @ problem.factors.right.T / problem.factors.singular_values)
    return problem, true / np.linalg.norm(true, axis=0)


def candidates(problem, directions):
    return Candidates(directions, problem.factors.zeros(directions).sum(axis=0), "complete", 1, 1)


def filtered(problem, pool):
    return greedy_filter(first_choice(problem, pool), pool)


def unit(columns):
    return columns / np.linalg.norm(columns, axis=0)


def test_rank_one_scores_are_those_of_fresh_inverses(problem):
    problem, true = problem
    rng = np.random.default_rng(0)
    basis = true.copy()
    basis[:, 2] = unit(rng.standard_normal(8))
    candidate = unit(rng.standard_normal(8))
    hypothesis = Hypothesis(problem, basis, np.ones(8, dtype=bool))
    zeros, candidate_zeros = hypothesis.zeros, problem.factors.zeros(candidate[:, None])[:, 0]
    expected = []
    for j in range(8):
        swapped_zeros = zeros.copy()
        swapped_zeros[:, j] = candidate_zeros
        expected.append(pattern_agreement(hypothesis.swapped(j, candidate).is_active, swapped_zeros).sum())
    inverse = hypothesis.inverse
    projected = problem.forward.project(inverse)
    scores = _swap_scores(problem, projected, hypothesis.scale, zeros, inverse @ candidate, candidate_zeros)
    np.testing.assert_allclose(scores, expected)


def test_greedy_filter_swaps_wrong_columns_out(problem):
    problem, true = problem
    # Mixtures that claim to be sparser than the truth are chosen first, and have to go.
    mixtures = unit(true[:, [0, 1]] + true[:, [2, 3]])
    pool = Candidates(np.hstack([mixtures, true]), np.r_[900, 900, np.full(8, 40)], "complete", 1, 1)
    assert not first_choice(problem, pool).fits.all()
    chosen = filtered(problem, pool)
    np.testing.assert_allclose(np.sort(np.abs(true.T @ chosen.basis).max(axis=1)), 1)
    assert chosen.proposed.all()


def test_inputs_known_by_themselves_stay_whatever_columns_are_swapped(problem):
    problem, true = problem
    mixtures = unit(true[:, [0, 1]] + true[:, [2, 3]])
    pool = Candidates(np.hstack([mixtures, true]), np.r_[900, 900, np.full(8, 40)], "complete", 1, 1)
    inputs = np.linalg.inv(true)[:7]
    chosen = choose(problem, replace(pool, inputs=inputs))
    there = np.isfinite(chosen.known).all(axis=1)
    assert there.sum() == 7
    own = np.abs(chosen.known[there] @ chosen.basis)
    assert (own.argmax(axis=1) == np.flatnonzero(there)).all()


def test_inputs_that_share_their_likeliest_column_have_one_each(problem):
    problem, true = problem
    basis = true.copy()
    basis[:, 1] = unit(true[:, 0] + true[:, 1])
    basis[:, 0] = unit(true[:, 7] + 1e-2 * true[:, 0])
    basis[:, 7] = unit(true[:, 7] - 1e-2 * true[:, 0])
    pool = replace(candidates(problem, basis), inputs=np.linalg.inv(true)[:2])
    assert np.isfinite(first_choice(problem, pool).known).all(axis=1).sum() == 2


def test_a_missing_column_is_completed_and_marked(problem):
    problem, true = problem
    chosen = filtered(problem, candidates(problem, true[:, :6]))
    assert chosen.proposed.tolist() == [True] * 6 + [False] * 2
    assert np.linalg.matrix_rank(chosen.basis) == 8


def test_nothing_found_is_a_basis_too(problem):
    problem, true = problem
    chosen = choose(problem, candidates(problem, true[:, :0]))
    assert not chosen.proposed.any()
    assert np.linalg.matrix_rank(chosen.basis) == 8


def test_an_interrupt_keeps_what_was_chosen(problem, monkeypatch):
    problem, true = problem

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("sparsedl_fl.certify.sparsity_matching.greedy_filter", interrupted)
    assert choose(problem, candidates(problem, true)).proposed.all()


class TestRepair:
    def test_the_last_missing_column_is_found(self, problem):
        problem, true = problem
        repaired = repair(filtered(problem, candidates(problem, true[:, 1:])))
        assert repaired.proposed.all()
        np.testing.assert_allclose(np.abs(true.T @ repaired.basis).max(axis=1), 1)

    def test_a_mixture_that_passed_for_a_column_is_replaced(self, problem):
        problem, true = problem
        wrong = true.copy()
        wrong[:, 0] = unit(true[:, 0] + true[:, 1] - 0.5 * true[:, 2])
        repaired = repair(Hypothesis(problem, wrong, np.ones(8, dtype=bool)))
        np.testing.assert_allclose(np.abs(true.T @ repaired.basis).max(axis=1), 1)

    def test_the_truth_stays(self, problem):
        problem, true = problem
        repaired = repair(Hypothesis(problem, true, np.ones(8, dtype=bool)))
        np.testing.assert_array_equal(repaired.basis, true)
        assert repaired.proposed.all()

    def test_where_all_is_wrong_nothing_counts_as_found(self, problem):
        random = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))[0]
        assert not repair(Hypothesis(problem[0], random, np.zeros(8, dtype=bool))).proposed.any()

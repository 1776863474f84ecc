"""What is called likely is like the truth; the laws behind it hold by themselves."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from sparsedl_fl import LayerGradient
from sparsedl_fl.audit.likely import disagreements, expected_correlation, likely_candidates
from tests.hostile.calibration import Problem, run_problem, summary

M, N, B = 400, 40, 6

QUICK = [
    Problem("perceptron, digits", "2 or 3 steps, momentum", 7),
    Problem("CNN, photographs", "noise", 24),
    Problem("perceptron, numbers", "4 bits", 35),
    Problem("perceptron, photographs", "4 bits", 45),
    Problem("perceptron, photographs", "2 or 3 steps, momentum", 68),
    Problem("perceptron, numbers", "4 bits", 107),
    Problem("perceptron, photographs", "4 bits", 116),
    Problem("perceptron, photographs", "4 bits", 117),
    Problem("CNN, photographs", "2 to 9 steps", 129),
    Problem("perceptron, digits", "8 bits", 135),
]


def layer(truth, rng, *, is_own=True, kept=1.0):
    """Return a layer without noise that was fed the truth; its pattern has nothing to do with that if not its own."""
    weight, bias = rng.standard_normal((M, truth.shape[1])), np.zeros(M)
    z = weight @ truth.T if is_own else rng.standard_normal((M, len(truth)))
    columns = rng.standard_normal(z.shape) * (z > 0) * (rng.random(z.shape) < kept)
    grad, bias_grad = columns @ truth, columns.sum(axis=1)
    given = LayerGradient(weight=weight, bias=bias, weight_grad=grad, bias_grad=bias_grad, activation="relu")
    return given, columns


def rotated(truth, angle, rng):
    """Turn each row by an angle towards a direction of its own."""
    sizes = np.linalg.norm(truth, axis=1, keepdims=True)
    across = rng.standard_normal(truth.shape)
    across -= np.sum(across * truth, axis=1, keepdims=True) * truth / sizes**2
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    return np.cos(angle) * truth + np.sin(angle) * sizes * across


def of_columns(given, columns, candidates):
    """Return disagreements of candidates with columns that are those of the truth, whatever the candidates are."""
    grad = columns @ candidates
    from_columns = LayerGradient(
        weight=given.weight, bias=given.bias, weight_grad=grad, bias_grad=given.bias_grad, activation="relu"
    )
    return disagreements(candidates, from_columns), disagreements(candidates, from_columns, may_be_dropped=True)


def test_the_truth_agrees_with_itself():
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((B, N))
    given, _ = layer(truth, rng)
    for may_be_dropped in (False, True):
        share, chance = disagreements(truth, given, may_be_dropped=may_be_dropped)
        np.testing.assert_allclose(share, 0, atol=1e-12)
        assert (chance < 1e-30).all()


@pytest.mark.parametrize("degrees", [5, 15, 30, 45])
def test_a_candidate_at_an_angle_disagrees_by_the_arc_cosine_law(degrees):
    angle, rng = np.radians(degrees), np.random.default_rng(degrees)
    shares = []
    for _ in range(20):
        truth = rng.standard_normal((B, N))
        given, columns = layer(truth, rng)
        (share, _), _ = of_columns(given, columns, rotated(truth, angle, rng))
        shares.extend(share)
    # 120 shares of 400 units each. The pattern of a candidate has some units more or less than the column has entries,
    # a random walk of as many steps as units disagree, and those count as well: it errs on the safe side.
    law = degrees / 180
    deviation, walk = np.sqrt(law * (1 - law) / M / len(shares)), np.sqrt(law / M)
    assert law - 5 * deviation < np.mean(shares) < law + walk + 5 * deviation
    assert (
        np.cos(angle) - np.pi * np.sin(angle) * walk - 0.02
        < expected_correlation(np.mean(shares))
        < np.cos(angle) + 0.02
    )


def test_units_dropped_out_do_not_disagree():
    rng = np.random.default_rng(1)
    truth = rng.standard_normal((B, N))
    given, _ = layer(truth, rng, kept=0.6)
    assert (disagreements(truth, given)[0] > 0.1).all()
    share, chance = disagreements(truth, given, may_be_dropped=True)
    np.testing.assert_allclose(share, 0, atol=1e-12)
    assert (chance < 1e-10).all()


@pytest.mark.parametrize("may_be_dropped", [False, True])
def test_the_chance_is_no_smaller_than_it_is_where_nothing_agrees(may_be_dropped):
    rng, chances = np.random.default_rng(2), []
    for _ in range(100):
        truth = rng.standard_normal((B, N))
        given, _ = layer(truth, rng, is_own=False)
        chances.extend(disagreements(truth, given, may_be_dropped=may_be_dropped)[1])
    # Of 600: no more below any level than so many; the statistic is one-sided.
    assert kstest(chances, "uniform", alternative="greater").pvalue > 1e-3
    assert np.mean(np.array(chances) <= 0.01) < 0.03


@pytest.mark.parametrize("seed", range(3))
def test_a_mixture_that_was_made_to_agree_is_no_agreement(seed):
    """Its own b numbers make it active where its column, by b numbers of its own, has entries; chance has no part."""
    rng = np.random.default_rng(seed)
    b, m = 30, 50
    truth, weight = rng.standard_normal((b, N)), rng.standard_normal((m, N))
    z = weight @ truth.T
    columns = rng.standard_normal(z.shape) * (z > 0)
    dual = np.linalg.svd(columns[: b - 1])[2][-1]  # a column of the mixtures with zeros at b - 1 units
    signs = np.where(np.arange(m) < b - 1, -1.0, 1.0)
    asked = np.arange(m - b, m)  # all units with entries, and some without
    mixture = np.linalg.solve(z[asked], signs[asked])
    others = np.linalg.svd(dual[None])[2][1:]
    candidates = np.vstack([mixture / (mixture @ dual), others]) @ truth
    sums = columns.sum(axis=1)
    given = LayerGradient(
        weight=weight, bias=np.zeros(m), weight_grad=columns @ truth, bias_grad=sums, activation="relu"
    )
    for may_be_dropped in (False, True):
        assert disagreements(candidates, given, may_be_dropped=may_be_dropped)[1][0] == 1
    # One in three units is free where only one of the two is counted: then this was called likely.
    assert np.mean((given.preactivations(candidates[:1])[:, 0] > 0) == (signs * np.sign(mixture @ dual) > 0)) > 0.75


def test_the_expected_correlation_is_that_of_the_law():
    np.testing.assert_allclose(expected_correlation(np.array([0, 1 / 6, 1 / 4, 1 / 3, 0.5, 0.7])),
                               [1, np.sqrt(3) / 2, np.sqrt(0.5), 0.5, 0, 0], atol=1e-12)  # fmt: skip


def fitted(inputs, **others):
    """Return what is read of an inverter that has found these and certified none."""
    said = {"size_is_clear_": True, "noise_excess_": 1.0, "n_starts_": 100} | others
    return SimpleNamespace(
        inputs_=inputs, batch_size_=len(inputs), recovered_=np.zeros(len(inputs), dtype=bool), **said
    )


def test_candidates_are_likely_where_they_agree_and_the_rank_is_that_of_the_batch():
    rng = np.random.default_rng(3)
    truth = rng.standard_normal((B, N))
    given, _ = layer(truth, rng)
    found = likely_candidates(fitted(truth), given)
    assert [one.index for one in found] == list(range(B))
    assert all(one.correlation > 0.99 for one in found)
    assert likely_candidates(fitted(truth, size_is_clear_=False), given) == ()
    assert likely_candidates(fitted(truth, n_starts_=10**200), given) == ()  # the best of so many says nothing
    assert likely_candidates(fitted(truth, noise_excess_=100.0), given) == ()
    strangers, _ = layer(truth, rng, is_own=False)
    assert likely_candidates(fitted(truth), strangers) == ()


@pytest.mark.slow
def test_stated_correlations_are_the_true_ones():
    with torch.random.fork_rng():
        found = summary([run_problem(problem) for problem in QUICK])
    assert found["wrong"] == 0
    assert found["likely"] >= 20
    assert found["near"] >= 0.9
    assert found["unlike"] <= 0.01 * found["likely"]

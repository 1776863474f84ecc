"""Slopes that activations leave open: the column space says which, as trying all of them does."""

from itertools import combinations

import numpy as np
import pytest

from sparsedl_fl.activations import GELU, LeakyReLU, ReLU
from sparsedl_fl.constraints.kink_slopes import sent_through

M, B = 40, 6
PIECEWISE = [ReLU(), LeakyReLU(0.1)]


def client(activation, seed):
    """Return true slopes, what is sent back, the columns of the gradient and a basis of their space."""
    rng = np.random.default_rng(seed)
    slopes = np.where(rng.random((M, B)) < 0.5, activation.slope_below, 1.0)
    sent_back = rng.standard_normal((M, B))
    columns = slopes * sent_back
    return slopes, sent_back, columns, np.linalg.qr(columns)[0]


def flipped(activation, slopes, units, column):
    wrong = slopes.copy()
    wrong[units, column] = 1.0 + activation.slope_below - wrong[units, column]
    return wrong


def by_trying(activation, slopes, sent_back, left, column, most):
    """Return the column nearest to the space among all with at most so many other slopes, by brute force."""

    def distance(gradient):
        return np.linalg.norm(gradient - left @ (left.T @ gradient)) / np.linalg.norm(gradient)

    candidates = [
        (flipped(activation, slopes, list(units), column) * sent_back)[:, column]
        for n in range(most + 1)
        for units in combinations(range(M), n)
    ]
    return min(candidates, key=distance)


@pytest.mark.parametrize("activation", PIECEWISE)
@pytest.mark.parametrize("seed", range(3))
def test_right_slopes_stay(activation, seed):
    slopes, sent_back, columns, left = client(activation, seed)
    np.testing.assert_array_equal(sent_through(activation, slopes, sent_back, left), columns)


@pytest.mark.parametrize("activation", PIECEWISE)
@pytest.mark.parametrize("seed", range(5))
def test_one_wrong_slope_a_column_is_mended_in_each(activation, seed):
    slopes, sent_back, columns, left = client(activation, seed)
    wrong = slopes
    for column, unit in enumerate(np.random.default_rng(seed).integers(M, size=B)):
        wrong = flipped(activation, wrong, [unit], column)
    found = sent_through(activation, wrong, sent_back, left)
    np.testing.assert_allclose(found, columns, atol=1e-12)
    tried = by_trying(activation, wrong, sent_back, left, 0, most=1)
    np.testing.assert_allclose(found[:, 0], tried, atol=1e-12)


@pytest.mark.parametrize("activation", PIECEWISE)
@pytest.mark.parametrize("seed", range(10))
def test_two_wrong_slopes_of_a_column_are_those_that_trying_all_pairs_finds(activation, seed):
    slopes, sent_back, columns, left = client(activation, seed)
    units = np.random.default_rng(seed).choice(M, 2, replace=False)
    wrong = flipped(activation, slopes, units, 2)
    found = sent_through(activation, wrong, sent_back, left)
    np.testing.assert_allclose(found, columns, atol=1e-12)
    np.testing.assert_allclose(found[:, 2], by_trying(activation, wrong, sent_back, left, 2, most=2), atol=1e-12)


def test_what_no_slope_explains_is_left_alone():
    """The column space of another batch: no other slope of one or two units leads into it."""
    activation = ReLU()
    slopes, sent_back, columns, _ = client(activation, 0)
    left = client(activation, 1)[3]
    np.testing.assert_array_equal(sent_through(activation, slopes, sent_back, left), columns)


def test_smooth_slopes_are_what_they_are():
    slopes, sent_back, columns, left = client(ReLU(), 0)
    wrong = flipped(ReLU(), slopes, [3], 1)
    np.testing.assert_array_equal(sent_through(GELU(), wrong, sent_back, left), wrong * sent_back)


@pytest.mark.parametrize("activation", PIECEWISE)
@pytest.mark.parametrize("seed", range(10))
def test_more_wrong_slopes_than_can_be_told_never_make_a_column_worse(activation, seed):
    """Beside it, all others are right; each step, and each pair, has to take the column nearer to the space."""
    slopes, sent_back, columns, left = client(activation, seed)
    rng = np.random.default_rng(seed)
    for n in (3, 4, 8):
        wrong = flipped(activation, slopes, rng.choice(M, n, replace=False), 4)
        found = sent_through(activation, wrong, sent_back, left)
        outside = [np.linalg.norm(part[:, 4] - left @ (left.T @ part[:, 4])) for part in (found, wrong * sent_back)]
        assert outside[0] <= outside[1] * (1 + 1e-12)
        others = np.delete(np.arange(B), 4)
        np.testing.assert_array_equal(found[:, others], columns[:, others])

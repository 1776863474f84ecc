"""Which ends could be mixtures of inputs: the matching says what all subsets say."""

from itertools import combinations

import numpy as np
import pytest

from sparsedl_fl.certify.mixtures import are_no_mixtures


def by_subsets(slopes, index):
    """Ask every set of others that differ from an input at all; one that differs at a single unit may do so."""
    differs = np.delete(slopes != slopes[index], index, axis=0)
    differs = differs[differs.any(axis=1)]
    for n in range(1, len(differs) + 1):
        for subset in combinations(differs, n):
            n_units = np.any(subset, axis=0).sum()
            if n_units < n or (n_units == n and any(row.sum() > 1 for row in subset)):
                return False
    return True


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.3])
def test_a_matching_says_what_all_subsets_say(share):
    rng, seen = np.random.default_rng(0), set()
    for _ in range(40):
        slopes = np.where(rng.random((7, 12)) < share, 0.01, 1.0)
        told = are_no_mixtures(slopes, np.ones_like(slopes, dtype=bool))
        assert told.tolist() == [by_subsets(slopes, index) for index in range(7)]
        seen |= set(told.tolist())
    assert seen == {True, False}


def test_units_at_the_kink_say_nothing():
    slopes = np.where(np.eye(5, 20, 0) + np.eye(5, 20, 5) > 0, 0.01, 1.0)
    clear = np.ones_like(slopes, dtype=bool)
    assert are_no_mixtures(slopes, clear).all()
    clear[:, 2:] = False
    assert are_no_mixtures(slopes, clear).tolist() == [False, False, True, True, True]


def test_an_input_that_differs_from_none_is_told_by_its_uncertainty():
    """Two with one pattern: the span leaves the line through both, and the expected error says how long it is."""
    slopes = np.ones((2, 8))
    assert are_no_mixtures(slopes, np.ones_like(slopes, dtype=bool)).all()


def test_inputs_that_were_not_found_may_differ_wherever_the_others_do():
    # Three inputs each differ from the others at units of their own, two each: one missing input leaves none over.
    slopes = np.where(np.kron(np.eye(3), np.ones(2)) > 0, 0.1, 1.0)
    clear = np.ones_like(slopes, dtype=bool)
    assert are_no_mixtures(slopes, clear).all()
    # Each differs from the two others at six units, and of these one equation has to be left over.
    told = [are_no_mixtures(slopes, clear, n_missing=n).all() for n in range(6)]
    assert told == [True, True, True, True, False, False]
    assert not are_no_mixtures(slopes[:1], clear[:1], n_missing=1).any()

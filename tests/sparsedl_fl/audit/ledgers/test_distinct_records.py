"""Records of several rounds are counted once where their errors do not tell them apart."""

import numpy as np
import pytest

from sparsedl_fl.audit.ledgers.distinct_records import Found, different

RNG = np.random.default_rng(0)
RECORDS = RNG.standard_normal((12, 20))


def found(rows, error=1e-6, seed=0):
    """Return records with errors as they are expected."""
    noise = error * np.random.default_rng(seed).standard_normal((len(rows), 20))
    return Found(RECORDS[list(rows)] + noise, np.full(len(rows), error))


@pytest.mark.parametrize("error", [0.0, 1e-8, 1e-3, 0.05])
def test_a_record_of_two_rounds_counts_once(error):
    rounds = [found(range(5), error, 1), found(range(3, 8), error, 2), found(range(7), error, 3)]
    assert different(rounds) == (8, 8)


def test_records_of_one_round_are_different_ones():
    near = Found(np.vstack([RECORDS[0], RECORDS[0] + 1e-9]), np.full(2, 1e-6))
    assert different([near]) == (2, 2)
    assert different([near, near]) == (2, 4)  # each fits both, so that nothing is clear


def test_other_records_stay_others():
    assert different([found(range(6)), found(range(6, 12))]) == (12, 12)
    moved = Found(RECORDS[:3] + 1e-4, np.full(3, 1e-6))
    assert different([found(range(3)), moved]) == (6, 6)  # beyond their errors


def test_large_errors_leave_a_range():
    blurred = [found(range(4), 3.0, 1), found(range(4, 8), 3.0, 2)]
    assert different(blurred) == (4, 8)
    unknown = Found(RECORDS[:2], np.full(2, np.inf))
    assert different([found([4, 5]), unknown]) == (2, 4)


def test_nothing():
    assert different([]) == (0, 0)

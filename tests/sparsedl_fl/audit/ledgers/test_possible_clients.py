"""Whose a record can be: who took part in every round in which it occurs, and whose number explains its weight."""

import math

import numpy as np
import pytest

from sparsedl_fl.audit.ledgers.distinct_records import Found, numbered
from sparsedl_fl.audit.ledgers.possible_clients import Round, clients_of_round, possible_clients

RECORDS = np.random.default_rng(0).standard_normal((12, 20))


def found(*rows):
    return Found(RECORDS[list(rows)], np.full(len(rows), 1e-6))


def weighted(sizes, held, error=1e-6, seed=0):
    """Return one round of clients with these sizes of data sets, and the records that each sends."""
    rng = np.random.default_rng(seed)
    shares = [sizes[name] / sum(sizes.values()) / len(rows) for name, rows in held.items() for _ in rows]
    weights = np.array(shares) * (1 + error * rng.standard_normal(len(shares)))
    return Round(found(*sum(held.values(), [])), sizes, np.column_stack([weights, np.full(len(shares), error)]))


def test_numbers_follow_a_record_over_the_rounds():
    assert [one.tolist() for one in numbered([found(0, 1), found(2, 1), found(3, 0, 2)])] == [[0, 1], [2, 1], [3, 0, 2]]


def test_a_record_is_of_a_client_that_was_always_there():
    rounds = [
        Round(found(0, 1, 2), clients_of_round(["A", "B"])),
        Round(found(1, 2), clients_of_round(["B", "C"])),
        Round(found(2), clients_of_round(["C", "A"])),
    ]
    assert [sorted(names) for names in possible_clients(rounds)] == [["A", "B"], ["B"], []]


@pytest.mark.parametrize("error", [1e-7, 1e-4, 3e-3])
@pytest.mark.parametrize("seed", range(5))
def test_a_weight_tells_the_client_by_its_number(seed, error):
    sizes, held = {"A": 211.0, "B": 352.0, "C": 164.0}, {"A": [0, 1, 2, 3], "B": [4, 5, 6, 7], "C": [8, 9, 10, 11]}
    assert [sorted(names) for names in possible_clients([weighted(sizes, held, error, seed)])] == [
        [name] for name in "AAAABBBBCCCC"
    ]


def test_alike_numbers_leave_all_of_them():
    sizes, held = {"A": 200.0, "B": 200.0, "C": 150.0}, {"A": [0, 1], "B": [2, 3], "C": [4, 5]}
    assert [sorted(names) for names in possible_clients([weighted(sizes, held)])] == [["A", "B"]] * 4 + [["C"]] * 2


def test_weights_that_the_numbers_do_not_explain_say_nothing():
    one = weighted({"A": 200.0, "B": 333.0}, {"A": [0, 1], "B": [2, 3]})
    other = Round(one.found, {"A": 1.0, "B": 7.0}, one.weights)
    assert possible_clients([other]) == [frozenset("AB")] * 4


def test_coarse_weights_leave_more():
    sizes, held = {"A": 200.0, "B": 210.0}, {"A": [0, 1], "B": [2, 3]}
    assert possible_clients([weighted(sizes, held, 0.03)]) == [frozenset("AB")] * 4


def test_names_and_numbers_are_checked():
    assert all(math.isnan(size) for size in clients_of_round(["A", "B"]).values())
    for bad in ("AB", [], {"A": -1}, {"A": math.inf}, {"A": True}, {"A": "many"}, [1, 2], {}):
        with pytest.raises(ValueError, match="participants must"):
            clients_of_round(bad)

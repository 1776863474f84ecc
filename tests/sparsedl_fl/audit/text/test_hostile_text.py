"""No token, and no sentence, is certified that the batch has not, whatever the model and the client do."""

from collections import Counter

import pytest

from sparsedl_fl.audit import recover_text
from tests.sparsedl_fl.audit.text.problems import client, judged


def attacked(seeds):
    """Return wrong certificates, and how many problems came back whole, in part, or not."""
    wrong, counts = [], Counter()
    for seed in seeds:
        one = client(seed)
        found = recover_text(one.model, one.gradients, one.example)
        wrong += [f"{one.described}: {what}; {found}" for what in judged(one, found)]
        counts["whole" if found.is_complete else "in part" if found.n_certified else "nothing"] += 1
    return wrong, counts


def test_few_problems():
    wrong, counts = attacked(range(1, 4))
    assert not wrong, "\n".join(wrong)
    assert counts["whole"] >= 1


@pytest.mark.slow
def test_many_problems():
    wrong, counts = attacked(range(100, 300))
    assert not wrong, "\n".join(wrong)
    assert counts["whole"] >= 50, counts


def test_a_search_that_finds_the_same_again_ends():
    one = client(129)
    assert not judged(one, recover_text(one.model, one.gradients, one.example))

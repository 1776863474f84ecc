import numpy as np
import pytest

from sparsedl_fl.theory import expected_samples, false_rejection_rate, sparsity_threshold, success_probability


def test_the_papers_figures():
    assert sparsity_threshold(400, 1e-5) == pytest.approx(0.395)
    assert expected_samples(16) == pytest.approx(1.8e5, rel=0.02)
    assert success_probability(20) == pytest.approx(20 / 2**19, rel=0.31)


@pytest.mark.parametrize("width", [50, 200, 400, 1000])
@pytest.mark.parametrize("rate", [1e-9, 1e-5, 1e-2])
def test_threshold_is_the_largest_that_keeps_the_rate(width, rate):
    threshold = sparsity_threshold(width, rate)
    assert false_rejection_rate(threshold, width) <= rate < false_rejection_rate(threshold + 1 / width, width)


def test_false_rejection_rate_is_that_of_coin_flips():
    zeros = np.random.default_rng(0).binomial(60, 0.5, size=20_000)
    assert np.mean(zeros < 0.45 * 60) == pytest.approx(false_rejection_rate(0.45, 60), abs=0.01)

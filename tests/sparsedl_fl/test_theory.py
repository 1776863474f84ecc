import numpy as np
import pytest

from sparsedl_fl.theory import (
    equations,
    expect,
    expected_samples,
    failure_probability,
    failure_probability_bound,
    false_rejection_rate,
    is_determined,
    largest_batch,
    samples_with_confidence,
    sparsity_threshold,
    success_probability,
)


def test_the_papers_figures():
    assert sparsity_threshold(400, 1e-5) == pytest.approx(0.395)
    assert expected_samples(16) == pytest.approx(1.8e5, rel=0.02)
    assert samples_with_confidence(10, 1e-8) == pytest.approx(4e4, rel=0.1)
    assert success_probability(20) == pytest.approx(20 / 2**19, rel=0.31)


@pytest.mark.parametrize("width", [50, 200, 400, 1000])
@pytest.mark.parametrize("rate", [1e-9, 1e-5, 1e-2])
def test_threshold_is_the_largest_that_keeps_the_rate(width, rate):
    threshold = sparsity_threshold(width, rate)
    assert false_rejection_rate(threshold, width) <= rate < false_rejection_rate(threshold + 1 / width, width)


def test_false_rejection_rate_is_that_of_coin_flips():
    zeros = np.random.default_rng(0).binomial(60, 0.5, size=20_000)
    assert np.mean(zeros < 0.45 * 60) == pytest.approx(false_rejection_rate(0.45, 60), abs=0.01)


def test_confidence_bound_holds_in_a_simulation():
    # Draws that hit a random column with probability q, until all are hit: the lemma's own model.
    b, failure, rng = 6, 0.1, np.random.default_rng(0)
    n_draws = int(samples_with_confidence(b, failure))
    q = success_probability(b)
    missed = [len(np.unique(rng.integers(b, size=rng.binomial(n_draws, q)))) < b for _ in range(4000)]
    assert np.mean(missed) <= failure


def test_false_rejection_takes_its_share():
    assert samples_with_confidence(10, 1e-8, 1e-10) > samples_with_confidence(10, 1e-8)
    with pytest.raises(ValueError, match="false rejection alone fails with probability 1e-07"):
        samples_with_confidence(10, 1e-8, 1e-8)


@pytest.mark.parametrize(("b", "m"), [(4, 12), (5, 16), (6, 20)])
def test_failure_lies_between_approximation_and_bound(b, m):
    # Fig. 8: exhaustive search fails where a column's zero rows do not have rank b - 1.
    rng, failures, n_trials = np.random.default_rng(0), 0, 2000
    for _ in range(n_trials):
        D = np.abs(rng.standard_normal((m, b))) * (rng.uniform(size=(m, b)) < 0.5)
        failures += any(np.linalg.matrix_rank(D[D[:, i] == 0]) < b - 1 for i in range(b))
    deviation = 3 * np.sqrt(0.25 / n_trials)
    assert failure_probability(b, m) - deviation < failures / n_trials < failure_probability_bound(b, m) + deviation


def test_wider_layers_fail_less_and_larger_batches_more():
    widths = [failure_probability(10, m) for m in (20, 30, 40, 80)]
    batches = [failure_probability_bound(b, 60) for b in (1, 5, 15, 25, 40)]
    assert widths == sorted(widths, reverse=True)
    assert batches == sorted(batches)


def test_what_to_expect_is_said():
    assert "expect the whole batch" in expect(20, 200).verdict
    assert "beyond b = 50 the search may end before; the next layer's gradient would" in expect(60, 200).verdict
    assert "expect the whole batch" in expect(60, 200, has_next_layer=True).verdict
    assert "expect the whole batch" in expect(90, 200, has_next_layer=True).verdict
    assert "beyond b = 450 the search may end before (" in expect(470, 1000, has_next_layer=True).verdict
    assert "do not determine the batch" in expect(90, 200).verdict
    assert "do not determine the batch" in expect(100, 200, has_next_layer=True).verdict
    assert "do not determine the batch (half of the 200 units with a gradient is the limit)" in expect(120, 200).verdict
    assert expect(1, 50).failure_probability < 1e-6


def test_with_the_next_layers_gradient_a_batch_may_have_more_inputs_than_features():
    assert largest_batch(200, 30, "zeros") == 29
    assert largest_batch(200, 30, "span", next_width=200) == 64
    assert largest_batch(200, 30, "span", next_width=40) == 39
    assert largest_batch(200, 80, "span", next_width=200) == 79


def test_spans_of_several_layers_take_more_than_half_of_the_width():
    assert largest_batch(200, 3072, "span", next_width=200, behind=(10,)) == 90
    assert largest_batch(200, 3072, "span", next_width=200, behind=(200, 10)) == 125
    assert largest_batch(200, 3072, "span", next_width=200, behind=(200, 200, 10)) == 142
    assert largest_batch(200, 100, "span", next_width=200, behind=(200, 10)) == 99


@pytest.mark.parametrize("width", [7, 84, 200, 1000])
def test_equations_are_counted_in_one_place(width):
    """The largest batch is that with equations enough for each unknown, and what to expect goes by the same count."""
    for attack, share in (("zeros", 0.25), ("span", 0.45), ("rest", 0.2)):
        assert largest_batch(width, 4000, attack) == int(share * width)
    assert largest_batch(width, 4000, "head") == (width - 1) // 2
    for b in range(1, width):
        assert is_determined(b, width, "span") == (equations(b, width, "span") > b) == (2 * b < width)
        assert expect(b, width, has_next_layer=True).is_determined == is_determined(b, width, "span")
    assert equations(10, width, "span", (width, 9, width)) == max(0, width - 10) * (width > 10)

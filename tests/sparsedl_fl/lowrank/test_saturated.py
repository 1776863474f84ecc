"""Tests of low-rank fits to what the first step of an adaptive optimiser shows."""

import numpy as np
import pytest

from sparsedl_fl.lowrank.saturated import fit_saturated, fit_smallest
from sparsedl_fl.lowrank.saturated_steps import Steps


def _steps(rank: int, seed: int, noise: float = 1e-6, offset: float = 0.0) -> tuple[Steps, np.ndarray]:
    """Return the steps of a gradient with entries of about 1e-3, of which an ``eps`` of 1e-8 shows most."""
    rng = np.random.default_rng(seed)
    gradient = 1e-3 * rng.standard_normal((60, rank)) @ rng.standard_normal((rank, 90)) / np.sqrt(rank)
    extra = offset * rng.standard_normal(gradient.shape)
    values = (gradient + extra) / (np.abs(gradient + extra) + 1e-8) + noise * rng.standard_normal(gradient.shape)
    return Steps(values, np.full(gradient.shape, noise), 1e-8, extra), gradient


@pytest.mark.parametrize("seed", range(3))
def test_a_fit_is_more_exact_than_the_entries_that_it_was_made_of(seed):
    steps, gradient = _steps(3, seed)
    entries, deviations = steps.around(gradient)
    fit = fit_saturated(steps, 3)
    error = np.linalg.norm(fit.gradient - gradient)
    assert fit.contradicting < 1e-3
    assert error < 0.5 * np.linalg.norm(entries - gradient)
    assert error < 0.05 * np.linalg.norm(gradient)


@pytest.mark.parametrize("likely", [None, 2, 4])
def test_finds_the_rank(likely):
    steps, _ = _steps(4, 0)
    assert fit_smallest(steps, likely).left.shape[1] == 4


def test_no_rank_fits_steps_of_full_rank():
    rng = np.random.default_rng(0)
    gradient = 1e-3 * rng.standard_normal((40, 50))
    steps = Steps(gradient / (np.abs(gradient) + 1e-8), np.full(gradient.shape, 1e-6), 1e-8)
    assert fit_smallest(steps) is None


def test_weight_decay_in_the_loss_is_taken_off():
    steps, gradient = _steps(3, 0, offset=1e-3)
    fit = fit_smallest(steps)
    assert fit.left.shape[1] == 3
    assert np.linalg.norm(fit.gradient - gradient) < 0.05 * np.linalg.norm(gradient)
    wrong = Steps(steps.values, steps.deviations, steps.eps)
    assert fit_saturated(wrong, 3).contradicting > 0.1


def test_a_power_of_two_changes_nothing():
    steps, _ = _steps(3, 0)
    fit = fit_saturated(steps, 3)
    scaled = fit_saturated(Steps(steps.values, steps.deviations, 2.0**20 * steps.eps), 3)
    np.testing.assert_allclose(scaled.gradient, 2.0**20 * fit.gradient, rtol=1e-6, atol=1e-12)
